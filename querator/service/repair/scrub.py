"""Background reads of payloads, which find damage before a consumer needs them.

    a piece, in a thread ──► a rest ──► the next piece ──► … ──► the round is over ──► a rest

A round reads every attachment that the node has and compares its checksum. A damaged block is set
aside and fetched from another replica, like one that a consumer finds (`service.repair.damage`). A
round begins at a random place, because a node that is restarted often must not read the same rows
only. It yields to other work: the rest after a piece keeps the limit of bytes per second, and lasts
at least REST_SHARE times as long as the piece took, which grows with the load.
"""

import asyncio
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from querator import telemetry
from querator.model.cluster import ClusterScrub
from querator.model.ids import PLACEMENT_GROUP
from querator.model.limits import SCRUB_PIECE_BYTES, SCRUB_PIECE_ROWS, SCRUB_ROUND_MS_MIN
from querator.partition.payloads import BlockDamaged, named_blocks
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.outcomes import as_answer
from querator.storage import attachments, generations
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import Environment, ReadTransaction
from querator.storage.tables import ATTACHMENTS

if TYPE_CHECKING:
    from querator.raft.clock import Clock

ROUND_S_MIN = SCRUB_ROUND_MS_MIN / 1000
REST_S_MIN = 0.1
REST_SHARE = 50
"""Reads take at most 2 % of the time."""
FAILED_REST_S = 60.0
"""Rest after the rows to read could not be listed."""

_log = telemetry.logger(__name__)

_Span = tuple[int, bytes, bytes]
"""A group, and the keys of its rows: first key, and key after the last one."""


class ScrubStats(msgspec.Struct, frozen=True):
    """`on`: whether background reads are on. Since the start: bytes read, complete rounds, and the
    time since the last one ended, or since the start; `round_bytes` of the current or the last
    round.
    """

    bytes: int
    rounds: int
    age_s: float
    round_bytes: int
    on: bool = True


class _Piece(msgspec.Struct):
    bytes: int
    damaged: list[BlockDamaged | AttachmentDamaged]


class Scrub:
    """Background reads of one node. Used on the event loop, unless stated otherwise."""

    def __init__(
        self, environment: Environment, damage: DamagedBlocks, *, clock: "Clock", bytes_per_s: int
    ) -> None:
        """`bytes_per_s` 0: no background reads."""
        self._environment = environment
        self._damage = damage
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._chance = random.Random(clock.wall_ms())
        self._spans: deque[_Span] = deque()
        """The rest of the round."""
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._bytes = self._rounds = self._round_bytes = 0
        self._since_s = clock.monotonic_s()

    def stats(self) -> ScrubStats:
        age_s = self._clock.monotonic_s() - self._since_s
        return ScrubStats(
            self._bytes, self._rounds, age_s, self._round_bytes, on=bool(self._bytes_per_s)
        )

    def for_operators(self) -> ClusterScrub:
        """The statistics for operators."""
        seen = self.stats()
        return ClusterScrub(seen.on, seen.rounds, seen.round_bytes, int(seen.age_s * 1000))

    def start(self) -> None:
        if self._bytes_per_s:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrub")
            # Owned: `stop` ends and awaits it.
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Returns when no thread reads the storage."""
        if self._task is None or self._thread is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        # Earlier work of the thread has ended when this call has its turn.
        await asyncio.get_running_loop().run_in_executor(self._thread, int)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = self._clock.monotonic_s()
            self._round_bytes = 0
            try:
                self._spans = await loop.run_in_executor(self._thread, self._round)
            except Exception as error:  # noqa: BLE001 - the top of the task: it is tried again
                as_answer(error, "listing payloads to read them in the background")
                await asyncio.sleep(FAILED_REST_S)
                continue
            while self._spans:
                rest_s = await self._go_on(loop)
                await asyncio.sleep(rest_s)
            self._rounds += 1
            self._since_s = self._clock.monotonic_s()
            if self._round_bytes:
                _log.info("scrub.round_completed", bytes=self._round_bytes)
            round_s = self._since_s - began_s
            await asyncio.sleep(max(REST_S_MIN, ROUND_S_MIN - round_s))

    async def _go_on(self, loop: asyncio.AbstractEventLoop) -> float:
        """Reads one piece, and returns the length of the rest after it."""
        begins_s = self._clock.monotonic_s()
        try:
            piece = await loop.run_in_executor(self._thread, self._read)
        except Exception as error:  # noqa: BLE001 - the other groups are still read
            as_answer(error, "reading payloads in the background")
            self._spans.popleft()
            return REST_S_MIN
        self._bytes += piece.bytes
        self._round_bytes += piece.bytes
        for one in piece.damaged:
            self._damage.seen(one)
        took_s = self._clock.monotonic_s() - begins_s
        return max(REST_S_MIN, took_s * REST_SHARE, piece.bytes / self._bytes_per_s)

    # --- in the thread -----------------------------------------------------------------------

    def _round(self) -> deque[_Span]:
        """Every row once, from a random place on."""
        with self._environment.snapshot() as txn:
            groups = sorted(generations.stored_groups(txn) - {PLACEMENT_GROUP})
            if not groups:
                return deque()
            nth = self._chance.randrange(len(groups))
            first = groups[nth]
            place = self._somewhere(generations.view(txn, first), first)
        start, stop = ATTACHMENTS.bounds(first)
        others = groups[nth + 1 :] + groups[:nth]
        whole = [(group, *ATTACHMENTS.bounds(group)) for group in others]
        return deque([(first, place, stop), *whole, (first, start, place)])

    def _somewhere(self, txn: ReadTransaction, group: int) -> bytes:
        """A random place at which one of the group's rows may begin."""
        ends = [
            next(ATTACHMENTS.rows(txn, group, reverse=reverse), None) for reverse in (False, True)
        ]
        indexes = [ATTACHMENTS.parts(row[0])[0] for row in ends if row is not None]
        if not indexes:
            return ATTACHMENTS.bounds(group)[0]
        low, high = (int(index) for index in indexes)
        return ATTACHMENTS.key(group, self._chance.randint(low, high), 0)

    def _read(self) -> _Piece:
        """Reads the next rows of the round, of one group."""
        piece = _Piece(0, [])
        group, start, stop = self._spans[0]
        rows = 0
        damaged: list[AttachmentDamaged] = []
        with self._environment.snapshot() as txn:
            view = generations.view(txn, group)
            for key, stored in view.scan(start, stop):
                index, part = map(int, ATTACHMENTS.parts(key))
                try:
                    attachments.check(group, index, part, stored)
                except AttachmentDamaged as error:
                    damaged.append(error)
                rows += 1
                piece.bytes += len(stored)
                if piece.bytes >= SCRUB_PIECE_BYTES or rows == SCRUB_PIECE_ROWS:
                    self._spans[0] = (group, key + b"\0", stop)
                    break
            else:
                self._spans.popleft()
            if damaged:
                piece.damaged += named_blocks(view, group, damaged)
        return piece
