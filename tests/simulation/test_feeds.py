"""The checker of events, on events that are wrong in one way."""

from typing import Any

import pytest

from querator.model.commands import Complete, LeaseItems
from querator.model.event_calls import EventKind, EventsReply, RecordedEvent
from querator.model.ids import GroupId
from tests.checkers.feed_fold import all_events, differences, fold
from tests.simulation.whole.feeds import Feeds
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of


def event(position: int, kind: EventKind = EventKind.PRODUCED, *seqs: int) -> RecordedEvent:
    return RecordedEvent(position, kind, 1_000, tuple((seq, 1) for seq in seqs or (position,)))


def reply(*events: RecordedEvent, after: int) -> EventsReply:
    return EventsReply(
        events=events, partition=0, feed=GroupId(GROUP), next_position=after, first_position=1,
        end_position=after, partitions=1,
    )  # fmt: skip


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog(all_events=True)
    log.configure()
    log.produce(3)
    [grant] = log.one(lease_of(3)).grants
    log.one(Complete((LeaseItems(grant.lease, ((1, 2),)),)))
    return log


def stored(log: PartitionLog) -> list[RecordedEvent]:
    with log.environment.snapshot() as txn:
        return all_events(txn, GROUP)


def judged(log: PartitionLog, feeds: Feeds) -> list[str]:
    with log.environment.snapshot() as txn:
        return [*feeds.found, *feeds.judge(txn, GROUP)]


def differing(log: PartitionLog, events: list[RecordedEvent]) -> list[str]:
    with log.environment.snapshot() as txn:
        return list(differences(txn, GROUP, events))


def test_what_is_read_in_pages_and_again_is_right(log):
    feeds, events = Feeds(), stored(log)
    assert len(events) == 4
    feeds.answered(1, reply(*events[:2], after=3))
    feeds.answered(2, reply(*events[1:], after=5))
    feeds.answered(5, reply(after=5))
    assert judged(log, feeds) == []
    assert feeds.compared == 4


@pytest.mark.parametrize(
    ("position", "places", "after"),
    [(1, (0, 2), 4), (1, (0, 1, 1), 4), (1, (1, 0), 3), (1, (0, 1), 4), (2, (0, 1), 3)],
    ids=["missing", "twice", "order", "skipped at the end", "from another position"],
)
def test_an_answer_with_other_positions_is_found(log, position, places, after):
    feeds, events = Feeds(), stored(log)
    feeds.answered(position, reply(*(events[place] for place in places), after=after))
    assert any("asked for" in text for text in judged(log, feeds))


def test_another_event_at_a_position_is_found(log):
    feeds, events = Feeds(), stored(log)
    feeds.answered(1, reply(*events[:2], after=3))
    feeds.answered(2, reply(event(2, EventKind.PRODUCED, 9), after=3))
    assert any("before" in text for text in judged(log, feeds))


def test_an_event_that_is_not_in_the_tables_is_found(log):
    feeds = Feeds()
    feeds.answered(5, reply(event(5), after=6))
    assert any("not there at the end" in text for text in judged(log, feeds))


def test_events_that_are_gone_are_found(log):
    feeds = Feeds()
    feeds.gone(GROUP, 3)
    assert judged(log, feeds) == [f"feed {GROUP}: events from 3 on are gone"]


@pytest.mark.parametrize("place", range(1, 4))
def test_an_event_that_was_never_recorded_is_found(log, place):
    events = stored(log)
    del events[place]
    assert differing(log, events) != []


@pytest.mark.parametrize("place", range(1, 4))
def test_an_event_that_was_recorded_twice_is_found(log, place):
    events = stored(log)
    events.insert(place, events[place])
    assert differing(log, events) != []


def test_the_states_that_events_lead_to():
    steps: list[Any] = [
        event(1, EventKind.PRODUCED, 1, 2),
        event(2, EventKind.LEASED, 1, 2),
        event(3, EventKind.RETRIED, 1),
        event(4, EventKind.DEAD, 2),
    ]
    assert fold(steps) == ({1: "waiting", 2: "moving"}, [])
    states, wrong = fold([*steps, event(5, EventKind.COMPLETED, 1)])
    assert states == {2: "moving"}
    assert wrong == ["event 5: COMPLETED of item 1, which is waiting"]
    assert fold([RecordedEvent(1, EventKind.LEASED, 1)])[1] == ["event 1, LEASED, has the items ()"]
