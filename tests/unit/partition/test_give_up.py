"""Items of damaged blocks are given up: they are dropped and counted, and later items proceed."""

from querator.model.commands import (
    Done,
    GiveUp,
    LeaseItems,
    Moved,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Retry,
)
from tests.unit.partition.partition_log import START_MS, PartitionLog, lease_of, produce
from tests.unit.partition.test_moves import DEAD, batch_of, carry, kill, letters, pair, send, stats


def counts(log: PartitionLog) -> tuple[int, int, int]:
    found = stats(log)
    return found.dropped, found.given_up, found.moved_out


def test_what_is_ready_or_scheduled_goes_and_what_is_leased_stays():
    log, _ = pair()
    log.produce(6)
    grant = log.one(lease_of(4)).grants[0]
    late = LeaseItems(grant.lease, ((1, 2),))
    log.one(Retry((late,), retry_at_ms=START_MS + 60_000))
    log.produce(1)
    assert log.one(GiveUp((1, 99))) == Done(4)
    found = stats(log)
    assert (found.ready, found.leased, found.scheduled) == (1, 2, 0)
    assert counts(log) == (4, 4, 0)
    assert log.one(GiveUp((1,))) == Done(0)
    log.one(Retry((LeaseItems(grant.lease),)))
    assert log.one(GiveUp((1,))) == Done(2)
    assert (stats(log).ready, stats(log).bytes) == (1, len(b"item 0"))


def test_letters_behind_one_that_is_given_up_arrive():
    source, target = pair()
    for item in (b"first", b"lost", b"last"):
        kill(source, [item])
    assert source.one(GiveUp((2,))) == Done(1)
    assert source.one(GiveUp((2,))) == Done(0)
    assert stats(source).moving == 3
    assert send(source, target) == Moved(2, 3)
    assert send(source, target) == Moved(0, 3)
    source.one(MoveDone(DEAD, 3))
    assert [letter.item for letter in letters(target)] == [b"first", b"last"]
    assert counts(source) == (1, 1, 2)
    kill(source, [b"more"])
    assert carry(source, target) == 1


def test_nothing_but_void_moves():
    source, target = pair()
    kill(source, 3)
    assert source.one(GiveUp((1,))) == Done(3)
    assert send(source, target) == Moved(0, 3)
    source.one(MoveDone(DEAD, 2))
    assert (batch_of(source).first_move, counts(source)) == (3, (2, 2, 0))
    source.one(MoveDone(DEAD, 3))
    assert (counts(source), stats(source).bytes, stats(target).moved_in) == ((3, 3, 0), 0, 0)
    kill(source, 1)
    assert send(source, target) == Moved(1, 4)


def test_some_have_arrived_already():
    """A leader that could read the items had sent them before."""
    source, target = pair()
    kill(source, 4)
    assert send(source, target) == Moved(4, 4)
    source.one(MoveDone(DEAD, 2))
    assert source.one(GiveUp((1,))) == Done(2)
    assert send(source, target) == Moved(0, 4)
    source.one(MoveDone(DEAD, 4))
    assert counts(source) == (2, 2, 2)
    assert len(letters(target)) == 4


def test_a_target_that_is_gone_or_closing_sends_nothing_back_of_it():
    source, _ = pair()
    kill(source, 2)
    kill(source, 1)
    source.one(GiveUp((1,)))
    assert source.one(MoveReturn(DEAD)) == Done(3)
    assert (stats(source).ready, counts(source)) == (1, (2, 2, 0))
    source, _ = pair()
    kill(source, 2)
    kill(source, 1)
    source.one(GiveUp((1,)))
    other = PartitionLog(source.environment, group=DEAD + 1)
    other.configure(queue="dead")
    assert source.one(MoveElsewhere(DEAD, 1, other.group)) == Done(3)
    assert carry(source, other) == 1
    assert counts(source) == (2, 2, 1)


def test_what_expires_later_finds_nothing():
    log, _ = pair()
    log.entry(produce([b"a", b"b"]))
    log.one(GiveUp((1,)))
    log.advance(3_601_000)
    assert (stats(log).dead, stats(log).expired) == (0, 0)
