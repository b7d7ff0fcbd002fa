"""The checker of chosen items, on histories that are wrong."""

from querator.model.calls import ChosenItems, LeasedRun, LoadedItems
from tests.simulation.whole.choosing import Choices, kind_of, shade_of
from tests.simulation.whole.programs import wire_item

REFERENCE = "chosen.p.4"


def delivered(chosen: ChosenItems) -> list[str]:
    """What the checker finds when item 5 of partition 1 comes to a lease."""
    run = LeasedRun(
        lease_id="7.1.1",
        queue="chosen",
        partition=1,
        attempt=1,
        deadline_ms=0,
        remaining_ms=0,
        repeated=False,
        loaded=LoadedItems(5, (), 1, 0, (), wire_item(REFERENCE.encode())),
    )
    choices = Choices()
    choices.delivered(chosen, (run,))
    assert choices.taken == 1
    return choices.found


def test_what_was_asked_for_is_right() -> None:
    assert (kind_of(REFERENCE), shade_of(REFERENCE)) == ("mail", "light")
    assert delivered(ChosenItems(("0-5", "1-5"))) == []
    assert delivered(ChosenItems(kinds=("push", "mail"), attributes=(("shade", "light"),))) == []


def test_an_item_that_was_not_named_is_found() -> None:
    [found] = delivered(ChosenItems(("0-5", "1-4")))
    assert found.startswith("1-5 came to a lease of")


def test_an_item_of_another_kind_is_found() -> None:
    assert len(delivered(ChosenItems(kinds=("push",)))) == 1


def test_an_item_with_another_attribute_is_found() -> None:
    assert len(delivered(ChosenItems(attributes=(("shade", "dark"),)))) == 1
