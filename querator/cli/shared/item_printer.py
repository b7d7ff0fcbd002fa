"""Items that `consume` prints: the payload and a line end, or JSON."""

import asyncio
import sys
from dataclasses import dataclass
from functools import partial
from typing import Final

import click

from querator.cli.shared.output import count, note, write_json
from querator.cli.shared.texts import printable
from querator.cli.shared.views import leased_view
from querator.client import Consumer, LeasedItem
from querator.client.errors import LeaseLost
from querator.model import limits

HELD_ITEMS_MAX: Final = limits.STREAM_LEASES_MAX
HELD_BYTES_MAX: Final = 64 * limits.MIB
"""Items that are not completed are held. The printer stops at either number."""


@dataclass(slots=True)
class ItemPrinter:
    """Prints the items of a consumer, at most `limit`. `completes`: each item is completed when it
    has been written; otherwise all are held.
    """

    as_json: bool
    completes: bool
    limit: int | None = None
    printed: int = 0
    printed_bytes: int = 0
    completed: int = 0
    lost: int = 0
    broken: BrokenPipeError | None = None
    """Set when the reader of standard output has ended."""

    def __str__(self) -> str:
        words = count(self.printed, "item")
        if not self.completes:
            return f"{words} printed and given back"
        lost = f", {self.lost:,} with a lost lease" if self.lost else ""
        return f"{words} printed, {self.completed:,} completed{lost}"

    async def run(self, consumer: Consumer) -> bool:
        """Ends when the iteration of `consumer` ends, at the limit, or when nothing reads. Returns
        whether the iteration has ended by itself.
        """
        ended = True
        async for item in consumer:
            try:
                self._write(item)
            except BrokenPipeError as error:
                self.broken = error
                return False
            self.printed += 1
            if self.completes:
                item.complete().add_done_callback(partial(self._settled, item))
            if self._is_enough(len(item.payload)):
                ended = False
                break
        if self.completes:
            await consumer.flush()
        return ended

    def _write(self, item: LeasedItem) -> None:
        if self.as_json:
            write_json(leased_view(item))
        elif sys.stdout.isatty():
            lines = item.payload.decode(errors="replace").splitlines() or [""]
            click.echo("\n".join(map(printable, lines)))
        else:
            click.echo(item.payload)

    def _settled(self, item: LeasedItem, future: "asyncio.Future[None]") -> None:
        if future.cancelled():
            return
        if future.exception() is None:
            self.completed += 1
        elif isinstance(future.exception(), LeaseLost):
            self.lost += 1
            note(f"Item {item.id}: its lease was lost; another consumer may have the item.")

    def _is_enough(self, payload_bytes: int) -> bool:
        self.printed_bytes += payload_bytes
        if self.limit is not None and self.printed >= self.limit:
            return True
        if self.completes:
            return False
        full = self.printed >= HELD_ITEMS_MAX or self.printed_bytes >= HELD_BYTES_MAX
        if full:
            note(f"Stopped: without --complete {count(self.printed, 'item')} are held, the most.")
        return full
