"""`querator queue export`: the items of a queue as JSON lines that `querator produce` reads.

Each line names its item and its queue. So a file says where its export has ended, and the next run
continues there. Each line has a dedup key: that of the item, or one from the id of the item. So the
file can be read again after a failure, and no item is stored twice within the dedup window.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, Final

import click
import msgspec

from querator.cli.shared.connection import CommandTarget, server_options, stale_option
from querator.cli.shared.failures import Failure
from querator.cli.shared.output import count, note
from querator.cli.shared.parameters import ITEM_ID, format_duration
from querator.cli.shared.sources import LINE_BYTES_MAX
from querator.cli.shared.views import payload_texts
from querator.client import Client, ItemId
from querator.client.values import Item, ItemState, PeekedItem
from querator.model.errors import QueratorError

_PIECE_ITEMS: Final = 1_000
"""Items of a page, and those that are written at once."""
_encode: Final = msgspec.json.Encoder().encode


class ExportedLine(msgspec.Struct, frozen=True):
    """What a later run reads of a line."""

    id: str
    queue: str


@click.command(short_help="Write the items of a queue as JSON lines.")
@click.argument("name")
@click.option(
    "--file",
    "path",
    metavar="FILE",
    help="Write to this file. If it has items of an earlier run, continue after the last one.",
)
@click.option(
    "--state",
    type=click.Choice([state.name.lower() for state in ItemState]),
    help="Only items in this state.",
)
@click.option("--after", type=ITEM_ID, help="Only items after the one with this id.")
@stale_option
@server_options
def export(
    name: str,
    path: str | None,
    state: str | None,
    after: ItemId | None,
    stale: bool,
    target: CommandTarget,
) -> None:
    """Write the items of the queue NAME as JSON lines, without leasing them: to standard output, or
    to --file.

    The lines are for `querator produce --json-lines`. They have what was produced, the attributes
    and the priority of now, and the due time of a scheduled item. Attempts, errors, checkpoints and
    results are not exported. Items that come and go meanwhile may be missing.

    Each line has a dedup key: that of its item, or one from the item's id. So the lines can be
    produced again after a failure, within the dedup window of the queue that gets them.

    \b
    Examples:
      querator queue export mail --file mail.jsonl
      querator produce mail2 --json-lines --file mail.jsonl
      querator queue export mail --state ready | gzip > mail.jsonl.gz
    """
    if path is not None and after is not None:
        raise click.UsageError("--after is not for --file, which says itself where it has ended.")
    wanted = None if state is None else ItemState[state.upper()]
    with _opened(path) as out:
        start = after if path is None else _resume(out, path, name)
        if start is not None and path is not None:
            note(f"{path}: continues after {start}.")

        async def main(client: Client) -> int:
            return await _export(client, name, out, state=wanted, after=start, stale=stale)

        written = target.run(main)
    note(f"{count(written, 'item')} of {name} written{f' to {path}' if path else ''}.")


@contextmanager
def _opened(path: str | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        return
    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}.") from error


def _resume(file: BinaryIO, path: str, queue: str) -> ItemId | None:
    """Cuts off a line that was not finished, and goes to the end of the file. Returns the item of
    its last line.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 2 * LINE_BYTES_MAX))
    tail = file.read()
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    if not lines:
        if tail and not tail.startswith(b'{"id":'):
            raise _not_an_export(path)
        file.truncate(file.seek(size - len(tail)))
        return None
    try:
        last = msgspec.json.decode(lines[-1], type=ExportedLine)
        found = ItemId.parse(last.id)
    except (msgspec.DecodeError, QueratorError):
        raise _not_an_export(path) from None
    if last.queue != queue:
        raise Failure(f"{path} has items of queue {last.queue}; give another file.")
    file.truncate(file.seek(size - len(tail) + tail.rfind(b"\n") + 1))
    return found


def _not_an_export(path: str) -> Failure:
    return Failure(f"{path} is there and is no export of a queue; give another file.")


async def _export(
    client: Client,
    name: str,
    out: BinaryIO,
    *,
    state: ItemState | None,
    after: ItemId | None,
    stale: bool,
) -> int:
    stats = await client.stats(name, stale=stale)
    total = stats.total
    there = total.ready + total.leased + total.scheduled + total.moving + total.reserved
    written = 0
    piece: list[bytes] = []
    items = client.peek(name, state=state, after=after, limit=sys.maxsize, stale=stale)
    with click.progressbar(
        length=max(there + total.held, 1), label=name, file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip
        async for item in items:
            piece.append(exported(item, name, stats.queue.id))
            written += 1
            if len(piece) == _PIECE_ITEMS:
                await asyncio.to_thread(out.writelines, piece)
                bar.update(len(piece))
                piece = []
        await asyncio.to_thread(out.writelines, piece)
        await asyncio.to_thread(out.flush)
        bar.update(len(piece))
    return written


def exported(peeked: PeekedItem, queue: str, queue_id: int) -> bytes:
    """One line. Fields without a value are left out."""
    item = peeked.item
    text, encoded = payload_texts(item.payload)
    fields: dict[str, Any] = {
        "id": str(peeked.id),
        "queue": queue,
        "payload": text,
        "payload_base64": encoded,
        "kind": item.kind,
        "encoding": item.encoding,
        "reference": item.reference,
        "attributes": dict(peeked.attributes),
        "priority": peeked.priority,
        "group": item.group,
        "key": item.key,
        "enqueue_at": _instant(peeked.due_at),
        "dedup_key": item.dedup_key or f"export:{queue_id}:{peeked.id}",
        **_limits(item),
    }
    kept = {name: value for name, value in fields.items() if value or name == "payload"}
    if text is None:
        del kept["payload"]
    return _encode(kept) + b"\n"


def _limits(item: Item) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("expire_timeout", "lease_timeout"):
        if (timeout := getattr(item, name)) is not None:
            found[name] = format_duration(timeout)
    if item.max_attempts is not None:
        # 0 is a value: no limit.
        found["max_attempts"] = msgspec.Raw(str(item.max_attempts).encode())
    if item.retry is not None:
        found["retry"] = {
            "delay": format_duration(item.retry.delay),
            "delay_max": format_duration(item.retry.delay_max),
            "backoff": item.retry.backoff,
            "jitter": item.retry.jitter,
        }
    return found


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
