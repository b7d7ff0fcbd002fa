"""`querator dead groups`: dead letters that died of the same, counted."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import click
import msgspec

from querator.cli.letters import Wanted, chosen, last_error, wanted_options
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.output import note, write_json_lines, write_table
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import instant_text
from querator.cli.shared.views import preview
from querator.client import Client
from querator.client.values import PeekedItem

GROUPS_MAX: Final = 10_000
"""Groups that are counted; further ones are counted together."""
_OTHERS: Final = ("", "", "(further groups)")
_VARIABLE: Final = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b0[xX][0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+"
)
"""Parts of an error that differ from one item to the next: UUIDs, hexadecimal and other numbers."""
_SHAPE_CHARS_MAX: Final = 200


class LetterGroup(msgspec.Struct):
    """Letters with the same reason, kind, and error but for its numbers (`#`). `example`: the id
    and the error of the one that died last.
    """

    letters: int
    reason: str
    kind: str
    error: str
    first_died_at: datetime | None
    last_died_at: datetime | None
    example: str
    example_error: str


@click.command(short_help="Count dead letters by what they died of.")
@click.argument("queue")
@wanted_options
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Most groups to show.",
)
@server_options
@output_option
def groups(queue: str, wanted: Wanted, limit: int, target: CommandTarget, as_json: bool) -> None:
    """Count the dead letters of QUEUE by reason, kind and last error; the largest group is first.

    Errors that differ in numbers alone are one group, with # for the number. The command reads all
    dead letters of the queue, one page after the other. With --output json each group is a line.

    \b
    Examples:
      querator dead groups mail
      querator dead groups mail --newer-than 1h
    """

    async def main(client: Client) -> list[LetterGroup]:
        found: dict[tuple[str, str, str], LetterGroup] = {}
        async for peeked in chosen(client, queue, wanted, None):
            _count(found, peeked)
        return sorted(found.values(), key=lambda one: (-one.letters, one.reason, one.error))

    found = target.run(main)
    shown = found[:limit]
    if as_json:
        write_json_lines(shown)
    elif not found:
        note("No such dead letters." if wanted != Wanted() else "No dead letters.")
    else:
        _write(shown)
    if len(found) > limit:
        note(f"{len(found) - limit:,} more groups; see --limit.")


def _write(groups: Iterable[LetterGroup]) -> None:
    write_table(
        (
            Column("letters", keep=True),
            "reason",
            "kind",
            Column("error", cut=True),
            "first died",
            "last died",
            "example",
        ),
        (
            (
                one.letters,
                one.reason,
                one.kind,
                preview(one.error),
                one.first_died_at and instant_text(one.first_died_at),
                one.last_died_at and instant_text(one.last_died_at),
                one.example,
            )
            for one in groups
        ),
    )


def _count(found: dict[tuple[str, str, str], LetterGroup], peeked: PeekedItem) -> None:
    letter = peeked.dead_letter
    error = "" if letter is None else last_error(letter)
    reason = "" if letter is None else letter.reason.name.lower()
    which = (reason, peeked.item.kind, shape_of(error))
    if which not in found and len(found) >= GROUPS_MAX:
        which = _OTHERS
    group = found.get(which)
    if group is None:
        group = found[which] = LetterGroup(0, *which, None, None, "", "")
    group.letters += 1
    died = None if letter is None else letter.died_at
    if died is not None and (group.first_died_at is None or died < group.first_died_at):
        group.first_died_at = died
    if group.last_died_at is None or (died is not None and died >= group.last_died_at):
        group.last_died_at = died
        group.example, group.example_error = str(peeked.id), error


def shape_of(error: str) -> str:
    """The first line of an error, with # for what differs from one item to the next."""
    line = error.strip().partition("\n")[0]
    return _VARIABLE.sub("#", line[:_SHAPE_CHARS_MAX])
