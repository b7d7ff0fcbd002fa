"""The checker of results finds what is wrong with answers."""

from querator.model.ids import GroupId, LeaseNumber, PartitionNumber, format_lease_id
from querator.model.result_calls import EndedItem, ItemEnd
from tests.simulation.whole.answers import Answers
from tests.simulation.whole.tries import Place

LEASE = format_lease_id(GroupId(7), PartitionNumber(0), LeaseNumber(1))
HERE = Place(7, 3)


def answers() -> Answers:
    known = Answers()
    known.asking(["a", "b"])
    known.stored(7, 0, 3, "a")
    known.stored(7, 0, 4, "plain")
    return known


def completed(data: bytes = b"") -> EndedItem:
    return EndedItem(3, ItemEnd.COMPLETED, data)


def dead(error: str = "") -> EndedItem:
    return EndedItem(3, ItemEnd.DEAD, reason=3, error=error)


def judged(known: Answers, *items: EndedItem) -> str:
    for item in items:
        known.answered(HERE, item)
    return " | ".join(known.judge())


def test_only_items_that_asked_and_are_stored_are_waited_for():
    known = answers()
    assert known.open() == [HERE]
    assert known.asked == {HERE: (0, 3)}
    known.answered(HERE, completed())
    assert known.open() == []


def test_the_data_of_the_executed_complete_is_right():
    known = answers()
    known.returning(LEASE, 3, b"lost").executed = False
    known.returning(LEASE, 3, b"done").executed = True
    assert judged(known, completed(b"done"), completed(b"done")) == ""
    assert known.compared == 1


def test_other_data_than_that_of_the_executed_complete_is_wrong():
    known = answers()
    known.returning(LEASE, 3, b"done").executed = True
    assert "answered b'other', not one of [b'done']" in judged(known, completed(b"other"))


def test_no_data_is_wrong_after_a_complete_with_data():
    known = answers()
    known.returning(LEASE, 3, b"done").executed = True
    assert "answered b''" in judged(known, completed())


def test_a_complete_that_may_have_been_executed_may_be_the_one():
    for data in (b"perhaps", b""):
        known = answers()
        known.returning(LEASE, 3, b"perhaps")
        known.returning(LEASE, 3, b"lost").executed = False
        assert judged(known, completed(data)) == ""
    known = answers()
    known.returning(LEASE, 3, b"lost").executed = False
    assert "not one of [b'']" in judged(known, completed(b"lost"))


def test_two_answers_are_wrong():
    known = answers()
    known.returning(LEASE, 3, b"x")
    known.returning(LEASE, 3, b"y")
    assert "has several answers" in judged(known, completed(b"x"), completed(b"y"))


def test_an_error_that_was_sent_is_right():
    known = answers()
    known.failing(LEASE, [3, 4], "slow")
    assert judged(known, dead("slow")) == ""
    assert judged(answers(), dead()) == ""


def test_an_error_that_no_consumer_has_sent_is_wrong():
    known = answers()
    known.failing(LEASE, [4], "slow")
    assert "dead by 'slow', which no consumer has said" in judged(known, dead("slow"))


def test_a_completed_item_is_not_dead():
    known = answers()
    known.returning(LEASE, 3, b"x").executed = True
    assert "was completed, and is answered as dead" in judged(known, dead())


def test_items_that_are_not_removed_are_answered_otherwise():
    assert "answered REMOVED" in judged(answers(), EndedItem(3, ItemEnd.REMOVED))
    assert "answered NONE: gone" in judged(answers(), EndedItem(3, ItemEnd.NONE, error="gone"))
