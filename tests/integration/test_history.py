"""The checkers find what is wrong: each test holds one wrong history."""

from tests.integration.history import Completion, Delivery, History


def good() -> History:
    history = History(acknowledged={"a", "b"})
    history.deliveries = [
        Delivery("a", "l1", 1, 0.0, 1.0),
        Delivery("b", "l1", 1, 0.0, 1.0),
        Delivery("b", "l2", 2, 3.0, 4.0),
    ]
    history.completions = [
        Completion("a", "l1", 1.0, 2.0, repeated=False),
        Completion("a", "l1", 2.0, 3.0, repeated=True),
        Completion("b", "l2", 4.0, 5.0, repeated=False),
    ]
    return history


def test_a_good_history_has_no_violations() -> None:
    assert good().violations() == []


def test_an_acknowledged_item_that_is_gone_is_found() -> None:
    history = good()
    history.acknowledged.add("c")
    assert history.violations() == ["c: acknowledged, but lost"]


def test_an_unknown_complete_may_have_happened() -> None:
    history = good()
    history.acknowledged.add("c")
    history.unsettled.add(("c", "l3"))
    assert history.violations() == []


def test_a_second_accepted_complete_is_found() -> None:
    history = good()
    history.completions.append(Completion("b", "l2", 6.0, 7.0, repeated=False))
    assert history.violations() == ["b: 2 completes accepted"]


def test_a_complete_under_two_leases_is_found() -> None:
    history = good()
    history.completions.append(Completion("b", "l1", 6.0, 7.0, repeated=True))
    assert history.violations() == ["b: completed under 2 leases"]


def test_an_item_stored_twice_is_found() -> None:
    history = good()
    history.deliveries.append(Delivery("a", "l9", 1, 0.5, 1.5))
    assert history.violations() == ["a: attempt 1 under 2 leases"]


def test_an_item_that_comes_back_is_found() -> None:
    history = good()
    history.deliveries.append(Delivery("a", "l9", 2, 6.0, 7.0))
    assert history.violations() == ["a: delivered (attempt 2) after it was completed"]


def test_attempts_that_go_back_are_found() -> None:
    history = good()
    history.completions = [c for c in history.completions if c.reference != "b"]
    history.acknowledged.remove("b")
    history.deliveries.append(Delivery("b", "l9", 1, 6.0, 7.0))
    assert "b: attempt 1 after attempt 2" in history.violations()
