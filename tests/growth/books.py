"""Counts: the fate of every flight of every round.

Flights go round: in each round every row is produced once, tagged with the round and the row. A
round balances when all of it was acknowledged, each row was completed once, and the bytes are those
that were sent. Flights of one key (an aircraft) are produced one after the other, each when the one
before it is acknowledged. Therefore:

    placed      while the number of partitions stays the same, the key decides on the partition
    stored      flights of a key in one partition have ascending sequences
    delivered   for the first time on one stream, they come in that order; except for flights that
                were in flight to a consumer before and were given back, which a partition counts
    followed    whatever partitions they are in, for the first time on any stream none comes after a
                later one of another partition; except for flights whose lease had lapsed
"""

import time
from collections import Counter
from collections.abc import Iterable

from querator.cli.demo.flights import Ledger
from querator.client.values import PartitionStats
from querator.model.routing import partition_of_key

ERRORS_TOLD = 20


class Round:
    """`number` counts from 1."""

    __slots__ = ("acknowledged", "again", "completed", "delivered", "number", "rows", "sent")

    def __init__(self, number: int, rows: int) -> None:
        self.number = number
        self.rows = rows
        self.acknowledged = 0
        self.sent = Ledger()
        self.completed = Ledger()
        self.delivered = bytearray(rows)
        """By row: whether it was delivered."""
        self.again = 0
        """Deliveries of rows that had been delivered before."""

    @property
    def lost(self) -> int:
        return self.completed.missing(self.rows)

    @property
    def balances(self) -> bool:
        return (
            self.acknowledged == self.rows
            and self.completed.count == self.rows
            and self.completed.repeated == self.lost == 0
            and self.completed.digest == self.sent.digest
        )


class Longest:
    """The longest time without an event of some kind since `restart`, in seconds."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self._most_s = 0.0

    def beat(self) -> None:
        now_s = time.monotonic()
        self._most_s = max(self._most_s, now_s - self._last_s)
        self._last_s = now_s

    def restart(self) -> float:
        """Returns the longest time until now. A pause that has not ended counts on."""
        now_s = time.monotonic()
        longest_s = max(self._most_s, now_s - self._last_s)
        self._most_s = 0.0
        return longest_s


class Books:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        """Rows of a round."""
        self.rounds: list[Round] = []
        self.errors: list[str] = []
        """Errors that users of the SDK received."""
        self.partitions = 0
        """Number of partitions among which the keys are shared out; 0: it is being changed."""
        self.used: set[int] = set()
        """Partitions in which flights were stored since this was last emptied."""
        self.strays = 0
        """Flights that were stored in another partition than their key's."""
        self.misplaced = 0
        """Flights that were stored before an earlier one of their key and partition."""
        self.late: Counter[int] = Counter()
        """Flights that were first delivered after a later one of their key, by partition."""
        self.crossed = 0
        """Flights that were first delivered after a later one of their key in another partition."""
        self.acknowledging = Longest()
        self.delivering = Longest()
        self.produce_s = 0.0
        """The longest duration of a produce call since this was last set to 0."""
        self._stored: dict[tuple[str, int], int] = {}
        self._seen: dict[tuple[str, str, int], int] = {}
        self._furthest: dict[str, dict[int, int]] = {}
        """The last flight that was delivered, by key and partition."""

    def begin(self) -> Round:
        self.rounds.append(Round(len(self.rounds) + 1, self.rows))
        return self.rounds[-1]

    def sent(self, of: Round, row: int, payload: bytes) -> None:
        of.sent.add(row, payload)

    def acknowledged(
        self,
        of: Round,
        stored: Iterable[tuple[str, int, int]],
        *,
        partitions: int,
        seconds: float,
    ) -> None:
        """`stored`: (key, partition, sequence) of each flight, in the order of producing;
        `partitions`: the number of partitions when the flights were sent.
        """
        known = partitions if partitions == self.partitions else 0
        self.acknowledging.beat()
        self.produce_s = max(self.produce_s, seconds)
        for key, partition, seq in stored:
            of.acknowledged += 1
            place = key, partition
            self.used.add(partition)
            self.strays += known > 0 and partition != partition_of_key(key.encode(), known)
            self.misplaced += seq <= self._stored.get(place, 0)
            self._stored[place] = seq

    def delivered(self, stream: str, number: int, row: int, key: str, partition: int) -> None:
        """`number`: that of the round."""
        self.delivering.beat()
        of = self.rounds[number - 1]
        if of.delivered[row]:
            of.again += 1
            return
        of.delivered[row] = 1
        place, made = (stream, key, partition), number * self.rows + row
        before = self._seen.get(place, 0)
        self.late[partition] += made < before
        self._seen[place] = max(before, made)
        furthest = self._furthest.setdefault(key, {})
        self.crossed += any(made < last for at, last in furthest.items() if at != partition)
        furthest[partition] = max(made, furthest.get(partition, 0))

    def completed(self, number: int, row: int, payload: bytes) -> None:
        self.rounds[number - 1].completed.add(row, payload)

    def failed(self, what: str, error: BaseException) -> None:
        self.errors.append(f"{what}: {error!r}")

    # --- sums --------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of acknowledged flights."""
        return sum(one.acknowledged for one in self.rounds)

    @property
    def done(self) -> int:
        """Number of completed flights."""
        return sum(one.completed.count for one in self.rounds)

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.rounds)

    @property
    def duplicated(self) -> int:
        return sum(one.completed.repeated for one in self.rounds)

    @property
    def again(self) -> int:
        return sum(one.again for one in self.rounds)

    def problems(self, total: PartitionStats) -> list[str]:
        """A sentence for each deviation, in these counts and in those of the nodes."""
        unbalanced = [str(one.number) for one in self.rounds if not one.balances]
        late, given_back = self.late.total(), total.released + total.lapsed
        left = total.ready + total.leased + total.scheduled + total.moving + total.held
        checks = (
            (not self.errors, f"users saw {len(self.errors)} errors"),
            (not unbalanced, f"rounds do not balance: {', '.join(unbalanced)}"),
            (not self.lost, f"{self.lost} flights were lost"),
            (not self.duplicated, f"{self.duplicated} flights were completed twice"),
            (not self.strays, f"{self.strays} flights were stored elsewhere than their keys say"),
            (not self.misplaced, f"{self.misplaced} flights were stored before earlier ones"),
            (
                late <= given_back,
                f"{late} flights came after later ones of their aircraft, and only {given_back} "
                "had been given back",
            ),
            (
                self.crossed <= total.lapsed,
                f"{self.crossed} flights came after later ones of their aircraft in other "
                f"partitions, and only {total.lapsed} leases had lapsed",
            ),
            (not left, f"{left} flights are left in the queue"),
            (not total.dead, f"{total.dead} flights died"),
            (
                total.produced == self.count,
                f"the nodes count {total.produced} items, not {self.count}",
            ),
            (total.completed == self.count, f"the nodes count {total.completed} completed"),
        )
        return [sentence for holds, sentence in checks if not holds]
