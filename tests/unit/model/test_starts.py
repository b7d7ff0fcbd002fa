"""Which of two images of a node's data is later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.limits import STARTS_KEPT_MAX
from querator.model.starts import Kin, NodeStart, Starts, kin, marked, newer, next_starts


def chain(*starts: tuple[int, int] | tuple[int, int, int]) -> Starts:
    return tuple(NodeStart(*start) for start in starts)


REAL = chain((1, 11), (2, 22, 7), (3, 33, 4))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (REAL, Kin.SAME),
        (chain((1, 11), (2, 22, 7), (3, 33, 2)), Kin.SAME),
        (chain((1, 11), (2, 22, 7), (3, 33, 4), (4, 44)), Kin.LATER),
        (chain((1, 11), (2, 22, 7), (3, 33, 5), (4, 44)), Kin.LATER),
        (chain((1, 11), (2, 22, 7), (3, 33, 3), (4, 99)), Kin.OLD),
        (chain((1, 11), (2, 22, 7), (3, 99)), Kin.OTHER),
        (chain((1, 11), (2, 22, 7), (3, 99), (4, 98)), Kin.OTHER),
        (chain((1, 11), (2, 22, 7)), Kin.OLD),
        (chain((7, 77), (8, 88)), Kin.LATER),
    ],
)
def test_what_a_chain_is_to_the_last_start_that_is_known(told: Starts, expected: Kin):
    assert kin(told, REAL[-1]) is expected


def test_a_chain_keeps_its_last_starts():
    starts: Starts = ()
    for boots in range(1, STARTS_KEPT_MAX + 4):
        before = starts
        starts = marked(next_starts(starts, boots=boots, nonce=boots))
        assert not before or kin(starts, before[-1]) is Kin.LATER
    assert [start.boots for start in starts] == list(range(4, STARTS_KEPT_MAX + 4))
    assert {start.marks for start in starts} == {1}


def test_of_two_processes_on_copies_the_one_with_the_later_image_counts():
    original = chain((1, 11, 9))
    twin = chain((1, 11, 5), (2, 99), (3, 98))
    assert newer(original, twin) == newer(twin, original) == original


@st.composite
def _histories(draw: st.DrawFn) -> list[Starts]:
    """Images of one node's data. Copies of some of them were started again."""
    images = [marked(next_starts((), boots=1, nonce=1))]
    for nonce in range(2, draw(st.integers(2, 12))):
        image = draw(st.sampled_from(images))
        if draw(st.booleans()):
            images.append(marked(image))
        else:
            images.append(next_starts(image, boots=image[-1].boots + 1, nonce=nonce))
    return images


@given(_histories(), st.data())
def test_which_counts_does_not_depend_on_who_asks(images: list[Starts], data: st.DataObject):
    one, other = data.draw(st.sampled_from(images)), data.draw(st.sampled_from(images))
    chosen = newer(one, other)
    assert chosen == newer(other, one)
    assert chosen in (one, other)
    if kin(one, other[-1]) is Kin.LATER:
        assert chosen == one
