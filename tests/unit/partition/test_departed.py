"""Groups that have left the map: their rows are deleted, and their late batches have no effect."""

from hypothesis import given
from hypothesis import strategies as st

from querator.model.commands import Done, ForgetGroups, Move, Moved, MovedItem, MoveDone
from querator.model.errors import ErrorCode
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.partition import departed
from querator.partition.rows import DeadCause
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import MOVED_UPTO, OUTBOX_TARGETS
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of
from tests.unit.partition.test_moves import kill

LETTER = MovedItem(
    origin_queue="work",
    origin_partition=1,
    origin_group=0,
    origin_seq=1,
    attempts=1,
    reason=int(DeadCause.REJECTED),
    errors=(),
    produced_at_ms=1,
    died_at_ms=2,
    expire_timeout_ms=0,
    lease_timeout_ms=0,
)


def batch(source: int, first_move: int = 1, count: int = 2) -> tuple[Move, bytes]:
    data = b"x" * count
    return Move(source, first_move, b"\x01\0\0\0" * count, (LETTER,) * count), data


def forget(log: PartitionLog, living: set[int]) -> int:
    """Forgets departed groups as the leader's node does; the number of deleted rows."""
    gone = 0
    while True:
        with log.environment.snapshot() as txn:
            ranges = departed.departed(txn, log.group, living)
        if not ranges:
            return gone
        done = log.one(ForgetGroups(ranges))
        assert done.changed, "what is named is forgotten"
        gone += done.changed


def rows(log: PartitionLog) -> int:
    with log.environment.snapshot() as txn:
        return len(list(MOVED_UPTO.rows(txn, log.group)))


def new_log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def test_a_late_move_of_a_source_that_is_gone_is_refused():
    log = new_log()
    for source in (20, 30, 40):
        assert log.one(*batch(source)) == Moved(2, 2)
    assert forget(log, {40, GROUP}) == 2
    for first_move in (1, 2, 3):
        refused = log.one(*batch(20, first_move))
        assert (refused.code, refused.value) == (ErrorCode.QUEUE_NOT_FOUND, "20")
    assert log.one(*batch(30)).code is ErrorCode.QUEUE_NOT_FOUND
    assert log.one(*batch(40)) == Moved(0, 2)
    assert log.one(*batch(40, 3)) == Moved(2, 4)
    assert log.one(*batch(41)) == Moved(2, 2), "a source that begins"
    with log.environment.snapshot() as txn:
        assert departed.sources(txn, GROUP) == (40, 41)


def test_neighbours_that_are_gone_share_a_row():
    log = new_log()
    for source in range(20, 60):
        log.one(*batch(source))
    assert forget(log, {GROUP, *range(40, 60)}) == 20
    assert rows(log) == 21
    assert forget(log, {GROUP, 40, *range(50, 60)}) == 9
    assert rows(log) == 13, "two ranges and eleven sources"
    assert forget(log, {GROUP, 100}) == 12
    assert rows(log) == 1
    assert log.one(*batch(59)).code is ErrorCode.QUEUE_NOT_FOUND
    assert log.one(*batch(100)) == Moved(2, 2)


def test_an_older_map_takes_nothing_back():
    log = new_log()
    for source in (20, 22, 24):
        log.one(*batch(source))
    assert log.one(ForgetGroups(((8, 22),))) == Done(2)
    assert log.one(ForgetGroups(((22, 24),))) == Done(1), "21 lived when it was asked for"
    assert log.one(ForgetGroups(((8, 22),))) == Done(0)
    for source in (20, 21, 22, 23, 24):
        assert log.one(*batch(source)).code is ErrorCode.QUEUE_NOT_FOUND


def test_one_command_forgets_only_so_many(monkeypatch):
    monkeypatch.setattr(departed, "APPLY_SEGMENTS_MAX", 3)
    assert APPLY_SEGMENTS_MAX > 3
    log = new_log()
    for source in range(20, 30):
        log.one(*batch(source))
    assert log.one(ForgetGroups(((8, 29),))) == Done(3)
    assert log.one(*batch(22)).code is ErrorCode.QUEUE_NOT_FOUND
    assert log.one(*batch(23)) == Moved(0, 2)
    assert forget(log, {GROUP}) == 7
    assert rows(log) == 1


def test_numbers_of_moves_go_with_their_target():
    environment = MemoryEnvironment()
    log = PartitionLog(environment)
    for target in (20, 30, 40):
        log.configure(target, dead_targets=dead_to(target))
        kill(log, 2)
    log.one(MoveDone(20, 2))
    log.one(MoveDone(30, 1))
    log.one(MoveDone(40, 2))
    assert forget(log, {GROUP, 40}) == 1, "one item is on its way to 30"
    with environment.snapshot() as txn:
        targets = [OUTBOX_TARGETS.parts(key)[0] for key, _ in OUTBOX_TARGETS.rows(txn, GROUP)]
    assert targets == [30, 40]
    assert log.one(lease_of(9)).grants[0].lease == 0


@given(st.data())
def test_no_batch_is_taken_twice_whatever_is_forgotten_when(data):
    """Sources are created, send, repeat and go. The map in use may be an old one."""
    log = new_log()
    living: list[int] = []
    maps = [(GROUP, set[int]())]
    """Each map with the last group id that was assigned before it."""
    taken: dict[int, int] = {}
    newest = GROUP
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(("make", "go", "send", "send", "late", "forget")))
        if action == "make":
            newest += 1
            living.append(newest)
            maps.append((newest, set(living)))
        elif action == "go" and living:
            living.remove(data.draw(st.sampled_from(living)))
            maps.append((newest, set(living)))
        elif action == "send" and living:
            source = data.draw(st.sampled_from(living))
            upto = taken.get(source, 0)
            assert log.one(*batch(source, upto + 1)) == Moved(2, upto + 2)
            taken[source] = upto + 2
        elif action == "late" and taken:
            source = data.draw(st.sampled_from(sorted(taken)))
            late = log.one(*batch(source, data.draw(st.integers(1, taken[source] - 1))))
            if source in living:
                assert late == Moved(0, taken[source])
            else:
                assert getattr(late, "changed", 0) == 0
        elif action == "forget":
            # The node that forgets has a map that is newer than the sources that it finds.
            seen = [one for last, one in maps if last >= max(taken, default=0)]
            forget(log, data.draw(st.sampled_from(seen)))
    forget(log, set(living))
    between = sum(1 for _ in living) + 1
    assert rows(log) <= len(living) + between
