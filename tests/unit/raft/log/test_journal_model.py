"""The journal compared with a list, under appends, take-backs, truncations, syncs and crashes in
any order, on both storage back ends.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from querator.model.ids import GroupId
from querator.model.limits import LOG_CACHE_BYTES
from querator.model.nodes import Replica, Replicas, node_key
from querator.raft import configuration
from querator.raft.log.journal import Journal
from querator.raft.log.rows import KIND_COMMAND, KIND_CONFIGURATION
from querator.raft.messages import LogEntry
from querator.storage.environment import Environment
from querator.storage.lmdb_environment import LmdbEnvironment
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, LOG

G = GroupId(7)
FIRST = (Replica(1, node_key("a", "1")),)
SIZES = [1, 3_000, LOG_CACHE_BYTES // 2]


class State(msgspec.Struct, frozen=True):
    """The state on disk, or in memory."""

    entries: tuple[LogEntry, ...] = ()
    base: int = 0
    base_term: int = 0
    term: int = 0
    vote: int | None = None
    applied: int = 0

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    def replicas(self) -> tuple[int, Replicas] | None:
        """The last configuration among the entries."""
        for index in range(self.last, self.base, -1):
            entry = self.entries[index - self.base - 1]
            if entry.kind == KIND_CONFIGURATION:
                return index, configuration.decode(entry.command)
        return None


class JournalAndList(RuleBasedStateMachine):
    def make(self) -> Environment:
        return MemoryEnvironment()

    def crashed(self) -> Environment:
        assert isinstance(self.environment, MemoryEnvironment)
        return self.environment.crash()

    @initialize()
    def begin(self) -> None:
        self.environment = self.make()
        self.journal = Journal(G, replicas=FIRST)
        self.memory = State()
        self.known: list[tuple[int, Replicas]] = [(0, FIRST)]
        """(index, replicas) of every configuration up to the end of the log, including those whose
        entries have left its head.
        """
        self.sync(applied=0)

    @rule(vote=st.sampled_from([None, 1, 2]))
    def next_term(self, vote: int | None) -> None:
        self.memory = msgspec.structs.replace(self.memory, term=self.memory.term + 1, vote=vote)
        self.journal.setCurrentTerm(self.memory.term, vote)

    @precondition(lambda self: self.memory.term > 0)
    @rule(
        parts=st.lists(st.sampled_from(SIZES), max_size=2),
        kind=st.sampled_from([KIND_COMMAND, KIND_COMMAND, KIND_CONFIGURATION]),
        count=st.integers(1, 4),
    )
    def append(self, parts: list[int], kind: int, count: int) -> None:
        for _ in range(count):
            index, term = self.journal.last_index + 1, self.memory.term
            if kind == KIND_CONFIGURATION:
                replicas = (*FIRST, Replica(index + 1, node_key("b", f"{index}.{term}")))
                entry = LogEntry(term, index, kind, configuration.encode(replicas))
                self.known.append((index, replicas))
            else:
                attached = tuple(b"%d.%d" % (index, term) + b"x" * size for size in parts)
                entry = LogEntry(term, index, kind, b"%d in %d" % (index, term), attached)
            self.journal.append_as_leader(entry)
            self.memory = msgspec.structs.replace(
                self.memory, entries=(*self.memory.entries, entry)
            )

    @precondition(lambda self: self.memory.last > self.memory.applied)
    @rule(data=st.data())
    def take_back(self, data: Any) -> None:
        last = data.draw(st.integers(self.memory.applied, self.memory.last - 1))
        self.journal.take_back(self.environment.snapshot, last)
        entries = self.memory.entries[: last - self.memory.base]
        self.memory = msgspec.structs.replace(self.memory, entries=entries)
        self.known = [one for one in self.known if one[0] <= last]

    @precondition(lambda self: self.memory.last > self.memory.applied)
    @rule(data=st.data(), count=st.integers(1, 3))
    def another_leader(self, data: Any, count: int) -> None:
        """Another leader has other entries in their place."""
        self.take_back(data)
        self.next_term(2)
        self.append([1], KIND_COMMAND, count)

    @rule(data=st.data())
    def turn(self, data: Any) -> None:
        applied = data.draw(st.integers(self.memory.applied, self.memory.last))
        self.sync(applied)

    @rule()
    def turn_and_trim(self) -> None:
        self.sync(self.memory.last, whole=True)

    def sync(self, applied: int, *, whole: bool = False) -> None:
        txn = self.environment.begin()
        self.journal.flush(txn)
        self.journal.truncate_head(txn, applied, bytes_max=1 << 30, whole=whole)
        txn.commit(sync=True)
        self.journal.synced(applied)
        gone = self.journal.first_index - 1 - self.memory.base
        if gone:
            base_term = self.memory.entries[gone - 1].term
            self.memory = msgspec.structs.replace(
                self.memory,
                entries=self.memory.entries[gone:],
                base=self.memory.base + gone,
                base_term=base_term,
            )
        self.memory = msgspec.structs.replace(self.memory, applied=applied)
        self.stored, self.stored_known = self.memory, list(self.known)

    @rule()
    def crash(self) -> None:
        self.environment = self.crashed()
        with self.environment.snapshot() as snapshot:
            self.journal = Journal.open(snapshot, G, replicas=FIRST)
        self.memory, self.known = self.stored, list(self.stored_known)
        assert self.journal.durable_index == self.memory.last
        assert not self.journal.changed

    @invariant()
    def it_is_the_list(self) -> None:
        journal, memory = self.journal, self.memory
        assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (memory.term, memory.vote)
        assert (journal.first_index, journal.last_index) == (memory.base + 1, memory.last)
        assert journal.durable_index <= memory.last
        terms = [memory.base_term, *(entry.term for entry in memory.entries)]
        assert [journal.term_at(index) for index in range(memory.base, memory.last + 1)] == terms
        assert journal.last_term == terms[-1]
        assert (journal.replicas_index, journal.replicas) == self.known[-1]
        for index in range(memory.base, memory.last + 1):
            self.term_has_its_place(index, terms)
        absent = journal.getCurrentTerm() + 1
        assert journal.last_of_term(absent) is None

    def term_has_its_place(self, index: int, terms: list[int]) -> None:
        base, term = self.memory.base, terms[index - self.memory.base]
        same = [base + at for at, other in enumerate(terms) if other == term]
        assert self.journal.first_of_term(index) == same[0]
        if same[-1] > 0:
            assert self.journal.last_of_term(term) == same[-1]

    @invariant()
    def entries_are_sent_as_they_came(self) -> None:
        first = self.journal.first_index
        found: list[LogEntry] = []
        while first + len(found) <= self.journal.last_index:
            more = self.journal.entries(self.environment.snapshot, first + len(found), 10_000)
            assert more
            found += more
        assert tuple(found) == self.memory.entries

    @invariant()
    def disk_holds_what_was_synced_and_nothing_else(self) -> None:
        with self.environment.snapshot() as snapshot:
            rows = [LOG.parts(key)[0] for key, _ in LOG.rows(snapshot, G)]
            parts = set()
            for key, _ in ATTACHMENTS.rows(snapshot, G):
                index, part = ATTACHMENTS.parts(key)
                assert isinstance(index, int)
                parts.add((index, part))
        stored = self.stored
        assert rows == list(range(stored.base + 1, stored.last + 1))
        # The machine drops no attachments here: those of entries that left the head stay.
        expected = {
            (index, part)
            for index, entry in enumerate(stored.entries, stored.base + 1)
            for part in range(len(entry.attachments))
        }
        assert {one for one in parts if one[0] > stored.base} == expected


class JournalAndListOnLmdb(JournalAndList):
    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()

    def make(self) -> Environment:
        return LmdbEnvironment(Path(self.directory.name), quota_bytes=1 << 30)

    def crashed(self) -> Environment:
        """Writes that are not synced exist in this process only."""
        self.environment.close()
        return self.make()

    def teardown(self) -> None:
        if hasattr(self, "environment"):
            self.environment.close()
        self.directory.cleanup()


TestJournal = JournalAndList.TestCase
TestJournal.settings = settings(max_examples=60)
TestJournalOnLmdb = JournalAndListOnLmdb.TestCase
TestJournalOnLmdb.settings = settings(max_examples=15, stateful_step_count=30)
