"""Programs at a queue with recurrences: an operator makes, pauses, continues, changes and deletes
them, and consumers take their items. What they see goes to `runs`, which has the rules. The queue
is plain, fair or keyed, and the items have groups or keys.
"""

import random
from functools import partial
from typing import Any

from querator.model.errors import ErrorCode
from querator.model.queues import QueueKind
from querator.model.recurrence_calls import (
    CreateRecurrenceCall,
    PauseRecurrenceCall,
    RecurrenceCall,
    RecurrenceTimesCall,
    ShownRecurrence,
    UpdateRecurrenceCall,
)
from querator.model.recurrences import MissedRuns, Overlap, RecurrenceSpec
from querator.model.routing import partition_of_key
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS
from tests.simulation.whole.programs import NAMESPACE, Program, wire_item
from tests.simulation.whole.runs import TEMPLATE

LIVE_MAX = 4
NAMES = (b"", b"a", b"b.c", b"d")
"""Groups and keys of the items."""


def kind_of(seed: int) -> QueueKind:
    kinds = (QueueKind.PLAIN, QueueKind.PLAIN, QueueKind.FAIR, QueueKind.KEYED)
    return random.Random(f"kind of recurring {seed}").choice(kinds)


def settings_of(seed: int) -> dict[str, Any]:
    return {"kind": kind_of(seed)}


def _template(kind: QueueKind, name: bytes) -> bytes:
    """An item without its tag and length."""
    return wire_item(
        TEMPLATE,
        group=name if kind is QueueKind.FAIR else b"",
        key=name if kind is QueueKind.KEYED else b"",
    )[2:]


class Setting(Program):
    """The operator. Names are not used again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._live: list[str] = []
        self._paused: dict[str, int] = {}
        """Since when a recurrence certainly rests (ms)."""
        self._count = 0
        self._kind = kind_of(self._ground.seed)

    def _now_ms(self) -> int:
        return EPOCH_MS + self._ground.timeline.now_us // MS

    async def act(self) -> None:
        kind = self._chance.random()
        if len(self._live) < 2 or (len(self._live) < LIVE_MAX and kind < 0.2):
            await self._make()
            return
        name = self._chance.choice(self._live)
        if kind < 0.4:
            await self._pause(name)
        elif kind < 0.5:
            await self._change(name)
        elif kind < 0.6:
            await self._delete(name)
        else:
            await self._look(name)

    async def _make(self) -> None:
        self._count += 1
        name = f"{self.name}.{self._count}"
        called = self._chance.choice(NAMES) if self._kind is not QueueKind.PLAIN else b""
        keyed = self._kind is QueueKind.KEYED and bool(called)
        overlaps = (Overlap.ALLOW, Overlap.ALLOW, Overlap.ALLOW if keyed else Overlap.SKIP)
        spec = RecurrenceSpec(
            interval_ms=1_000 * self._chance.choice((1, 1, 2)),
            phase_ms=0,
            jitter_ms=self._chance.choice((0, 0, 700)),
            missed=self._chance.choice((MissedRuns.ALL, MissedRuns.ALL, MissedRuns.ONE)),
            missed_max=1_000,
            missed_after_ms=1_000,
            overlap=self._chance.choice(overlaps),
            item=_template(self._kind, called),
        )
        call = CreateRecurrenceCall(NAMESPACE, self.queue, name, spec=spec)
        ended = await self.call(
            "create", lambda core: core.admin.recurrences.create(call), again=True
        )
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a create", ended)
            return
        shown: ShownRecurrence = ended.result
        self._ground.runs.made(
            name,
            spec.interval_ms,
            shown.recurrence.row.created_ms,
            home=self._home(called) if keyed else None,
        )
        self._live.append(name)

    def _home(self, key: bytes) -> int | None:
        """The partition of a key, if the number of partitions stays."""
        queue = self._ground.queue(self.queue)
        if queue is None or changes_partitions(self._ground.seed):
            return None
        return partition_of_key(key, queue.routed_partitions)

    async def _pause(self, name: str) -> None:
        """Pauses it, or lets it continue."""
        self._ground.runs.changed(name)
        since_ms = self._paused.pop(name, None)
        begun_ms = self._now_ms()
        if since_ms is not None:
            self._ground.runs.rested(name, since_ms, begun_ms)
        call = PauseRecurrenceCall(NAMESPACE, self.queue, name, paused=since_ms is None)
        ended = await self.call(
            "pause", lambda core: core.admin.recurrences.pause(call), again=True
        )
        if ended.error is not None:
            self.unexpected("a pause", ended)
        if call.paused and ended.result is not None:
            self._paused[name] = self._now_ms()

    async def _change(self, name: str) -> None:
        self._ground.runs.changed(name)
        spec = RecurrenceSpec(jitter_ms=self._chance.choice((0, 300)))
        call = UpdateRecurrenceCall(NAMESPACE, self.queue, name, spec=spec, mask=("jitter_ms",))
        ended = await self.call(
            "update", lambda core: core.admin.recurrences.update(call), again=True
        )
        if ended.error is not None:
            self.unexpected("an update", ended)

    async def _delete(self, name: str) -> None:
        self._live.remove(name)
        since_ms = self._paused.pop(name, None)
        if since_ms is not None:
            self._ground.runs.rested(name, since_ms, self._now_ms())
        ended = await self.call("delete", partial(_deletion, name, self.queue), again=True)
        if ended.result is not None:
            self._ground.runs.deleted(name, self._now_ms())
        elif ended.error is not None:
            if ended.error.code is not ErrorCode.RECURRENCE_NOT_FOUND or ended.tries == 1:
                self.unexpected("a deletion", ended)
            self._ground.runs.deleted(name, self._now_ms())

    async def _look(self, name: str) -> None:
        call = RecurrenceTimesCall(NAMESPACE, self.queue, name, count=3)
        ended = await self.call("next", lambda core: core.admin.recurrences.times(call), again=True)
        if ended.error is not None:
            self.unexpected("coming times", ended)

    async def finish(self) -> None:
        """Deletes all that are left, after the faults."""
        for name in self._live:
            begun_ms = self._now_ms()
            since_ms = self._paused.pop(name, None)
            if since_ms is not None:
                self._ground.runs.rested(name, since_ms, begun_ms)
            ended = await self.call("end", partial(_deletion, name, self.queue), again=True)
            if ended.error is not None:
                self.unexpected("the last deletion", ended)
            elif ended.result is not None:
                self._ground.runs.deleted(name, self._now_ms())
                self._ground.runs.ended(name, begun_ms, ended.result.recurrence.runs)
        self._live = []


def _deletion(name: str, queue: str, core: Any) -> Any:
    return core.admin.recurrences.delete(RecurrenceCall(NAMESPACE, queue, name))


def changes_partitions(seed: int) -> bool:
    return random.Random(f"recurring {seed}").random() < 0.5
