"""Counts of the items that went into a queue, and of those that came out of a stream.

Items are numbered from 0 on, and their payloads follow from their numbers. A produce that failed
for its user is in doubt: its items may be there, once.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

PADDING = 400
BROKEN_PROMISES = (
    "ACK_MISMATCH",
    "BATCH_NOT_FOUND",
    "BATCH_RELEASED",
    "IncompleteBatch",
    "READER_FENCED",
    "this is a defect of querator",
)
"""Errors with which a query may not end, whatever is killed: checkpoint and queue belong together,
and no other query has the reader's name.
"""


def payload(number: int) -> bytes:
    """Payloads have different lengths."""
    return b"%d %s" % (number, b"x" * (number * 7919 % PADDING))


class Produced:
    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.doubtful: set[int] = set()


class Tally(msgspec.Struct, frozen=True):
    """`rows` have `distinct` numbers. `strange`: rows with a payload that was never sent."""

    produced: int
    rows: int
    distinct: int
    lost: int
    doubled: int
    strange: int

    @property
    def balances(self) -> bool:
        return not (self.lost or self.doubled or self.strange)

    def __str__(self) -> str:
        return (
            f"{self.produced:,} produced, {self.rows:,} rows, {self.distinct:,} distinct, lost "
            f"{self.lost}, doubled {self.doubled}, strange {self.strange}"
        )


def tally(produced: Produced, found: Iterable[tuple[str, bytes]]) -> Tally:
    """`found`: id of each item, and its payload. An id that is there twice is doubled as well."""
    numbers: Counter[int] = Counter()
    ids: Counter[str] = Counter()
    strange = 0
    for item_id, value in found:
        ids[item_id] += 1
        head = value.split(b" ")[0]
        number = int(head) if head.isdigit() else -1
        if number < 0 or value != payload(number):
            strange += 1
        else:
            numbers[number] += 1
    sent = produced.acknowledged | produced.doubtful
    strange += sum(times for number, times in numbers.items() if number not in sent)
    doubled = max(ids.total() - len(ids), numbers.total() - len(numbers))
    return Tally(
        # Items in doubt that are there were produced.
        produced=len(produced.acknowledged | (produced.doubtful & numbers.keys())),
        rows=ids.total(),
        distinct=len(numbers),
        lost=len(produced.acknowledged - numbers.keys()),
        doubled=doubled,
        strange=strange,
    )


def broken_promise(words: str) -> str:
    """The broken promise that a query's error names; empty: none."""
    return next((promise for promise in BROKEN_PROMISES if promise in words), "")
