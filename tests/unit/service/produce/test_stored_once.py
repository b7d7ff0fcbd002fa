"""A request is stored once, however the number of partitions changes.

The test has partitions alone, without Raft and without a node. It routes requests as the service
does, and hands facts over as placement does, while requests arrive and are repeated.
"""

import struct

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from querator.model.calls import ProduceCall, ProducedBatch
from querator.model.commands import (
    NO_SLOT,
    Adopt,
    ItemSpecial,
    ProduceResult,
    Refusal,
    Route,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.routing import slot_of_key
from querator.partition import dedup_export, queries
from querator.partition.dedup_export import FactsQuery
from querator.service.produce.split import Part, batch_of, cut, identified_partition, whole
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.partition.partition_log import START_MS, PartitionLog

PARTITIONS_MAX = 7
Place = tuple[int, int]


class Request:
    def __init__(self, call: ProduceCall) -> None:
        self.call = call
        self.places: dict[int, Place] = {}
        """Place of each item as first answered, by the item's position."""


class Shares(RuleBasedStateMachine):
    """`n` partitions at routing version `version`. While `step` is not 0 they change to `next`."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = MemoryEnvironment()
        self.logs: list[PartitionLog] = []
        self.n = self.next = self.version = self.step = 0
        self.former = 1
        self.rows = 0
        """Maximum number of rows in a page of facts."""
        self.since: list[int] = []
        self.requests: list[Request] = []
        self.sequences: dict[bytes, int] = {}

    @initialize(
        n=st.integers(1, PARTITIONS_MAX), rows=st.sampled_from([2, dedup_export.PAGE_ROWS_MAX])
    )
    def begin(self, n: int, rows: int) -> None:
        self.n = n
        self.rows = rows
        for number in range(PARTITIONS_MAX):
            log = PartitionLog(self.environment, group=number + 1)
            log.configure(partition=number)
            self.logs.append(log)

    # --- requests --------------------------------------------------------------------------------

    @rule(
        producer=st.integers(0, 3),
        ordered=st.booleans(),
        keys=st.lists(st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e", b"f"]), max_size=6),
        dedup=st.booleans(),
    )
    def produce(self, producer: int, ordered: bool, keys: list[bytes], dedup: bool) -> None:
        keyed = any(keys)
        ordered = ordered and not keyed
        name = (b"o" if ordered else b"u") + bytes([producer])
        producer_id = START_MS.to_bytes(6, "big") + name.rjust(10, b"\xff")
        self.sequences[producer_id] = sequence = self.sequences.get(producer_id, 0) + 1
        count = max(1, len(keys))
        slots = [slot_of_key(key) if key else NO_SLOT for key in keys]
        call = ProduceCall(
            namespace="default",
            queue="q",
            items=b"x" * count,
            lengths=struct.pack(f"<{count}I", *[1] * count),
            producer_id=producer_id,
            sequence=sequence,
            ordered=ordered,
            specials=tuple(
                ItemSpecial(ordinal, dedup_key=key) for ordinal, key in enumerate(keys) if key
            )
            if dedup
            else (),
            slots=struct.pack(f"<{count}H", *slots) if keyed else b"",
        )
        request = Request(call)
        self.requests.append(request)
        self.send(request)

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 1_000))
    def repeat(self, number: int) -> None:
        self.send(self.requests[number % len(self.requests)])

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 1_000), step=st.sampled_from([-1, 1]))
    def astray(self, number: int, step: int) -> None:
        """A node routes by the previous number of partitions, or by the next one."""
        if step > 0 and not self.step:
            return
        n, version = (self.next, self.version + 1) if step > 0 else (self.former, self.version - 1)
        for part in self.parts(self.requests[number % len(self.requests)], n, version):
            [result] = self.logs[part.partition].entry(Proposal(part.command, part.items))
            assert isinstance(result, Refusal), result

    def send(self, request: Request) -> None:
        for part in self.parts(request, self.n, self.version):
            self.send_part(request, part)

    def parts(self, request: Request, n: int, version: int) -> list[Part]:
        call = request.call
        home = identified_partition(call, n)
        assert home is not None
        if not call.slots:
            return [whole(call, home, routing=version)]
        return cut(whole(call, 0, routing=0), home=home, partitions=n, routing=version)

    def send_part(self, request: Request, part: Part) -> None:
        log = self.logs[part.partition]
        log.now_ms += 1
        [result] = log.entry(Proposal(part.command, part.items))
        if isinstance(result, Refusal):
            # The partition refuses the old number, or the ordered request follows a lost one.
            assert result.code in (ErrorCode.SEQUENCE_GAP, ErrorCode.ROUTING_CHANGED), result
            return
        assert isinstance(result, ProduceResult)
        batch = batch_of(part, result)
        self.note(request, batch)

    def note(self, request: Request, batch: ProducedBatch) -> None:
        twins = {position: (partition, seq) for position, partition, seq in batch.duplicates}
        positions = batch.indexes or range(batch.count)
        for offset, position in enumerate(positions):
            place = twins.get(position, (batch.partition, batch.first_seq + offset))
            known = request.places.setdefault(position, place)
            assert known == place, "a repeat is told of the first place"

    # --- changes of the number -------------------------------------------------------------------

    @precondition(lambda self: self.step == 0)
    @rule(n=st.integers(1, PARTITIONS_MAX))
    def begin_change(self, n: int) -> None:
        """Requests are still stored."""
        self.next = n
        self.since = self.hand_over([0] * self.n)
        self.step = 1

    @precondition(lambda self: self.step == 1)
    @rule()
    def tell_all(self) -> None:
        """From here on no request with the old number is stored."""
        self.tell(Route(self.version + 1, self.next, open=False))
        self.step = 2

    @precondition(lambda self: self.step == 2)
    @rule(late=st.booleans())
    def end_change(self, late: bool) -> None:
        """`late`: another node, which began earlier, still runs the same change."""
        self.hand_over(self.since)
        self.tell(Route(self.version + 1, self.next, open=True))
        if late:
            self.tell(Route(self.version + 1, self.next, open=False))
            self.hand_over(self.since)
        self.former, self.n, self.step = self.n, self.next, 0
        self.version += 1

    def hand_over(self, since: list[int]) -> list[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dedup_export, "PAGE_ROWS_MAX", self.rows)
            return self.read_and_adopt(since)

    def read_and_adopt(self, since: list[int]) -> list[int]:
        read = []
        for log, since_ms in zip(self.logs[: self.n], since, strict=True):
            after, first = b"", -1
            while True:
                query = FactsQuery(log.group, self.n, self.next, after, since_ms)
                with self.environment.snapshot() as txn:
                    page = dedup_export.facts(txn, query)
                for partition, found in page.facts:
                    self.logs[partition].one(Adopt(found))
                first = page.now_ms if first < 0 else first
                after = page.after
                if not after:
                    break
            read.append(first)
        return read

    def tell(self, route: Route) -> None:
        for log in self.logs:
            log.one(route)

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def each_item_is_stored_once(self) -> None:
        places: dict[Place, tuple[int, int]] = {}
        by_key: dict[bytes, Place] = {}
        for number, request in enumerate(self.requests):
            keys = {special.ordinal: special.dedup_key for special in request.call.specials}
            for position, place in request.places.items():
                key = keys.get(position)
                if key is not None:
                    assert by_key.setdefault(key, place) == place, "one item per key"
                else:
                    assert places.setdefault(place, (number, position)) == (number, position)
        with self.environment.snapshot() as txn:
            produced = sum(queries.stats(txn, log.group).produced for log in self.logs)
        assert produced == len(set(places) | set(by_key.values()))


TestShares = Shares.TestCase
TestShares.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)
