"""Hellos: which node may connect to which."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.limits import NODE_NAME_CHARS_MAX, PEER_HELLO_BYTES_MAX, STARTS_KEPT_MAX
from querator.model.starts import NodeStart
from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp.hello import (
    Hello,
    HelloResult,
    KnownPeer,
    PeerInfo,
    Query,
    decode_hello,
    encode_hello,
    judge,
)


def info(name: str, incarnation: str = "1", cluster_id: str | None = "c") -> PeerInfo:
    return PeerInfo(
        name=name,
        incarnation=incarnation,
        cluster_id=cluster_id,
        peer_address="127.0.0.1:1",
        client_address="127.0.0.1:2",
        zone="",
        boots=1,
        version="0.1.0",
    )


OWN = info("m", "own")
A = Hello(info("a", "x"), "m", "run", 5)
KNOWN = {"a": KnownPeer("a:1"), "z": KnownPeer("z:1")}


def judged(
    hello: Hello,
    *,
    own: PeerInfo = OWN,
    incarnation: str | None = None,
    open_: Hello | None = None,
    dialed: str | None = None,
) -> HelloResult | tuple[Code, str]:
    known = {**KNOWN, "a": KnownPeer("a:1", incarnation)}
    try:
        return judge(hello, own, known=known, open_=open_, dialed=dialed)
    except PeerRefused as refused:
        return refused.code, refused.reason


def changed(hello: Hello = A, **fields: object) -> Hello:
    return msgspec.structs.replace(hello, **fields)


def test_a_known_node_may_connect():
    assert judged(A) is HelloResult.NEW
    assert judged(A, incarnation="x") is HelloResult.NEW
    assert judged(Hello(info("z"), "m", "run", 5), dialed="z") is HelloResult.NEW


@pytest.mark.parametrize(
    ("hello", "options", "code", "words"),
    [
        (A, {"own": info("m", cluster_id=None)}, Code.NOT_FORMED, "m belongs to no cluster"),
        (changed(info=info("a", "x", None)), {}, Code.NOT_FORMED, "a belongs to no cluster"),
        (changed(info=info("a", "x", "e")), {}, Code.CLUSTER, "a belongs to cluster e, and m to c"),
        (changed(info=info("m", "y")), {}, Code.OWN_NAME, "named m, as this node is"),
        (changed(info=OWN), {}, Code.OWN_NAME, "this node itself"),
        (changed(to="b"), {}, Code.WRONG_NODE, "b was dialed, but m answered"),
        (changed(info=info("b")), {"dialed": "z"}, Code.WRONG_NODE, "z was dialed, but b answered"),
        (changed(info=info("b")), {}, Code.UNKNOWN_NAME, "b is not one of the peers of m"),
        (changed(info=info("z")), {}, Code.DIRECTION, "m dials z"),
        (A, {"incarnation": "w"}, Code.INCARNATION, "known as incarnation w, and this is x"),
        (A, {"open_": changed(info=info("a", "w"))}, Code.INCARNATION, "incarnation w is connec"),
        (A, {"open_": changed(run="another")}, Code.SECOND, "another process"),
        (A, {"open_": A}, Code.OVERTAKEN, "later connection"),
        (A, {"open_": changed(dial=6)}, Code.OVERTAKEN, "later connection"),
    ],
)
def test_others_may_not(hello, options, code, words):
    answer = judged(hello, **options)
    assert isinstance(answer, tuple)
    assert answer[0] is code
    assert words in answer[1]


def test_a_later_connection_of_the_same_process_replaces_the_one_before():
    assert judged(A, open_=changed(dial=4)) is HelloResult.REPLACES


def test_hellos_travel():
    assert decode_hello(encode_hello(A)) == A
    assert decode_hello(encode_hello(Query())) == Query()
    asks = Query(info("d", cluster_id=None))
    assert decode_hello(encode_hello(asks)) == asks
    name = "n" * NODE_NAME_CHARS_MAX
    long = info(name, "i" * 64, "c" * 64)
    longest = Hello(
        msgspec.structs.replace(
            long,
            peer_address="p" * 263,
            client_address="c" * 263,
            zone="z" * 263,
            starts=tuple(NodeStart(1 << 63, 1 << 63, 1 << 63) for _ in range(STARTS_KEPT_MAX)),
        ),
        name,
        "r" * 64,
        1 << 63,
    )
    assert decode_hello(encode_hello(longest)) == longest
    assert len(encode_hello(longest)) < PEER_HELLO_BYTES_MAX


def test_a_later_release_may_say_more():
    fields = msgspec.msgpack.decode(encode_hello(A))
    fields[1].append("more")
    assert decode_hello(msgspec.msgpack.encode([*fields, "and more"])) == A


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a\n", "ä", "n" * (NODE_NAME_CHARS_MAX + 1)])
def test_names_that_are_none_are_refused(name):
    with pytest.raises(PeerRefused, match="cannot be read"):
        decode_hello(encode_hello(changed(info=info(name))))


@given(st.binary(max_size=500))
def test_garbage_is_refused(payload):
    with pytest.raises(PeerRefused):
        decode_hello(payload)


@given(st.data())
def test_a_changed_hello_is_a_hello_or_refused(data):
    payload = bytearray(encode_hello(A))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_hello(bytes(payload))
    except PeerRefused:
        return


def test_nesting_is_no_way_to_break_it():
    with pytest.raises(PeerRefused):
        decode_hello(b"\x91" * 4000)
    with pytest.raises(PeerRefused):
        decode_hello(b"\x92\xa5query" + b"\x91" * 4000)
