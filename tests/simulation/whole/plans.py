"""The due times of items, as clients know them from answers.

    an item is not delivered before its due time, to a call that was made after the answer that
    fixed that time
    a list shows each item whose time has not come
    a list shows an item at its time

A due time is known while exactly one answered call has fixed it. After a call that was sent twice,
or has no answer, nothing is known of its items: an attempt may be executed late.
"""

from collections.abc import Iterable, Iterator, Mapping

from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS


class Plans:
    """Instants ending in `_us` are of virtual time; due times are of right wall clocks."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[int, int]] = {}
        """Reference to (instant of the answer, due time)."""
        self._touched: set[str] = set()
        self._filters: list[tuple[int, int | None]] = []
        """Begin and end of each change by a filter."""
        self._trusted = True
        self._early: list[tuple[float, str]] = []
        """(milliseconds, what is wrong unless the clocks were that wrong)."""
        self._found: list[str] = []

    def produced(self, references: Iterable[str], begun_us: int, now_us: int, due_ms: int) -> None:
        if not self._trusted:
            return
        if any(end_us is None or end_us >= begun_us for _, end_us in self._filters):
            return
        for reference in references:
            if reference not in self._touched:
                self._due[reference] = now_us, due_ms

    def touching(self, references: Iterable[str]) -> None:
        """A change of these items begins: until its answer nothing is known."""
        for reference in references:
            self._touched.add(reference)
            self._due.pop(reference, None)

    def moved(self, references: Iterable[str], now_us: int, due_ms: int) -> None:
        """The one answered call about these items has moved them."""
        if self._trusted:
            self._due.update(dict.fromkeys(references, (now_us, due_ms)))

    def filtering(self, now_us: int, from_ms: int, until_ms: int) -> None:
        """A change by a filter begins."""
        self._filters.append((now_us, None))
        for reference, (_, due_ms) in list(self._due.items()):
            if from_ms <= due_ms < until_ms:
                del self._due[reference]

    def filtered(self, now_us: int, *, certain: bool) -> None:
        self._filters[-1] = self._filters[-1][0], now_us
        if not certain:
            self._trusted = False
            self._due.clear()

    def delivered(self, asked_us: int, now_us: int, references: Iterable[str]) -> None:
        """The items came in the answer to a call that was made at `asked_us`."""
        for reference in references:
            # The answer to its produce may come later, and its consumer may retry it for later.
            self._touched.add(reference)
            since_us, due_ms = self._due.pop(reference, (asked_us, 0))
            if since_us < asked_us:
                self._note(due_ms, now_us, f"{reference}: delivered before its time")

    def listed(self, begun_us: int, now_us: int, found: Mapping[str, int]) -> None:
        """A whole list: references and due times."""
        for reference, (since_us, due_ms) in self._due.items():
            if since_us >= begun_us:
                continue
            if reference not in found:
                self._note(due_ms, now_us, f"{reference}: scheduled, and not listed")
            elif found[reference] != due_ms:
                self._found.append(f"{reference}: listed at {found[reference]}, due at {due_ms}")

    def _note(self, due_ms: int, now_us: int, text: str) -> None:
        self._early.append((due_ms - EPOCH_MS - now_us / MS, text))

    def judge(self, uncertainty_ms: float) -> Iterator[str]:
        """`uncertainty_ms`: how far clocks were apart."""
        yield from self._found
        for early_ms, text in self._early:
            if early_ms > uncertainty_ms:
                yield f"{text}, by {early_ms:.0f} ms"
