"""Which dead letters a command is for: options that choose them, and the letters that they choose.

The server chooses letters by reason and age. By kind, text, number and rate this side does: it
reads the letters, and names them in its requests.
"""

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

import click

from querator.cli.shared.connection import decorated
from querator.cli.shared.output import note
from querator.cli.shared.parameters import (
    ABOVE_ZERO,
    ITEM_ID,
    DurationType,
    WholeNumber,
    format_duration,
)
from querator.client import Client, ItemId
from querator.client import clock as wall
from querator.client.values import DeadLetter, DeadReason, ItemState, PeekedItem
from querator.model import limits

LETTERS_READ_MAX: Final = 100_000
"""Letters that this side chooses and remembers for one command."""
_PIECE_LETTERS: Final = 500
"""Letters that one request names, and that are sent at once."""
_PIECES_PER_S: Final = 4
"""Requests per second with --rate, unless it is lower."""
_AGE: Final = DurationType(most_ms=limits.SCHEDULE_AHEAD_MS_MAX)
_NO_ERROR: Final = {
    DeadReason.ATTEMPTS: "lease lapsed: consumer gone or too slow (or retried without an error)"
}
"""What a letter without a text of an error died of."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Wanted(NamedTuple):
    """Which dead letters options choose. `died_from` is included, `died_until` is not. `text` is in
    the payload or in an error.
    """

    reasons: tuple[DeadReason, ...] = ()
    died_from: datetime | None = None
    died_until: datetime | None = None
    kind: str | None = None
    text: bytes = b""

    def includes(self, peeked: PeekedItem) -> bool:
        letter = peeked.dead_letter
        if self.kind is not None and peeked.item.kind != self.kind:
            return False
        if self.text and not _has_text(peeked, self.text):
            return False
        if letter is None:
            return not self.reasons and self.died_from is None and self.died_until is None
        return (
            (not self.reasons or letter.reason in self.reasons)
            and (self.died_from is None or letter.died_at >= self.died_from)
            and (self.died_until is None or letter.died_at < self.died_until)
        )


def _has_text(peeked: PeekedItem, text: bytes) -> bool:
    payload = peeked.item.payload
    raw = payload.encode() if isinstance(payload, str) else payload
    errors = () if peeked.dead_letter is None else peeked.dead_letter.errors
    return text in raw or any(text in error.encode() for error in errors)


def last_error(letter: DeadLetter) -> str:
    """The newest error, or what such a letter died of."""
    return letter.errors[-1] if letter.errors else _NO_ERROR.get(letter.reason, "")


def wanted_options(command: _Command) -> _Command:
    """Adds --reason, --older-than, --newer-than, --kind and --text, as one `wanted`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        reasons: tuple[DeadReason, ...],
        older_than: timedelta | None,
        newer_than: timedelta | None,
        kind: str | None,
        text: str | None,
        **kwargs: Any,
    ) -> Any:
        died = _died(older_than, newer_than)
        wanted = Wanted(reasons, *died, kind, (text or "").encode())
        return command(*args, wanted=wanted, **kwargs)

    more = (
        click.option(
            "--reason",
            "reasons",
            multiple=True,
            type=click.Choice([reason.name.lower() for reason in DeadReason]),
            callback=lambda _context, _parameter, values: tuple(
                DeadReason[one.upper()] for one in values
            ),
            help="Only dead letters with this reason; may be given several times.",
        ),
        click.option("--older-than", type=_AGE, help="Only letters that died longer ago."),
        click.option("--newer-than", type=_AGE, help="Only letters that died within this time."),
        click.option("--kind", help="Only dead letters of this kind."),
        click.option("--text", help="Only letters with this text in their payload or in an error."),
    )
    return cast(_Command, decorated(wrapper, more))


def _died(
    older_than: timedelta | None, newer_than: timedelta | None
) -> tuple[datetime | None, datetime | None]:
    """When the letters died: from the first instant on, and before the second. Raises UsageError if
    no letter can have died between both.
    """
    if older_than is not None and newer_than is not None and newer_than <= older_than:
        raise click.UsageError(
            f"--newer-than is {format_duration(newer_than)}; it must be longer than "
            f"--older-than, which is {format_duration(older_than)}."
        )
    now = wall.now()
    return (
        None if newer_than is None else now - newer_than,
        None if older_than is None else now - older_than,
    )


async def chosen(
    client: Client, queue: str, wanted: Wanted, limit: int | None
) -> AsyncIterator[PeekedItem]:
    if wanted == Wanted():
        async for letter in client.dead_letters(queue, limit=limit):
            yield letter
        return
    found = 0
    async for letter in client.dead_letters(queue):
        if wanted.includes(letter):
            yield letter
            found += 1
            if found == limit:
                return


class ChosenLetters(NamedTuple):
    """Which dead letters a command is for: named ones, or those that options choose, at most
    `limit`. `rate`: letters per second at most.
    """

    items: tuple[ItemId, ...]
    wanted: Wanted
    limit: int | None
    rate: float | None
    dry_run: bool

    @property
    def are_chosen_here(self) -> bool:
        """Whether options are given that the server does not know."""
        wanted, known = self.wanted, self.wanted._replace(kind=None, text=b"")
        return (wanted, self.limit, self.rate) != (known, None, None)


def letter_options(*, paced: bool) -> Callable[[_Command], _Command]:
    """Adds ITEM, the options of `wanted_options`, --all, --limit and --dry-run, as one `letters`;
    with `paced` also --rate.
    """

    def add(command: _Command) -> _Command:
        @functools.wraps(command)
        def wrapper(
            *args: Any,
            items: tuple[ItemId, ...],
            wanted: Wanted,
            all_items: bool,
            limit: int | None,
            dry_run: bool,
            rate: float | None = None,
            **kwargs: Any,
        ) -> Any:
            if bool(items) + (wanted != Wanted()) + all_items != 1:
                raise click.UsageError(
                    "Name the items (see `querator dead list`), or choose them by --reason, "
                    "--older-than, --newer-than, --kind and --text, or give --all."
                )
            if items and (dry_run or limit is not None):
                option = "--dry-run" if dry_run else "--limit"
                raise click.UsageError(
                    f"{option} is for letters that options choose, not for ITEM."
                )
            letters = ChosenLetters(items, wanted, limit, rate, dry_run)
            return command(*args, letters=letters, **kwargs)

        more: tuple[Callable[[Any], Any], ...] = (
            click.option("--all", "all_items", is_flag=True, help="All dead letters of the queue."),
            click.option(
                "--limit",
                type=WholeNumber(1, LETTERS_READ_MAX),
                metavar="N",
                help="At most N of the chosen letters, the oldest of each partition first.",
            ),
        )
        if paced:
            more += (
                click.option(
                    "--rate", type=ABOVE_ZERO, metavar="N", help="At most N letters per second."
                ),
            )
        more += (
            click.option("--dry-run", is_flag=True, help="Only show how many letters it would be."),
        )
        named = click.argument("items", nargs=-1, type=ITEM_ID, metavar="[ITEM]...")
        return cast(_Command, named(wanted_options(decorated(wrapper, more))))

    return add


async def chosen_ids(client: Client, queue: str, letters: ChosenLetters) -> Sequence[ItemId]:
    """The letters that are named, or those that options choose and that wait in the dead queue.
    They are all read before the first one is sent: a letter that dies again is not chosen again.
    """
    if letters.items:
        return letters.items
    most = letters.limit or LETTERS_READ_MAX
    ids: list[ItemId] = []
    async for letter in chosen(client, queue, letters.wanted, None):
        if letter.state is ItemState.READY:
            ids.append(letter.id)
            if len(ids) == most:
                break
    return ids


def note_more_letters(letters: ChosenLetters, found: int) -> None:
    """Says that the letters are the first ones, and that there may be more."""
    if not letters.items and found == (letters.limit or LETTERS_READ_MAX):
        note(f"The first {found:,}; there may be more: repeat the command for them.")


async def in_pieces(
    ids: Sequence[ItemId], rate: float | None, send: Callable[[Sequence[ItemId]], Awaitable[int]]
) -> int:
    """Calls `send` with a part of the letters after the other, and returns the sum of its results.
    With `rate` it rests, so that at most that number of letters is sent in a second. Shows the
    progress on a terminal.
    """
    size = _PIECE_LETTERS
    if rate is not None:
        size = min(max(round(rate / _PIECES_PER_S), 1), _PIECE_LETTERS)
    loop = asyncio.get_running_loop()
    due = loop.time()
    done = 0
    with click.progressbar(
        length=len(ids), label="letters", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        for first in range(0, len(ids), size):
            some = ids[first : first + size]
            if rate is not None:
                if first:
                    await rest(due - loop.time())
                # A slow request is not made up for by a burst.
                due = max(due, loop.time()) + len(some) / rate
            done += await send(some)
            bar.update(len(some))
    return done


async def rest(seconds: float) -> None:
    await asyncio.sleep(max(seconds, 0.0))
