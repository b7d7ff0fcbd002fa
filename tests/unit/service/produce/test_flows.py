"""The groups and keys that reach the partitions of fair and keyed queues."""

from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.calls import ProduceCall
from querator.model.commands import NO_SLOT, FlowNames
from querator.model.errors import QueratorError
from querator.model.ids import GroupId, QueueId
from querator.model.item_options import NO_FLOW
from querator.model.queues import Queue, QueueKind, QueueSettings, QueueState
from querator.service.produce.flows import flows_of, flows_of_moved
from querator.service.produce.split import cut, whole
from querator.v1 import items_pb2
from querator.wire.flow_names import flow_names


def queue(kind: QueueKind) -> Queue:
    return Queue(
        namespace="n",
        name="q",
        id=QueueId(7),
        state=QueueState.ACTIVE,
        settings=QueueSettings(kind=kind),
        settings_version=1,
        created_at_ms=0,
        groups=(GroupId(1),),
    )


def names(*of_items: str) -> FlowNames | None:
    by_ordinal = {ordinal: name.encode() for ordinal, name in enumerate(of_items) if name}
    return flow_names(by_ordinal, len(of_items)) if by_ordinal else None


def call(groups: FlowNames | None, keys: FlowNames | None) -> ProduceCall:
    return ProduceCall("n", "q", b"", b"", groups=groups, keys=keys)


def test_each_kind_gets_what_it_needs() -> None:
    both = call(names("eu", "", "us"), names("k", "l", ""))
    assert flows_of(queue(QueueKind.PLAIN), both) is None
    assert flows_of(queue(QueueKind.FAIR), both) == names("eu", "", "us")
    assert flows_of(queue(QueueKind.KEYED), both) == names("k", "l", "")
    assert flows_of(queue(QueueKind.FAIR), call(None, names("k"))) is None


@pytest.mark.parametrize(
    ("path", "limit", "value"),
    [
        (".", "", "."),
        ("eu.", "", "eu."),
        ("eu..de", "", "eu..de"),
        (".".join("a" * 200), "8 levels", "200 levels"),
        ("é" * 257, "512 bytes", "514 bytes"),
    ],
)
def test_a_fair_queue_refuses_a_group_by_its_item(path: str, limit: str, value: str) -> None:
    bad = call(names("", "eu", path, path), None)
    with pytest.raises(QueratorError) as caught:
        flows_of(queue(QueueKind.FAIR), bad)
    error = caught.value
    assert (error.field, error.limit, error.value) == ("items[2].group", limit, value)
    assert flows_of(queue(QueueKind.PLAIN), bad) is None
    assert flows_of(queue(QueueKind.KEYED), bad) is None


def test_the_deepest_path_is_allowed() -> None:
    deepest = names(".".join("a" * 8))
    assert flows_of(queue(QueueKind.FAIR), call(deepest, None)) == deepest


def test_moved_items_bring_their_names_and_bad_paths_count_as_none() -> None:
    items = [items_pb2.Item(group="eu", key="k"), items_pb2.Item(group="eu..de"), None]
    items += [items_pb2.Item(payload=b"x", group="eu", key="l")]
    pieces = [b"" if one is None else _stored(one) for one in items]
    stored, lengths = b"".join(pieces), pack("<4I", *map(len, pieces))
    assert flows_of_moved(queue(QueueKind.PLAIN), stored, lengths) is None
    assert flows_of_moved(queue(QueueKind.FAIR), stored, lengths) == names("eu", "", "", "eu")
    assert flows_of_moved(queue(QueueKind.KEYED), stored, lengths) == names("k", "", "", "l")
    plain = _stored(items_pb2.Item(payload=b"x"))
    assert flows_of_moved(queue(QueueKind.FAIR), plain, pack("<I", len(plain))) is None


def _stored(item: items_pb2.Item) -> bytes:
    return items_pb2.LeasedBatch(items=[item]).SerializeToString()


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b", "c.d"]), st.sampled_from([NO_SLOT, *range(9)])),
        min_size=1,
    ),
    st.integers(1, 4),
)
def test_a_cut_request_keeps_the_group_of_each_item(
    items: list[tuple[str, int]], partitions: int
) -> None:
    count = len(items)
    request = ProduceCall(
        "n",
        "q",
        items=bytes(range(count)) if count < 256 else bytes(count),
        lengths=pack(f"<{count}I", *[1] * count),
        slots=pack(f"<{count}H", *(slot for _, slot in items)),
    )
    flows = names(*(group for group, _ in items))
    parts = cut(whole(request, 0, routing=0, flows=flows), home=0, partitions=partitions, routing=1)
    seen = {}
    for part in parts:
        there = part.command.flows
        positions = part.indexes or tuple(range(count))
        numbers = [NO_FLOW] * len(positions)
        if there is not None:
            assert there.names
            assert len(set(there.names)) == len(there.names)
            numbers = list(unpack(f"<{len(positions)}H", there.items))
            assert {*numbers} - {NO_FLOW} == {*range(len(there.names))}, "only names in use"
        for position, number in zip(positions, numbers, strict=True):
            assert there is not None or number == NO_FLOW
            name = b"" if there is None or number == NO_FLOW else there.names[number]
            seen[position] = name.decode()
    assert seen == {position: group for position, (group, _) in enumerate(items)}
