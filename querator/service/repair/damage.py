"""Blocks whose payload this node cannot read: set aside, reported, and repaired.

    found ──► aside: leases that are led here name the block, and skip its items
                │    requested from the other replicas, one block of the node at a time
                ▼
    a replica has it whole ──► written again ──► ready, and waiters are notified
    none has it            ──► aside; requested again after a pause

Unreadable items of a lease are released without counting an attempt. Damage concerns this node's
disk alone: another leader leases the same items as long as it can read them. So the log contains
nothing of it except the list of blocks in each lease command, because all replicas must skip the
same blocks.

A replica answers for an attachment only after it has applied the entry with the attachment: before
that, it might have another entry at this index. The bytes are checked against the checksum of the
row, which covers the row's key, and against the length that the block has here.

Longer than 500 lines: finding, repairing and reporting a block share what is known of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from querator import telemetry
from querator.model.calls import BlockDamage
from querator.model.commands import LeaseItems, PartitionEffects, Retry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId, LeaseNumber
from querator.model.limits import (
    ASIDE_BLOCKS_MAX,
    DAMAGED_BLOCKS_MAX,
    MEND_ANSWER_MS,
    MEND_PAUSE_MS_MAX,
    MEND_PAUSE_MS_MIN,
    OVERLOADED_RETRY_MS,
)
from querator.model.nodes import node_name
from querator.partition import payloads, queries
from querator.partition.payloads import BlockDamaged
from querator.partition.rows import RowState
from querator.service.repair.aside import AsideBlock, AsideBlocks
from querator.service.routing.forwarder import Payload, PayloadQuery
from querator.service.routing.outcomes import Accepted, as_answer, defect_error
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage import attachments, generations
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import Environment, ReadTransaction, StorageCorrupt
from querator.storage.sealed import SEAL_BYTES, checksum
from querator.storage.tables import ATTACHMENTS

if TYPE_CHECKING:
    from querator.raft.host import Host

RECOUNT_S = 0.1
"""Delay before ready items are counted again, because effects may be reported before they can be
read.
"""

UNCOUNTED_S = 1.0
"""The same delay, when the rows to count could not be read."""

UNMENDED_S = 3 * MEND_ANSWER_MS / 1000
"""Time after which no more blocks are tried for a waiting operator."""
NOT_WHOLE = ("payload", "not whole")
"""Field and value of the refusal of a replica that will never have the block whole."""
OUT_OF_PLACE = (RowState.LEASED, RowState.RESERVED)
"""States of items that are not given up: their holder may have received them while they
were whole.
"""

_log = telemetry.logger(__name__)


class NowhereWhole(QueratorError):
    """Every other replica has answered, and none has the block whole."""


class Unread(msgspec.Struct, frozen=True):
    """Items of a lease that cannot be delivered. `error` None: their block is gone, or another node
    could not read it and has released them. `mask` is known on the leader's node only.
    """

    route: PartitionRoute
    lease: int
    first_seq: int
    mask: int
    items: int
    bytes: int
    repeated: bool
    error: StorageCorrupt | None = None


class DamageStats(msgspec.Struct, frozen=True):
    """Numbers of blocks since the start; `aside`: blocks that are damaged at present, by group."""

    found: int
    mended: int
    aside: dict[GroupId, int]


class DamagedBlocks:
    """Damaged blocks of one node. Used on the event loop."""

    def __init__(
        self,
        host: "Host",
        router: Router,
        *,
        aside: AsideBlocks,
        environment: Environment,
        on_effects: Callable[[GroupId, PartitionEffects], None],
    ) -> None:
        """`on_effects` receives the ready items of a partition, without those that are
        set aside.
        """
        self._host = host
        self._router = router
        self._environment = environment
        self._on_effects = on_effects
        self._loop = asyncio.get_running_loop()
        self._blocks = aside.by_group
        self._rows: dict[GroupId, dict[tuple[int, int], AsideBlock]] = {}
        """By index and part: attachments that could not be sent to another replica."""
        self._recounts: dict[GroupId, asyncio.TimerHandle] = {}
        self._uncounted: set[GroupId] = set()
        """Groups whose ready items could not be read: nothing is leased until they can be."""
        self._mender: asyncio.Task[None] | None = None
        self._mending = asyncio.Lock()
        self._wake = asyncio.Event()
        self._found = self._mended = 0
        self._stopped = False

    def stats(self) -> DamageStats:
        return DamageStats(
            self._found,
            self._mended,
            {group: len(blocks) for group, blocks in self._blocks.items()},
        )

    def set_aside(self, group: GroupId) -> Collection[int]:
        """The first sequences of the blocks of the partition that are set aside here."""
        return self._blocks.get(group, ())

    def items(self, group: GroupId) -> tuple[int, int]:
        """Number of blocks of the partition that are set aside here, and of their items."""
        blocks = self._blocks.get(group)
        if not blocks:
            return 0, 0
        with self._environment.snapshot() as txn:
            return len(blocks), payloads.items_left(generations.view(txn, group), group, blocks)

    async def unmended(self, group: GroupId) -> tuple[BlockDamage, ...]:
        """The blocks of a partition led here that cannot be repaired, after one more attempt. When
        replicas take long, the remaining blocks are not tried.
        """
        found = []
        latest = self._loop.time() + UNMENDED_S
        for first_seq, block in sorted(self._blocks.get(group, {}).items()):
            lost, reason = False, "the replicas were not asked: they take long to answer"
            try:
                if self._loop.time() < latest:
                    await self._mend(group, first_seq, block)
                    continue
            except NowhereWhole as error:
                lost, reason = True, error.message
            except Exception as defect:  # noqa: BLE001 - the other blocks are checked in any case
                reason = as_answer(defect, "repairing a block").message
            with self._environment.snapshot() as txn:
                view = generations.view(txn, group)
                items = payloads.items_left(view, group, [first_seq])
                kept = payloads.items_left(view, group, [first_seq], OUT_OF_PLACE)
            name = self._router.name
            found.append(
                BlockDamage(
                    partition=0,
                    first_seq=first_seq,
                    items=items,
                    kept=kept,
                    lost=lost,
                    node=name,
                    reason=reason,
                )
            )
        return tuple(found)

    # --- found -------------------------------------------------------------------------------

    def found(self, group: GroupId, first_seq: int, error: StorageCorrupt) -> None:
        """A block cannot be read here. Blocks beyond DAMAGED_BLOCKS_MAX are not remembered: with
        that number nothing is leased, and a later read finds the others again.
        """
        blocks = self._blocks.get(group, {})
        if self._stopped or first_seq in blocks or len(blocks) >= DAMAGED_BLOCKS_MAX:
            return
        damaged = error if isinstance(error, BlockDamaged) else None
        self._blocks.setdefault(group, blocks)[first_seq] = AsideBlock(damaged)
        self._found += 1
        _log.error("damage.found", block=first_seq, **self._names(group), error=str(error))
        self._begin_mending()
        self._recount(group)

    def seen(self, error: BlockDamaged | AttachmentDamaged) -> None:
        """A background read has found damage."""
        if isinstance(error, BlockDamaged):
            self.found(GroupId(error.group), error.first_seq, error)
        else:
            self._row(GroupId(error.group), error.index, error.part, "damage.found")

    def unsendable(self, group: GroupId, index: int, part: int) -> None:
        """An attachment that another replica should get from this one is damaged."""
        self._row(group, index, part, "damage.unsendable")

    def _row(self, group: GroupId, index: int, part: int, event: str) -> None:
        rows = self._rows.get(group, {})
        if self._stopped or (index, part) in rows or len(rows) >= DAMAGED_BLOCKS_MAX:
            return
        self._rows.setdefault(group, rows)[index, part] = AsideBlock(None)
        self._found += 1
        _log.error(event, **self._names(group), index=index, part=part)
        self._begin_mending()

    def _begin_mending(self) -> None:
        if self._mender is None:
            # Owned: `stop` ends and awaits it.
            self._mender = self._loop.create_task(self._mend_all())
        self._wake.set()

    def give_back(self, unread: Iterable[Unread]) -> None:
        """Sets aside the blocks of unreadable items, and releases the items without counting an
        attempt.
        """
        for one in unread:
            if one.error is None:
                continue
            self.found(one.route.group, one.first_seq, one.error)
            if one.repeated:
                # The first delivery may have been whole, and a consumer may be processing it.
                continue
            items = LeaseItems(LeaseNumber(one.lease), payloads.ranges_of(one.first_seq, one.mask))
            command = Retry((items,), count_attempt=False)
            self._router.post(one.route, command, then=_released, patient=True)

    def refusal(self, error: BlockDamaged) -> QueratorError:
        """Sets the block aside, and returns the error for its reader."""
        group = GroupId(error.group)
        self.found(group, error.first_seq, error)
        names = self._names(group)
        return QueratorError(
            ErrorCode.UNAVAILABLE,
            f"the payload of block {error.first_seq} in partition {names['partition']} of queue "
            f"{names['queue']} is damaged on node {self._router.name}; "
            "it is fetched from another replica, if one has it whole",
            field="partition",
            value=str(names["partition"]),
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )

    def unreadable(self, error: AttachmentDamaged) -> QueratorError:
        """An attachment that belongs to no block cannot be read here. It is fetched from another
        replica; returns the error for its reader.
        """
        group = GroupId(error.group)
        self._row(group, error.index, error.part, "damage.found")
        names = self._names(group)
        return QueratorError(
            ErrorCode.UNAVAILABLE,
            f"a result in partition {names['partition']} of queue {names['queue']} is damaged on "
            f"node {self._router.name}; it is fetched from another replica, if one has it whole",
            field="partition",
            value=str(names["partition"]),
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )

    def _names(self, group: GroupId) -> dict[str, Any]:
        owner = self._router.map.by_group(group)
        if owner is None:
            return {"queue": "", "partition": -1}
        return {"namespace": owner[0].namespace, "queue": owner[0].name, "partition": owner[1]}

    # --- aside -------------------------------------------------------------------------------

    def without_aside(self, group: GroupId, effects: PartitionEffects) -> PartitionEffects:
        """Effects of a partition, without the items that are set aside here."""
        if group not in self._blocks:
            return effects
        ready = 0
        if group not in self._uncounted:
            counted = self._counted(group)
            ready = 0 if counted is None else counted.ready
            self._count_later(group, RECOUNT_S)
        return msgspec.structs.replace(effects, ready=ready)

    def _counted(self, group: GroupId, *, forget: bool = False) -> PartitionEffects | None:
        """Effects as of the last commit, without the items set aside, both from one snapshot; None:
        they cannot be read. `forget`: forgets blocks that are gone.
        """
        blocks = self._blocks.get(group, {})
        try:
            with self._environment.snapshot() as txn:
                view = generations.view(txn, group)
                if forget:
                    for first_seq in list(blocks):
                        if payloads.find_block(view, group, first_seq) is None:
                            self._drop(group, first_seq)
                effects = queries.effects(view, group)
                if len(blocks) > ASIDE_BLOCKS_MAX:
                    return msgspec.structs.replace(effects, ready=0)
                aside = payloads.ready_items(view, group, blocks)
                ready = queries.leasable_beside(view, group, aside)
        except Exception as error:  # noqa: BLE001 - counted later; the caller continues without
            defect_error(error, "counting ready items beside damaged blocks")
            self._uncounted.add(group)
            self._count_later(group, UNCOUNTED_S)
            return None
        self._uncounted.discard(group)
        return msgspec.structs.replace(effects, ready=ready)

    def _count_later(self, group: GroupId, after_s: float) -> None:
        if group not in self._recounts and not self._stopped:
            self._recounts[group] = self._loop.call_later(after_s, self._recount, group)

    def _recount(self, group: GroupId) -> None:
        timer = self._recounts.pop(group, None)
        if timer is not None:
            timer.cancel()
        if self._stopped:
            return
        effects = self._counted(group, forget=True)
        if effects is not None:
            self._on_effects(group, effects)

    # --- repair ------------------------------------------------------------------------------

    def payload(self, query: PayloadQuery) -> Payload:
        """The payload as stored by this node's replica. Raises QueratorError."""
        group, index, part = query.group, query.index, query.part
        with self._environment.snapshot() as txn:
            view = generations.view(txn, group)
            data = None
            why, field, value = "not here yet", "", ""
            try:
                if queries.applied_index(txn, group) >= index:
                    why, (field, value) = "not here", NOT_WHOLE
                    data = attachments.read(view, group, index, part)
            except StorageCorrupt:
                why = "damaged here, too"
        if data is None:
            message = f"attachment {part} of entry {index} in group {group} is {why}"
            raise QueratorError(ErrorCode.UNAVAILABLE, message, field=field, value=value)
        return Payload(checksum(ATTACHMENTS.key(group, index, part), data), data)

    def _due(self) -> Iterator[tuple[float, GroupId, AsideBlock, Callable[[], Awaitable[None]]]]:
        for group, blocks in self._blocks.items():
            for first_seq, block in blocks.items():
                yield block.again_s, group, block, partial(self._mend, group, first_seq, block)
        for group, rows in self._rows.items():
            for place, block in rows.items():
                yield block.again_s, group, block, partial(self._mend_row, group, *place)

    async def _mend_all(self) -> None:
        while True:
            self._wake.clear()
            first = min(self._due(), key=itemgetter(0), default=None)
            if first is None or first[0] > self._loop.time():
                try:
                    async with asyncio.timeout_at(None if first is None else first[0]):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            _, group, block, mend = first
            try:
                await mend()
            except Exception as defect:  # noqa: BLE001 - the top of the task: it is tried again
                error = as_answer(defect, "repairing a block")
                if block.pause_ms == MEND_PAUSE_MS_MIN:
                    _log.warning("damage.repair_failed", **self._names(group), error=str(error))
                block.again_s = self._loop.time() + block.pause_ms / 1000
                block.pause_ms = min(2 * block.pause_ms, MEND_PAUSE_MS_MAX)

    async def _mend_row(self, group: GroupId, index: int, part: int) -> None:
        key = ATTACHMENTS.key(group, index, part)
        with self._environment.snapshot() as txn:
            view = generations.view(txn, group)
            stored = view.get(key)
            whole = stored is None or _is_whole(view, group, index, part)
        if stored is not None and not whole:
            data, node = await self._fetched(group, index, part, len(stored) - SEAL_BYTES)
            await self._host.mend(group, index, part, data, lambda txn: txn.get(key) is not None)
            self._mended += 1
            _log.info("damage.repaired", index=index, **self._names(group), from_node=node)
        rows = self._rows.get(group, {})
        rows.pop((index, part), None)
        if not rows:
            self._rows.pop(group, None)

    async def _mend(self, group: GroupId, first_seq: int, block: AsideBlock) -> None:
        async with self._mending:
            await self._mend_block(group, first_seq, block)

    async def _mend_block(self, group: GroupId, first_seq: int, block: AsideBlock) -> None:
        damaged = block.damaged
        with self._environment.snapshot() as txn:
            view = generations.view(txn, group)
            gone = payloads.find_block(view, group, first_seq) is None
            if not gone and damaged is None:
                raise QueratorError(ErrorCode.INTERNAL, "the damage is not in the payload")
            whole = (
                damaged is None
                or not payloads.is_held(view, damaged)
                or _is_whole(view, group, damaged.index, damaged.part)
            )
        if damaged is not None and not whole:
            index, part = damaged.index, damaged.part
            data, node = await self._fetched(group, index, part, damaged.size)
            await self._host.mend(
                group, index, part, data, lambda txn: payloads.is_held(txn, damaged)
            )
            self._mended += 1
            _log.info("damage.repaired", block=first_seq, **self._names(group), from_node=node)
        self._forget(group, first_seq)

    def _forget(self, group: GroupId, first_seq: int) -> None:
        """The block is whole, or gone."""
        self._drop(group, first_seq)
        self._recount(group)

    def _drop(self, group: GroupId, first_seq: int) -> None:
        blocks = self._blocks.get(group, {})
        blocks.pop(first_seq, None)
        if not blocks:
            self._blocks.pop(group, None)

    async def _fetched(self, group: GroupId, index: int, part: int, size: int) -> tuple[bytes, str]:
        """The bytes, and the node that has them whole. Raises QueratorError."""
        query = PayloadQuery(group, index, part)
        forwarder = self._router.forwarder
        why = "there is no other replica"
        certain = True
        for node in self._holders(group):
            if forwarder is None or node == self._router.name:
                continue
            if not forwarder.reaches(node):
                why, certain = f"node {node} cannot be reached", False
                continue
            try:
                async with asyncio.timeout(MEND_ANSWER_MS / 1000):
                    payload: Payload = await forwarder.query(node, query)
            except QueratorError as error:
                why = f"node {node}: {error.message}"
                certain = certain and (error.field, error.value) == NOT_WHOLE
                continue
            except TimeoutError:
                why, certain = f"node {node} has not answered in {MEND_ANSWER_MS} ms", False
                continue
            crc = checksum(ATTACHMENTS.key(group, index, part), payload.data)
            if (crc, len(payload.data)) == (payload.crc, size):
                return payload.data, node
            why, certain = f"node {node} has sent bytes with a wrong checksum or length", False
        if certain:
            raise NowhereWhole(ErrorCode.UNAVAILABLE, f"no other replica has it whole; {why}")
        raise QueratorError(ErrorCode.UNAVAILABLE, f"no other replica has sent it whole; {why}")

    def _holders(self, group: GroupId) -> list[str]:
        """The nodes that may have a replica, by name. A replica that is moving away may be the only
        whole one.
        """
        status = self._host.status(group)
        configured = () if status is None else status.replicas
        replicas = (*self._router.map.replicas(group), *configured)
        return sorted({node_name(replica.node) for replica in replicas})

    async def stop(self) -> None:
        self._stopped = True
        for timer in self._recounts.values():
            timer.cancel()
        self._recounts.clear()
        if self._mender is not None:
            self._mender.cancel()
            await asyncio.wait((self._mender,))

    def on_map(self) -> None:
        """Forgets partitions that are gone."""
        for group in list(self._blocks):
            if self._router.map.by_group(group) is None:
                del self._blocks[group]
                self._uncounted.discard(group)
        for group in list(self._rows):
            if self._router.map.by_group(group) is None:
                del self._rows[group]


def _is_whole(txn: ReadTransaction, group: GroupId, index: int, part: int) -> bool:
    try:
        return attachments.read(txn, group, index, part) is not None
    except StorageCorrupt:
        return False


def _released(_outcome: Accepted | QueratorError) -> None:
    """Ignores the outcome: the items of a failed release lapse, and their block is set aside in any
    case.
    """
