"""The priorities of items, as clients know them from answers, and the order of leases.

    an item is delivered with the priority that it had when it was leased
    a page of a peek shows the priority that an item has
    no overtaking: while an item waits in a partition, no lease takes a less urgent one there
    a change is not refused to an item that waits

The priority of an item is known from its produce, and from each answered change of it. A change
is a call of an operator, or a retry with another priority. From the call to the answer the old and
the new priority are both right. They are right for ever if there is no answer, if the call was sent
more than once, or if two changes of one item overlapped.

An item is known to wait from an answer on: that to its produce, or that to its retry. The item
waits until the partition leases it. The order of leases and the instants at which they are granted
are taken from the log of the partition, as the first replica applies it. So a lease that was
granted before its delivery, as those of streams are, counts when it was granted, and a lease that
no client has received counts as well.

Nothing is claimed of the order

    of items of one priority
    over partitions
    of items that a client did not see come back: of lapsed leases, of leases that a node gave back,
    of items that came due, or that came from another queue or partition
    of items with a key, which may be held while the number of partitions changes
    where payloads are damaged, because leases pass over damaged blocks (`trusts_order`)
    of items that gain priority with time: the queue has no such setting
"""

from collections.abc import Iterable, Iterator, Sequence

from querator.model.calls import LeasedRun
from querator.model.commands import LeaseGrant, LeaseResult
from querator.model.ids import parse_lease_id
from querator.model.limits import PRIORITY_MAX
from querator.partition import masks

Values = frozenset[int]


class Change:
    """An unanswered change of items to one priority."""

    def __init__(self, references: Iterable[str], priority: int) -> None:
        self.priority = priority
        self.before: dict[str, Values] = dict.fromkeys(references, Values())
        self.mixed: set[str] = set()
        """Items of which another change was open at the same time."""


class Ranks:
    """Instants ending in `_us` are of virtual time. A place is a group and a sequence."""

    def __init__(self, *, trusts_order: bool = True) -> None:
        self.trusts_order = trusts_order
        self.compared = 0
        """Leases that had a waiting item of another priority beside those that they took."""
        self._values: dict[str, list[tuple[int, Values]]] = {}
        """What the priority of an item may be, from instants on."""
        self._open: dict[str, list[Change]] = {}
        self._late: dict[str, Values] = {}
        """Priorities by changes that may be executed at any time."""
        self._anywhere: set[int] = set()
        """Priorities that any item may have got."""
        self._keyed: set[str] = set()
        self._granted_us: dict[tuple[int, int], int] = {}
        """When leases were granted, by group and number."""
        self._holders: dict[tuple[int, int], int] = {}
        """The last lease of each place."""
        self._waiting: dict[int, dict[int, str]] = {}
        """Items that certainly wait, by group and sequence."""
        self._wrong: list[tuple[str, int, int]] = []
        """(what is wrong, from, to): it is right if any item may have a priority between these."""
        self._found: list[str] = []

    # --- what clients know -------------------------------------------------------------------

    def producing(
        self, references: Sequence[str], priorities: Sequence[int], now_us: int, *, keyed: bool
    ) -> None:
        """A produce begins."""
        for reference, priority in zip(references, priorities, strict=True):
            self._values[reference] = [(now_us, Values((priority,)))]
        if keyed:
            self._keyed.update(references)

    def stored(self, group: int, seq: int, reference: str) -> None:
        """A produce was answered: the item is ready unless it was leased meanwhile."""
        if (group, seq) not in self._holders:
            self._waits(group, seq, reference)

    def returned(self, lease_id: str, seq: int, reference: str) -> None:
        """A retry was answered: the item was ready at once, and still is unless it was leased."""
        group, _, number = parse_lease_id(lease_id, field="lease_id")
        if self._holders.get((group, seq)) == number:
            self._waits(group, seq, reference)

    def _waits(self, group: int, seq: int, reference: str) -> None:
        if reference in self._values and reference not in self._keyed:
            self._waiting.setdefault(group, {})[seq] = reference

    def changing(self, now_us: int, references: Iterable[str], priority: int) -> Change:
        """A change begins."""
        change = Change((one for one in references if one in self._values), priority)
        for reference in change.before:
            there = self._open.setdefault(reference, [])
            for other in there:
                other.mixed.add(reference)
            if there:
                change.mixed.add(reference)
            there.append(change)
            change.before[reference] = before = self._now(reference)
            self._become(reference, now_us, before | {priority})
        return change

    def changed(
        self, now_us: int, change: Change, done: Iterable[str], undone: Iterable[str]
    ) -> None:
        """A change has ended. It was executed once for the items `done`, and never for `undone`. It
        may be executed at any time for the others.
        """
        known = dict.fromkeys(done, Values((change.priority,)))
        known.update((one, change.before[one]) for one in undone if one in change.before)
        for reference in change.before:
            self._open[reference].remove(change)
            if reference not in known:
                late = self._late.get(reference, Values())
                self._late[reference] = late | {change.priority}
            elif reference not in change.mixed:
                self._become(reference, now_us, known[reference])

    def wait(self, group: int, seq: int) -> int:
        """The number of the wait of an item; 0 unless it certainly waits."""
        if seq not in self._waiting.get(group, ()):
            return 0
        return 1 + self._holders.get((group, seq), 0)

    def refused(self, group: int, seq: int, reference: str, wait: int) -> None:
        """A change was refused because the item is not waiting. `wait`: its wait before the
        call.
        """
        if wait and self.wait(group, seq) == wait:
            self._found.append(f"{reference}: waits at {seq} of group {group}, and was not changed")

    def astray(self, priority: int) -> None:
        """A change may have met other items than those it was meant for."""
        self._anywhere.add(priority)

    def delivered(self, batch: LeasedRun, references: Iterable[str]) -> None:
        if not self._values:
            return
        group, _, number = parse_lease_id(batch.lease_id, field="lease_id")
        granted_us = self._granted_us.get((group, number))
        if granted_us is not None:
            for reference in references:
                self._see(reference, batch.priority, granted_us, granted_us, "delivered")

    def peeked(self, begun_us: int, now_us: int, reference: str, priority: int) -> None:
        """The answer to a peek that was called at `begun_us`."""
        self._see(reference, priority, begun_us, now_us, "peeked")

    def _see(self, reference: str, priority: int, from_us: int, until_us: int, what: str) -> None:
        """What is seen at some instant of a span."""
        history = self._values.get(reference, ())
        right: set[int] = set()
        for place, (since_us, values) in enumerate(history):
            ends_us = history[place + 1][0] if place + 1 < len(history) else until_us
            if since_us <= until_us and from_us <= ends_us:
                right |= values
        if right and priority not in right:
            text = f"{reference}: {what} with priority {priority}, has {sorted(right)}"
            self._wrong.append((text, priority, priority))

    # --- what the log says -------------------------------------------------------------------

    def granted(self, now_us: int, group: int, result: LeaseResult) -> None:
        """The first replica has applied a lease command."""
        if not self._values:
            # Nothing has a priority, as in most seeds.
            return
        taken: dict[int, int] = {}
        for grant in result.grants:
            if not isinstance(grant, LeaseGrant) or grant.repeated:
                continue
            for segment in grant.segments:
                number = segment.lease or grant.lease
                self._granted_us[group, number] = now_us
                for ordinal in masks.ordinals(segment.mask):
                    self._holders[group, segment.first_seq + ordinal] = number
                    taken[segment.first_seq + ordinal] = segment.priority
        waiting = self._waiting.get(group)
        if not taken or not waiting:
            return
        for seq in taken:
            waiting.pop(seq, None)
        self._judge_order(group, max(taken.values()), waiting)

    def _judge_order(self, group: int, last: int, waiting: dict[int, str]) -> None:
        """`last`: the priority of the least urgent item that a lease took."""
        if not self.trusts_order:
            return
        others = False
        for seq, reference in waiting.items():
            most = max(self._now(reference))
            others = others or most != last
            if most < last:
                text = (
                    f"{reference}: waits at {seq} of group {group} with priority {most}, "
                    f"and one of {last} was leased"
                )
                self._wrong.append((text, last, PRIORITY_MAX))
        self.compared += others

    # --- the end -----------------------------------------------------------------------------

    def judge(self) -> Iterator[str]:
        """What is wrong."""
        yield from self._found
        for text, least, most in self._wrong:
            if not any(least <= priority <= most for priority in self._anywhere):
                yield text

    def _now(self, reference: str) -> Values:
        return self._values[reference][-1][1]

    def _become(self, reference: str, now_us: int, values: Values) -> None:
        values |= self._late.get(reference, Values())
        self._values[reference].append((now_us, values))
