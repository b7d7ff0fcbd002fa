"""Recurrences: items that a queue produces by itself, at the times of a cron expression or of an
interval.

The first partition of a queue keeps its recurrences. A *due time* is an instant that the expression
or the interval gives. A *run* is the decision about one due time: an item, or none because of a
policy.

    due time            from the cron expression in its time zone, or from the interval
    fire time           due time, and a part of the jitter: not before it the run is decided
    missed              not decided when MISSED_AFTER has passed since the end of the jitter
"""

from enum import IntEnum
from hashlib import blake2b

import msgspec

from querator.model import limits
from querator.model.item_options import NO_SLOT, FlowNames, ItemSpecial


class MissedRuns(IntEnum):
    """What becomes of due times that were missed. The wire uses the same numbers."""

    SKIP = 1
    ONE = 2
    ALL = 3


class Overlap(IntEnum):
    """Whether a run waits for the item of the run before. The wire uses the same numbers."""

    ALLOW = 1
    SKIP = 2


class RecurrenceSpec(msgspec.Struct, frozen=True, array_like=True):
    """What an operator decides about a recurrence. `cron` empty: it has an interval. The due times
    of an interval are the instants that leave `phase_ms` when they are divided by it; -1: as the
    instant of the creation does. `missed_max` is the number of missed runs of the policy ALL.
    `item` is the template: the wire bytes of an item, without tag and length.
    """

    cron: str = ""
    time_zone: str = ""
    interval_ms: int = 0
    phase_ms: int = -1
    jitter_ms: int = 0
    missed: MissedRuns = MissedRuns.ONE
    missed_max: int = limits.MISSED_RUNS_DEFAULT
    missed_after_ms: int = limits.MISSED_AFTER_MS_DEFAULT
    overlap: Overlap = Overlap.ALLOW
    item: bytes = b""

    @property
    def schedule(self) -> tuple[str, str, int, int, int]:
        """What decides when it fires. A change of it begins the due times again."""
        return self.cron, self.time_zone, self.interval_ms, self.phase_ms, self.jitter_ms


class RecurrenceRow(msgspec.Struct, frozen=True, array_like=True):
    """A recurrence as an operator has made it. `revision` grows with each change."""

    name: str
    spec: RecurrenceSpec
    revision: int
    paused: bool
    created_ms: int


class DecidedSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All due times from the first to the last have been decided, none of them as missed."""

    from_ms: int
    upto_ms: int


class RunsRow(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a recurrence. All due times up to `after_ms` are decided. The next one is
    `next_due_ms` (0: the leader has not said yet). `place_ms` is the row's place in the index of
    times: when the next run can be decided, 0: now, -1: never, because it is paused.

    `spans` ascend. They matter when an operator puts time back (`partition.redate`): no due time in
    them gets a second item. `is_open`: the next decided due time continues the last span before it.

    `fired` is the number of the last item, and `skipped` counts due times without one because the
    last item was not finished. `missed` counts the missed ones that were skipped, at most
    MISSED_COUNTED_MAX of each gap. `last_seq` is 0 if the last item has gone to the partition of
    its key. `error`: why the next due time could not be found.
    """

    after_ms: int
    place_ms: int = 0
    next_due_ms: int = 0
    spans: tuple[DecidedSpan, ...] = ()
    is_open: bool = False
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    last_due_ms: int = 0
    last_at_ms: int = 0
    last_seq: int = 0
    error: str = ""


class RecurrenceState(msgspec.Struct, frozen=True, array_like=True):
    """A recurrence with its progress. `number` is never used again in its queue."""

    number: int
    row: RecurrenceRow
    runs: RunsRow


class RunCounts(msgspec.Struct, frozen=True):
    """The runs of a partition's recurrences: due times with an item, and without one because the
    last item was not finished, or because they were missed. `late_ms` sums up how long after their
    fire times the items came. `waits_since_ms`: the earliest fire time of a run that waits for the
    leader; 0: none waits.
    """

    fired: int = 0
    skipped: int = 0
    missed: int = 0
    late_ms: int = 0
    waits_since_ms: int = 0


def jitter_ms(group: int, number: int, spec: RecurrenceSpec, due_ms: int) -> int:
    """How long after its due time a run fires: the same on every node, so that it can be listed
    ahead.
    """
    if not spec.jitter_ms:
        return 0
    name = group.to_bytes(8, "big") + number.to_bytes(8, "big") + due_ms.to_bytes(8, "big")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") % (spec.jitter_ms + 1)


# --- commands and results --------------------------------------------------------------------


class PutRecurrence(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Makes a recurrence (`revision` 0), or gives another specification to one of this revision. A
    repeat finds what it wants, and changes nothing.
    """

    name: str
    spec: RecurrenceSpec
    revision: int = 0


class PauseRecurrence(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=41):
    """Pauses a recurrence, or lets it continue with the due times after now."""

    name: str
    paused: bool


class DeleteRecurrence(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=42):
    """Deletes a recurrence. Items that it has produced stay."""

    name: str


class Remind(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=43):
    """Time has come for runs: the effects say so to the leader's service, which proposes Fire."""


class Fire(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """Decides the due times of a recurrence up to `upto_ms`, if its revision, its `after_ms` and
    the number of its next item are those that the leader has seen.

    `due_ms` are the due times that run, in ascending order. If runs may overlap, each of them has
    an item in the attachment, in order; `lengths` and `specials` are as in `Produce`. Otherwise
    there is one item: it is for the first due time, unless the last item is not finished. `missed`
    counts due times that are skipped. Then comes `next_due_ms`, which fires at `next_at_ms`.
    `error`: the next due time is not known, and is looked for at `next_at_ms`.

    `flows` names the group or key of the items, which they share. A key has a `slot`: by `routing`
    it belongs to the partition with the number `partition` and the group `target_group` (0: to
    this one).
    """

    recurrence: int
    revision: int
    after_ms: int
    number: int
    due_ms: tuple[int, ...]
    lengths: bytes
    specials: tuple[ItemSpecial, ...]
    missed: int
    upto_ms: int
    next_due_ms: int
    next_at_ms: int
    error: str = ""
    flows: FlowNames | None = None
    slot: int = NO_SLOT
    routing: int = 0
    partition: int = 0
    target_group: int = 0


RecurrenceCommand = PutRecurrence | PauseRecurrence | DeleteRecurrence | Remind | Fire


class RecurrenceResult(msgspec.Struct, frozen=True):
    """The recurrence after a command of an operator; of a deleted one, what it was. `changed`:
    the command has changed it.
    """

    recurrence: RecurrenceState
    changed: bool
