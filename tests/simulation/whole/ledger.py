"""The fate of each item, by its reference alone. It serves queues whose items move between queues
and partitions, which the checkers of histories do not follow.

An item that was acknowledged is completed once, or is there once, or was cancelled. One that may
have been produced is completed or there at most once. Items of a deleted queue are not checked.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator


class Ledger:
    """Instants are of virtual time."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, None] = {}
        self.staged: dict[str, None] = {}
        """Items of attempts that must never be seen."""
        self.dropped: dict[str, None] = {}
        """Items of queues that were deleted, or are about to be."""
        self._perhaps: set[str] = set()
        self._completed: dict[str, int] = {}
        self._perhaps_completed: set[str] = set()
        self._cancelled: dict[str, int] = {}
        self._perhaps_cancelled: set[str] = set()
        self._found: list[str] = []

    def produced(self, references: Iterable[str], *, known: bool) -> None:
        if known:
            self.acknowledged.update(dict.fromkeys(references))
        else:
            self._perhaps.update(references)

    def delivered(self, asked_us: int, references: Iterable[str]) -> None:
        """The items came in the answer to a call that was made at `asked_us`."""
        for reference in references:
            if self._completed.get(reference, asked_us) < asked_us:
                self._found.append(f"{reference}: delivered after its completion")
            if self._cancelled.get(reference, asked_us) < asked_us:
                self._found.append(f"{reference}: delivered after it was cancelled")
            if reference in self.staged:
                self._found.append(f"{reference}: delivered, and its attempt does not count")

    def completed(self, now_us: int, references: Iterable[str]) -> None:
        """Completes of these items were accepted, and not as repetitions."""
        for reference in references:
            if reference in self._completed:
                self._found.append(f"{reference}: two completes were accepted")
            self._completed[reference] = now_us

    def completed_at(self, reference: str) -> int | None:
        """When the first complete of the item was answered."""
        return self._completed.get(reference)

    def perhaps_completed(self, references: Iterable[str]) -> None:
        self._perhaps_completed.update(references)

    @property
    def possible(self) -> tuple[str, ...]:
        """Items that have been produced, or may have been."""
        return (*self.acknowledged, *self._perhaps)

    @property
    def completed_items(self) -> Collection[str]:
        """Items of which a complete was accepted."""
        return self._completed.keys()

    @property
    def gone_items(self) -> Collection[str]:
        """Items that were completed, or may have been."""
        return self._completed.keys() | self._perhaps_completed

    def cancelled(self, now_us: int, references: Iterable[str]) -> None:
        """The answer to a call says that these items are cancelled."""
        self._cancelled.update(dict.fromkeys(references, now_us))

    def perhaps_cancelled(self, references: Iterable[str]) -> None:
        self._perhaps_cancelled.update(references)

    def judge(self, present: Counter[str]) -> Iterator[str]:
        """`present`: how often each item is in any queue at the end."""
        yield from self._found
        for reference, count in present.items():
            if count > 1:
                yield f"{reference}: is there {count} times"
            if reference in self._completed:
                yield f"{reference}: is there after its completion"
            if reference in self._cancelled:
                yield f"{reference}: is there after it was cancelled"
            if reference in self.staged:
                yield f"{reference}: is there, and its attempt does not count"
            if reference not in self.acknowledged and reference not in self._perhaps:
                yield f"{reference}: is there, and nobody has produced it"
        yield from self._judge_the_gone(present)

    def _judge_the_gone(self, present: Counter[str]) -> Iterator[str]:
        for reference in self._completed:
            if reference in self._cancelled:
                yield f"{reference}: completed, and was cancelled"
        for reference in self.acknowledged:
            if reference in self._completed or reference in self._perhaps_completed:
                continue
            if reference in self._cancelled or reference in self._perhaps_cancelled:
                continue
            if not present[reference] and reference not in self.dropped:
                yield f"{reference}: acknowledged, but lost"
