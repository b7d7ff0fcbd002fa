"""Programs at a queue whose items take winding ways: streams, deaths, redrives, other numbers of
partitions; and queues that come and go.
"""

import asyncio
import random
from collections import deque
from functools import partial
from struct import pack
from typing import Any

from querator.model.calls import CompleteCall, LeaseReply, SubscribeCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import MIB
from querator.model.queues import DEAD_QUEUE_DEFAULT, QueueSettings
from querator.model.txn_calls import AbortCall, CommitCall, CommittedAttempt, StageCall
from querator.node_core import NodeCore
from querator.service.lease.subscriptions import Subscription
from tests.simulation.clock import EPOCH_MS
from tests.simulation.whole.node import Lost, WholeNode
from tests.simulation.whole.programs import (
    NAMESPACE,
    Consuming,
    Ended,
    Ground,
    Producing,
    Program,
    wire_item,
)
from tests.simulation.whole.stub import NobodyListens

YEAR_MS = 365 * 86_400_000


class StreamStub:
    """A lease stream as a client has it: deliveries come in order, until one side ends it."""

    def __init__(
        self, ground: Ground, node: WholeNode, call: SubscribeCall, credit_items: int
    ) -> None:
        self.subscription: Subscription | None = None
        self.core: NodeCore | None = None
        """`NodeCore` of the process that the stream belongs to."""
        self.node = node
        self._ground = ground
        self._call = call
        self._credit_items = credit_items
        self._deliveries: deque[LeaseReply] = deque()
        self._error: BaseException | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._polite = False
        self._cancel: Any = None
        ground.timeline.after(ground.latency_us, self._arrive)

    async def next(self, timeout_s: float) -> LeaseReply | None:
        """The next delivery; None when nothing comes in time. Raises the error that has ended the
        stream.
        """
        loop = asyncio.get_running_loop()
        if not self._deliveries and self._error is None:
            self._waiting = loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiting
            except TimeoutError:
                return None
            finally:
                self._waiting = None
        if self._deliveries:
            return self._deliveries.popleft()
        assert self._error is not None
        raise self._error

    def grant(self, items: int) -> None:
        def arrive() -> None:
            node = self.node
            if self.subscription is not None and not node.paused and self._error is None:
                node.loop.within(self.subscription.grant, items, 0)

        self._ground.timeline.after(self._ground.latency_us, arrive)

    def end_deliveries(self) -> None:
        """Withdraws the credit. Deliveries on their way still come."""

        def arrive() -> None:
            node = self.node
            if self.subscription is not None and not node.paused and self._error is None:
                node.loop.within(self.subscription.end_deliveries)

        self._ground.timeline.after(self._ground.latency_us, arrive)

    def end(self, *, polite: bool) -> None:
        """Ends the stream by a half-close, or by a cut."""

        def arrive() -> None:
            self._polite = polite
            if self._cancel is not None:
                self._cancel()

        self._ground.timeline.after(self._ground.latency_us, arrive)

    # --- on the node's side ------------------------------------------------------------------

    def _arrive(self) -> None:
        if self.node.serves and not self.node.paused:
            self._cancel = self.node.call(self._serve, self._ended)
        else:
            self._ended(None, NobodyListens(self.node.name))

    async def _serve(self, core: NodeCore) -> None:
        subscription = await core.service.subscribe(self._call)
        self.subscription, self.core = subscription, core
        subscription.grant(self._credit_items, 0)
        try:
            while True:
                got = partial(self._got, await subscription.next())
                self._ground.timeline.after(self._ground.latency_us, got)
        finally:
            await subscription.close(polite=self._polite)

    def _ended(self, _: Any, error: BaseException | None) -> None:
        def end() -> None:
            self._error = error or Lost(self.node.name)
            self._wake()

        self._ground.timeline.after(self._ground.latency_us, end)

    def _got(self, reply: LeaseReply) -> None:
        if self._error is None:
            self._deliveries.append(reply)
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Streaming(Consuming):
    """Opens one stream after the other, each at another node."""

    rejects = 0.3
    credit_items = 30
    _number = 0
    _stream: StreamStub | None = None

    async def act(self) -> None:
        self._number += 1
        self._preferred = ""
        node = self._choose()
        call = SubscribeCall(
            NAMESPACE,
            self.queue,
            client_id=self.name,
            max_items=self._chance.choice((1, 5, 20)),
            max_bytes=MIB,
            lease_timeout_ms=self._chance.choice((1_000, 3_000)),
            auto_extend=self._chance.random() < 0.3,
            release_on_disconnect=self._chance.random() < 0.3,
            consumer_id=self.name,
            stream_number=self._number,
        )
        stream = self._stream = StreamStub(self._ground, node, call, self.credit_items)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._chance.uniform(1, 6)
        try:
            while loop.time() < until_s and not self.stopped:
                await self._take(stream, 1.0)
            if self._number % 2:
                stream.end_deliveries()
                while await self._take(stream, 0.5):
                    pass
        except Lost:
            pass
        except QueratorError as error:
            if error.code not in (
                ErrorCode.UNAVAILABLE,
                ErrorCode.NOT_LEADER,
                ErrorCode.OVERLOADED,
            ):
                self.unexpected("a stream", Ended(error=error))
        finally:
            stream.end(polite=self._chance.random() < 0.6)
            self._stream = None
        self._ground.timeline.note("stream", self.name, self._number)

    async def _take(self, stream: StreamStub, timeout_s: float) -> bool:
        """Uses the items of the next delivery, and grants credit for them. False if none came."""
        reply = await stream.next(timeout_s)
        if reply is None:
            return False
        for lease_id, held in self.takes(0, reply.batches).items():
            await self.use(lease_id, held)
            stream.grant(len(held))
        return True

    def completing(self, core: NodeCore, call: CompleteCall) -> Any:
        stream = self._stream
        if stream is not None and stream.subscription is not None and stream.core is core:
            return stream.subscription.complete(call)
        return super().completing(core, call)


class Redriving(Program):
    """Redrives dead letters."""

    async def act(self) -> None:
        ended = await self.call(
            "redrive",
            lambda core: core.admin.redrive_dead_letters(NAMESPACE, self.queue, ()),
            again=True,
        )
        if ended.error is not None:
            self.unexpected("a redrive", ended)


class GivingUp(Program):
    """Gives up what is damaged on all replicas. Nothing is: at most one disk changes what was
    written.
    """

    async def act(self) -> None:
        ended = await self.call(
            "give up",
            lambda core: core.admin.give_up_damaged(NAMESPACE, self.queue, dry_run=False),
            again=True,
        )
        if ended.error is not None or (ended.result is not None and ended.result[1]):
            self.unexpected(f"giving up {ended.result}", ended)


class Resizing(Program):
    """Gives the queue another number of partitions."""

    async def act(self) -> None:
        partitions = self._chance.choice((1, 2, 3, 4))
        settings = QueueSettings(partitions=partitions)
        ended = await self.call(
            "resize",
            lambda core: core.admin.update_queue(
                NAMESPACE, self.queue, settings, ("partitions",), 0
            ),
            again=True,
        )
        # Another change may be under way.
        allowed = (ErrorCode.LIMIT_EXCEEDED, ErrorCode.VERSION_CONFLICT)
        if ended.error is not None and ended.error.code not in allowed:
            self.unexpected("a resize", ended)


class Passing(Producing):
    """Creates a queue, produces, and deletes the queue while it is under load. Then checks that the
    queue takes nothing more.
    """

    _round = 0

    async def act(self) -> None:
        self._round += 1
        # The first creation makes the default dead queue as well.
        settings = QueueSettings(
            partitions=self._chance.choice((1, 2)), dead_queue=DEAD_QUEUE_DEFAULT
        )
        name = self.queue
        created = await self.call(
            "create",
            lambda core: core.admin.create_queue(NAMESPACE, name, settings),
            again=True,
        )
        if created.error is not None and created.error.code is not ErrorCode.QUEUE_DELETING:
            # QUEUE_NOT_FOUND would be that of the dead queue.
            super().unexpected("a create", created)
        for _ in range(self._chance.randrange(4)):
            await super().act()
        late = asyncio.get_running_loop().create_task(super().act())
        deleted = await self.call(
            "delete", lambda core: core.admin.delete_queue(NAMESPACE, name), again=True
        )
        answered = deleted.error is None and deleted.result is None and not deleted.gave_up
        await late
        if deleted.error is not None and deleted.error.code not in _OF_GOING_QUEUES:
            self.unexpected("a delete", deleted)
        if answered:
            before = self.acknowledged
            await super().act()
            if self.acknowledged > before:
                self._ground.found(f"{self.name}: a produce after the deletion was acknowledged")
        ledger = self._ground.ledger
        own = [one for one in ledger.acknowledged if one.startswith(f"{self.name}.")]
        ledger.dropped.update(dict.fromkeys(own))

    def unexpected(self, what: str, ended: Ended) -> None:
        if ended.error is None or ended.error.code not in _OF_GOING_QUEUES:
            super().unexpected(what, ended)


_OF_GOING_QUEUES = frozenset(
    {ErrorCode.QUEUE_NOT_FOUND, ErrorCode.QUEUE_DELETING, ErrorCode.NAMESPACE_NOT_FOUND}
)


class Wayward(Producing):
    """A client whose clock is wrong by years: its producer ids are older than any partition
    remembers, or lie in the future. Its calls are refused, and do not disturb others.
    """

    async def act(self) -> None:
        years = self._chance.choice((-40, -1, 1, 40))
        born_ms = EPOCH_MS + years * YEAR_MS
        self._producer = born_ms.to_bytes(6, "big") + self._chance.randbytes(10)
        self._sequence = 0
        before = self.acknowledged
        await super().act()
        if self.acknowledged > before:
            self._ground.found(f"{self.name}: was taken for a producer, {years} years wrong")

    def unexpected(self, what: str, ended: Ended) -> None:
        refusals = (ErrorCode.PRODUCER_EXPIRED, ErrorCode.INVALID_ARGUMENT)
        if ended.error is None or ended.error.code not in refusals:
            super().unexpected(what, ended)


class Staging(Program):
    """Batches by transactions: at most one of several attempts counts, then a commit or an
    abort.
    """

    _batch = 0

    async def act(self) -> None:
        self._batch += 1
        ledger = self._ground.ledger
        counting: list[CommittedAttempt] = []
        references: list[str] = []
        for task in range(self._chance.choice((1, 2))):
            staged: CommittedAttempt | None = None
            names: list[str] = []
            for attempt in range(self._chance.choice((1, 1, 2))):
                count = self._chance.choice((1, 4))
                names = [f"{self.name}.{self._batch}.{task}.{attempt}.{n}" for n in range(count)]
                staged = await self._stage(task, attempt, names)
                ledger.staged.update(dict.fromkeys(names))
            if staged is not None:
                counting.append(staged)
                references += names
        if self._chance.random() < 0.2 or not counting:
            await self._abort()
            return
        # From here on the items may be seen.
        for name in references:
            del ledger.staged[name]
        call = CommitCall(NAMESPACE, self.queue, self.name, self._batch, tuple(counting))
        ended = await self.call("commit", lambda core: core.service.commit(call), again=True)
        if ended.result is not None:
            ledger.produced(references, known=True)
        elif ended.error is not None and ended.error.code is ErrorCode.TRANSACTION_ABORTED:
            ledger.staged.update(dict.fromkeys(references))
        else:
            if ended.error is not None:
                self.unexpected("a commit", ended)
            ledger.produced(references, known=False)

    async def _stage(self, task: int, attempt: int, names: list[str]) -> CommittedAttempt | None:
        items = [wire_item(name.encode()) for name in names]
        token = attempt.to_bytes(16, "big")
        call = StageCall(
            namespace=NAMESPACE,
            queue=self.queue,
            producer=self.name,
            batch=self._batch,
            task=task,
            attempt=token,
            sequence=1,
            items=b"".join(items),
            lengths=pack(f"<{len(items)}I", *map(len, items)),
        )
        ended = await self.call("stage", lambda core: core.service.stage(call), again=True)
        if ended.result is None:
            if ended.error is not None and ended.error.code is not ErrorCode.TRANSACTION_ABORTED:
                self.unexpected("a stage", ended)
            return None
        return CommittedAttempt(task, token, ended.result.parts)

    async def _abort(self) -> None:
        call = AbortCall(NAMESPACE, self.queue, self.name, self._batch)
        ended = await self.call("abort", lambda core: core.service.abort(call), again=True)
        if ended.error is not None:
            self.unexpected("an abort", ended)


def winding_programs(chance: random.Random) -> list[type[Program]]:
    """Further programs of one seed, in addition to producers and consumers."""
    kinds: list[type[Program]] = [Streaming, Redriving, Resizing, Staging]
    return [kind for kind in kinds if chance.random() < 0.6]
