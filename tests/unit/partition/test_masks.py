"""Sets as integers, compared with Python's sets."""

from itertools import pairwise
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from querator.model.fair_shares import fair_shares
from querator.partition import masks
from querator.partition.rows import Block

sets = st.sets(st.integers(0, 255), max_size=256)


def mask_of(items: set[int]) -> int:
    return sum(1 << item for item in items)


@given(sets)
def test_runs_ordinals_and_bytes(items):
    mask = mask_of(items)
    assert list(masks.ordinals(mask)) == sorted(items)
    assert masks.from_bytes(masks.to_bytes(mask)) == mask
    if items:
        assert masks.low(mask) == min(items)
    runs = list(masks.runs(mask))
    assert all(after[0] > before[0] + before[1] for before, after in pairwise(runs))


@given(sets, st.integers(0, 300))
def test_first(items, count):
    assert set(masks.ordinals(masks.first(mask_of(items), count))) == set(sorted(items)[:count])


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9))))
def test_merged_ranges(ranges):
    merged = masks.merge_ranges(ranges)
    assert {s for first, count in merged for s in range(first, first + count)} == {
        s for first, count in ranges for s in range(first, first + count)
    }
    assert all(b[0] > a[0] + a[1] for a, b in pairwise(merged))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.data())
def test_sizes_and_what_fits(lengths, data):
    chosen = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))
    offsets = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    block = Block(
        index=1,
        part=0,
        count=len(lengths),
        produced_at_ms=0,
        expire_at_ms=0,
        expiry_head_ms=0,
        offsets=pack(f"<{len(offsets)}I", *offsets),
    )
    mask = mask_of(chosen)
    assert block.size(mask) == sum(lengths[n] for n in chosen)
    bytes_max = data.draw(st.integers(0, sum(lengths)))
    fitting: list[int] = []
    for n in sorted(chosen):
        if sum(lengths[m] for m in fitting) + lengths[n] > bytes_max:
            break
        fitting.append(n)
    assert list(masks.ordinals(block.fitting(mask, bytes_max))) == fitting


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 200))
def test_shares_are_fair(wishes, there):
    """As if the items were dealt one at a time."""
    dealt = [0] * len(wishes)
    left = min(there, sum(wishes))
    while left:
        for place, wish in enumerate(wishes):
            if left and dealt[place] < wish:
                dealt[place] += 1
                left -= 1
    assert fair_shares(wishes, min(there, sum(wishes))) == dealt
