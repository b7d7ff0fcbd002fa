"""Client programs: they use the service as the SDK does, and record what they saw.

Each program does one thing after the other at one queue. When a call is not answered, or its
outcome is unknown, the program sends it again to another node where that is safe, until there is an
answer or the program gives up.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from struct import pack
from typing import TYPE_CHECKING, Any, Protocol

from querator.model.calls import (
    CompleteCall,
    ExtendCall,
    LeaseCall,
    LeasedRanges,
    LeasedRun,
    LoadedItems,
    ProduceCall,
    ProducedBatch,
    RetryCall,
    SettleReply,
)
from querator.model.commands import ItemSpecial
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import MIB
from querator.model.queues import Queue
from querator.model.routing import slot_of_key
from querator.node_core import NodeCore
from tests.checkers import history
from tests.checkers.history import History, Recorder
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole import runs, tries
from tests.simulation.whole.chains import Chains
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.node import Lost, WholeNode
from tests.simulation.whole.plans import Plans
from tests.simulation.whole.ranks import Ranks
from tests.simulation.whole.stub import Ask, Shores, Stub

if TYPE_CHECKING:
    from tests.simulation.whole.answers import Answers
    from tests.simulation.whole.choosing import Choices
    from tests.simulation.whole.feeds import Feeds
    from tests.simulation.whole.lives import Lives
    from tests.simulation.whole.pausing import Pauses
    from tests.simulation.whole.progress import Progress
    from tests.simulation.whole.replacing import Replacing
    from tests.simulation.whole.sweeping import Sweeps
    from tests.simulation.whole.uniques import Uniques
    from tests.simulation.whole.workers import WorkerProcess

Held = dict[int, str]
"""Items of one lease: sequence to reference."""
NAMESPACE = "default"
GIVE_UP_S = 20.0
PATIENCE_S = (1.0, 3.0, 8.0)
AGAIN_S = (0.01, 0.15)
RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER,
        ErrorCode.UNAVAILABLE,
        ErrorCode.STORAGE_FULL,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.OVERLOADED,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.QUEUE_PAUSED,
    }
)


class Ground(Shores, Protocol):
    seed: int
    recorder: Recorder
    ledger: Ledger
    chains: Chains
    plans: Plans
    ranks: Ranks
    sweeps: "Sweeps"
    pauses: "Pauses"
    feeds: "Feeds"
    choices: "Choices"
    uniques: "Uniques"
    lives: "Lives"
    worker_processes: "list[WorkerProcess]"
    tries: "tries.Tries"
    progress: "Progress"
    answers: "Answers"
    runs: "runs.Runs"
    winding: frozenset[str]
    """Queues without a history."""
    replacing: "Replacing"

    def queue(self, name: str) -> Queue | None: ...


@dataclass
class Ended:
    """The end of a call: a result, an error that is an answer, or neither (given up). `unknown`: an
    attempt may have been executed without an answer.
    """

    result: Any = None
    error: QueratorError | None = None
    unknown: bool = False
    tries: int = 0
    gave_up: bool = True


def wire_item(
    payload: bytes,
    *,
    group: bytes = b"",
    key: bytes = b"",
    kind: bytes = b"",
    attribute: tuple[bytes, bytes] | None = None,
) -> bytes:
    """An item as a client sends it: field 15, which contains field 1, and perhaps 2, 5, 7 and 8."""
    inner = b"\x0a" + _varint(len(payload)) + payload
    pair = b""
    if attribute is not None:
        for tag, text in zip((b"\x0a", b"\x12"), attribute, strict=True):
            pair += tag + _varint(len(text)) + text
    for tag, text in ((b"\x12", kind), (b"\x2a", pair), (b"\x3a", group), (b"\x42", key)):
        if text:
            inner += tag + _varint(len(text)) + text
    return b"\x7a" + _varint(len(inner)) + inner


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def references_in(items: bytes) -> list[str]:
    """The payloads of items that begin with them: a reference and spaces."""
    found, at = [], 0
    while at < len(items):
        size, at = _read_varint(items, at + 1)
        end = at + size
        length, begin = _read_varint(items, at + 1)
        found.append(items[begin : begin + length].decode().strip())
        at = end
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def seqs_of(loaded: LoadedItems) -> list[int]:
    ordinals = loaded.ordinals or range(loaded.count)
    return [loaded.first_seq + ordinal for ordinal in ordinals]


class Calling:
    """One client: its calls, and its records of them. `queue` is the queue that it calls for."""

    def __init__(self, ground: Ground, name: str, queue: str, chance: random.Random) -> None:
        self.name = name
        self.queue = queue
        self._ground = ground
        self._chance = chance
        self._stub = Stub(ground, chance)
        self._preferred = ""

    def _choose(self) -> WholeNode:
        nodes = [node for node in self._ground.whole_nodes() if not node.gone]
        for node in nodes:
            if node.name == self._preferred:
                return node
        node = self._chance.choice(nodes)
        self._preferred = node.name
        return node

    async def call(
        self, what: str, ask: Ask, *, again: bool, give_up_s: float = GIVE_UP_S
    ) -> Ended:
        """`again`: whether the call may be repeated when its outcome is unknown."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + give_up_s
        ended = Ended()
        while loop.time() < until_s:
            node = self._choose()
            ended.tries += 1
            patience_s = min(self._chance.choice(PATIENCE_S), until_s - loop.time() + 0.1)
            try:
                ended.result = await self._stub.call(node, ask, patience_s=patience_s)
            except Lost:
                ended.unknown = True
            except QueratorError as error:
                if error.code not in RETRIED:
                    ended.error = error
                    ended.gave_up = False
                    break
                ended.unknown = ended.unknown or error.code is ErrorCode.OUTCOME_UNKNOWN
            else:
                ended.gave_up = False
                break
            if ended.unknown and not again:
                break
            self._preferred = ""
            await asyncio.sleep(self._chance.uniform(*AGAIN_S))
        timeline = self._ground.timeline
        came = ended.error.code.name if ended.error else type(ended.result).__name__
        timeline.note("client", self.name, what, came, ended.tries)
        if timeline.told:
            timeline.tell(self.name, f"{what}: {ended.error or ended.result}"[:300])
        return ended

    def unexpected(self, what: str, ended: Ended) -> None:
        self._ground.found(f"{self.name}: {what} at {self.queue} ended with {ended.error!r}")

    def _begin(self, request: history.Request) -> history.Pending:
        recorder = self._ground.recorder
        if self.queue in self._ground.winding:
            recorder = Recorder(History(), recorder.clock)
        return recorder.begin(self.name, self.queue, request)

    def _not_answered(self, what: str, ended: Ended, pending: history.Pending) -> None:
        """Ends the operation without a result."""
        if ended.error is not None:
            self.unexpected(what, ended)
        pending.ended(history.Unknown() if ended.unknown else history.Refused("given up"))


class Program(Calling, ABC):
    """Does one thing after the other, and pauses after each."""

    def __init__(
        self, ground: Ground, name: str, queue: str, chance: random.Random, *, pause_us: int
    ) -> None:
        super().__init__(ground, name, queue, chance)
        self.stopped = False
        self.busy = False
        self.operations = 0
        self._pause_us = pause_us

    async def run(self) -> None:
        """Runs until it is stopped."""
        while not self.stopped:
            await asyncio.sleep(self._chance.expovariate(SECOND / self._pause_us))
            if self.stopped:
                return
            self.busy = True
            self.operations += 1
            await self.act()
            self.busy = False

    @abstractmethod
    async def act(self) -> None: ...


class Producing(Program):
    """Produces with an identity, or without one. Without one it does not repeat what may have been
    executed.
    """

    counts: tuple[int, ...] = (1, 1, 3, 10)
    delays_ms: tuple[int, ...] = (300, 1_500)

    def __init__(
        self,
        ground: Ground,
        name: str,
        queue: str,
        chance: random.Random,
        *,
        pause_us: int,
        item_bytes: int,
        delays: bool,
        identified: bool,
        keys: int = 0,
    ) -> None:
        super().__init__(ground, name, queue, chance, pause_us=pause_us)
        self.acknowledged = 0
        self._item_bytes = item_bytes
        self._delays = delays
        self._keys = keys
        # As a UUIDv7, which begins with the time of its birth.
        self._producer = EPOCH_MS.to_bytes(6, "big") + chance.randbytes(10) if identified else b""
        self._sequence = 0
        self._items = 0

    async def act(self) -> None:
        count = self._chance.choice(self.counts)
        references = tuple(self._named(self._items + number) for number in range(count))
        self._items += count
        items = [self._item(reference) for reference in references]
        delay_ms = self._chance.choice(self.delays_ms) if self._delays_now() else 0
        begun_us = self._ground.timeline.now_us
        at_ms = EPOCH_MS + begun_us // MS + delay_ms if delay_ms else 0
        specials = self._specials(references, at_ms)
        self._sequence += bool(self._producer)
        call = ProduceCall(
            NAMESPACE,
            self.queue,
            b"".join(items),
            pack(f"<{count}I", *map(len, items)),
            producer_id=self._producer,
            sequence=self._sequence,
            specials=specials,
            timeout_ms=self._chance.choice((0, 0, 5_000)),
            slots=self._slots(count),
        )
        call = self._sent(call, references)
        recorded = history.Produce(
            references, self._producer.hex(), self._sequence, delay_s=delay_ms / 1000
        )
        pending = self._begin(recorded)
        ended = await self.call(
            "produce", lambda core: core.service.produce(call), again=bool(self._producer)
        )
        if ended.result is None:
            self._not_answered("a produce", ended, pending)
            if ended.unknown:
                self._ground.ledger.produced(references, known=False)
            return
        self._ground.ledger.produced(references, known=True)
        fresh = sum(batch.count for batch in ended.result.batches if not batch.repeated)
        self._ground.pauses.produced(self.queue, begun_us, fresh)
        self.stored(references, begun_us, at_ms, ended.result.batches)
        self.acknowledged += count
        parts = tuple(
            history.ProducedPart(
                batch.partition, batch.first_seq, batch.count, batch.indexes, batch.repeated
            )
            for batch in ended.result.batches
        )
        pending.ended(history.Produced(parts))

    def _named(self, number: int) -> str:
        """The reference of an item."""
        return f"{self.name}.{number}"

    def _item(self, reference: str) -> bytes:
        return wire_item(reference.encode() + b" " * self._chance.randrange(self._item_bytes))

    def _sent(self, call: ProduceCall, references: Sequence[str]) -> ProduceCall:
        """The call as it is sent."""
        return call

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        """Called for acknowledged items; `at_ms` 0: they are ready at once."""

    def _specials(self, references: Sequence[str], at_ms: int) -> tuple[ItemSpecial, ...]:
        """Times and priorities of the items of a call."""
        if not at_ms:
            return ()
        return tuple(ItemSpecial(n, enqueue_at_ms=at_ms) for n in range(len(references)))

    def _slots(self, count: int) -> bytes:
        """Slots of the items' keys, if they have any."""
        if not self._keys:
            return b""
        keys = [b"key %d" % self._chance.randrange(self._keys) for _ in range(count)]
        return pack(f"<{count}H", *map(slot_of_key, keys))

    def _delays_now(self) -> bool:
        return self._delays and self._chance.random() < 0.2


class Consuming(Program):
    """Leases by calls, then completes, releases or extends, or lets leases lapse."""

    completes_all = False
    rejects = 0.0
    """Probability that a retry makes the items dead letters."""
    waits_ms: tuple[int, ...] = (0, 0, 500, 3_000)
    later_ms: tuple[int, ...] = ()
    """Delays of some of the retries."""
    priorities: tuple[int, ...] = ()
    """Priorities that some of the retries give."""
    most: tuple[int, ...] = (1, 5, 40)
    """Numbers of items that a lease may have."""

    async def act(self) -> None:
        most = self._chance.choice(self.most)
        for lease_id, held in (await self.lease(most)).items():
            await self.use(lease_id, held)

    async def lease(self, most: int) -> dict[str, Held]:
        timeout_ms = self._chance.choice((1_000, 2_000, 6_000))
        call = LeaseCall(
            NAMESPACE,
            self.queue,
            client_id=self.name,
            request_id="",
            max_items=most,
            max_bytes=3 * MIB,
            lease_timeout_ms=timeout_ms,
            wait_ms=self._chance.choice(self.waits_ms),
        )
        asked_us = self._ground.timeline.now_us
        pending = self._begin(history.Lease(most, "", timeout_ms / 1000))
        ended = await self.call("lease", lambda core: core.service.lease(call), again=True)
        if ended.result is None:
            self._not_answered("a lease", ended, pending)
            # What an attempt was granted lapses, or is given back.
            pending.ended(history.Leased((), unseen=most * ended.tries))
            return {}
        fresh = sum(batch.loaded.count for batch in ended.result.batches if not batch.repeated)
        self._ground.pauses.leased(self.queue, asked_us, fresh)
        grants = tuple(grant_of(batch) for batch in ended.result.batches)
        pending.ended(history.Leased(grants, unseen=most * ended.tries))
        return self.takes(asked_us, ended.result.batches)

    def takes(self, asked_us: int, batches: Sequence[LeasedRun]) -> dict[str, Held]:
        """Checks what was delivered, by lease."""
        leases: dict[str, Held] = {}
        for batch in batches:
            items = dict(grant_of(batch).items)
            if batch.queue == runs.QUEUE:
                self._ground.ledger.produced(items.values(), known=True)
                self._ground.runs.delivered(batch.partition, items.items())
            self._ground.chains.delivered(items.values())
            self._ground.ledger.delivered(asked_us, items.values())
            self._ground.ranks.delivered(batch, items.values())
            if batch.queue in (tries.QUEUE, tries.DEAD):
                queue = self._ground.queue(tries.QUEUE)
                groups = () if queue is None else queue.groups
                now_us = self._ground.timeline.now_us
                self._ground.tries.delivered(asked_us, now_us, batch, items, groups)
                self._ground.progress.delivered(batch, items)
            leases.setdefault(batch.lease_id, {}).update(items)
        return leases

    async def use(self, lease_id: str, held: Held) -> None:
        kind = self._chance.random()
        if self.completes_all or kind < 0.6:
            await self.complete(lease_id, held)
        elif kind < 0.7:
            await self.complete(lease_id, dict(list(held.items())[: len(held) // 2 + 1]))
        elif kind < 0.85:
            await self.retry(lease_id, held)
        elif kind < 0.95:
            await self.extend(lease_id)

    async def complete(self, lease_id: str, held: Held) -> None:
        runs = history.ranges(list(held))
        pending = self._begin(history.Complete((history.Named(lease_id, runs),)))
        call = CompleteCall(NAMESPACE, self.queue, (LeasedRanges(lease_id, runs),))
        ended = await self.call("complete", lambda core: self.completing(core, call), again=True)
        ledger, now_us = self._ground.ledger, self._ground.timeline.now_us
        if self._settled("a complete", ended, pending):
            [outcome] = ended.result.outcomes
            ledger.completed(now_us, (held[seq] for seq in history.spread(outcome.done)))
            ledger.perhaps_completed(held[seq] for seq in history.spread(outcome.repeated))
            if ended.tries > 1:
                ledger.perhaps_completed(held.values())
        elif ended.unknown or ended.result is not None:
            ledger.perhaps_completed(held.values())
        self.has_completed(ended)

    def has_completed(self, ended: Ended) -> None:
        """Called after a complete."""

    def completing(self, core: NodeCore, call: CompleteCall) -> Awaitable[SettleReply]:
        return core.service.complete(call)

    async def retry(self, lease_id: str, held: Held) -> None:
        runs = history.ranges(list(held))
        counted = self._chance.random() < 0.6
        dead = self._chance.random() < self.rejects
        delay_ms = self._chance.choice((0, *self.later_ms)) if self.later_ms else 0
        priority = self._chance.choice((None, *self.priorities)) if self.priorities else None
        recorded = history.Retry(
            (history.Named(lease_id, runs),),
            count_attempt=counted,
            dead=dead,
            delay_s=delay_ms / 1000,
        )
        pending = self._begin(recorded)
        now_ms = EPOCH_MS + self._ground.timeline.now_us // MS
        call = RetryCall(
            NAMESPACE,
            self.queue,
            (LeasedRanges(lease_id, runs),),
            retry_at_ms=now_ms + delay_ms if delay_ms else 0,
            count_attempt=counted,
            dead=dead,
            priority=priority,
        )
        call = self.made(call)
        self.giving_back(call, held)
        ended = await self.call("retry", lambda core: core.service.retry(call), again=True)
        self._settled("a retry", ended, pending)
        self.gave_back(call, held, ended)

    def made(self, call: RetryCall) -> RetryCall:
        """A retry as it is sent."""
        return call

    def giving_back(self, call: RetryCall, held: Held) -> None:
        """Called before a retry."""

    def gave_back(self, call: RetryCall, held: Held, ended: Ended) -> None:
        """Called after a retry."""

    def _settled(self, what: str, ended: Ended, pending: history.Pending) -> bool:
        """Returns whether the outcome is known."""
        reply: SettleReply | None = ended.result
        if reply is None:
            self._not_answered(what, ended, pending)
            return False
        if any(each.error not in (None, ErrorCode.LEASE_LOST) for each in reply.outcomes):
            pending.ended(history.Unknown())
            return False
        outcomes = tuple(
            history.Outcome(each.lease_id, each.done, each.repeated, each.lost)
            for each in reply.outcomes
        )
        # The node may have repeated the call by itself.
        pending.ended(history.Settled(outcomes, again=True))
        return True

    async def extend(self, lease_id: str) -> None:
        timeout_ms = 2_000
        pending = self._begin(history.Extend((lease_id,), timeout_ms / 1000))
        call = ExtendCall(NAMESPACE, self.queue, (lease_id,), lease_timeout_ms=timeout_ms)
        ended = await self.call("extend", lambda core: core.service.extend(call), again=True)
        if ended.result is None:
            self._not_answered("an extend", ended, pending)
            return
        outcomes = tuple((each.lease_id, bool(each.deadline_ms)) for each in ended.result.outcomes)
        pending.ended(history.Extended(outcomes))


def grant_of(batch: LeasedRun) -> history.Grant:
    items = tuple(zip(seqs_of(batch.loaded), references_in(batch.loaded.items), strict=True))
    return history.Grant(
        batch.lease_id, batch.partition, batch.attempt, items, repeated=batch.repeated
    )
