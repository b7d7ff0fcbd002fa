"""Descriptions that two nodes exchange in the handshake, and the rules for their connection.

Hellos are msgpack arrays; a later release may add fields at their ends. A hello counts only after
its sender has proven the cluster's token.
"""

import enum
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from querator.model.limits import NODE_NAME_CHARS_MAX, PEER_HELLO_BYTES_MAX, STARTS_KEPT_MAX
from querator.model.nodes import NodeKey, node_key
from querator.model.starts import Starts
from querator.raft.refusals import Code, PeerRefused

_Name = Annotated[str, Meta(min_length=1, max_length=NODE_NAME_CHARS_MAX, pattern=r"\A[!-.0-~]+\Z")]
"""Printable ASCII without spaces and slashes."""

_Word = Annotated[str, Meta(max_length=NODE_NAME_CHARS_MAX + 10, pattern=r"\A[!-~]*\Z")]
_Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[!-.0-~]+\Z")]


class PeerInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A node's description of itself. Addresses are HOST:PORT, as others should use them. `boots`
    counts the starts of its data, and `starts` are the last of them. `version` is its release.
    `cluster_id` is None until it has one.
    """

    name: _Name
    incarnation: _Id
    cluster_id: _Id | None
    peer_address: _Word
    client_address: _Word
    zone: _Word
    boots: int
    version: _Word
    starts: Annotated[Starts, Meta(max_length=STARTS_KEPT_MAX)] = ()

    @property
    def key(self) -> NodeKey:
        return node_key(self.name, self.incarnation)


class KnownPeer(msgspec.Struct, frozen=True):
    """A node that may connect. `address` is HOST:PORT, a name or a number. If `incarnation` is
    given, only that incarnation may connect.
    """

    address: str
    incarnation: str | None = None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Sent by both sides. `to` is the node that the sender means to reach. `run` is one random id
    for each process. `dial` counts the dialer's attempts in its process, and the acceptor repeats
    it.
    """

    info: PeerInfo
    to: _Name
    run: _Id
    dial: int


class Query(msgspec.Struct, frozen=True, array_like=True, tag="query"):
    """The dialer asks only for the node's description. `info`: its own description, if it wants to
    be known (a node without a cluster), or checked (one that starts again).
    """

    info: PeerInfo | None = None


class HelloResult(enum.Enum):
    """The result of a hello."""

    NEW = enum.auto()
    REPLACES = enum.auto()
    """It replaces the open connection to the same process."""


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Hello | Query] = msgspec.msgpack.Decoder(Hello | Query)


def encode_hello(hello: Hello | Query) -> bytes:
    payload = _encode(hello)
    assert len(payload) <= PEER_HELLO_BYTES_MAX
    return payload


def decode_hello(payload: bytes) -> Hello | Query:
    """Raises PeerRefused."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerRefused(Code.UNEXPECTED, f"its hello cannot be read: {error}") from error


def judge(
    hello: Hello,
    own: PeerInfo,
    *,
    known: Mapping[str, KnownPeer],
    open_: Hello | None,
    dialed: str | None,
) -> HelloResult:
    """Checks whether the node may connect. `open_` is the hello on the open connection to a node of
    its name. `dialed` is the name that this node meant to dial (None: it was dialed).

    Raises PeerRefused.
    """
    info = hello.info
    name = info.name
    _judge_cluster(info, own)
    if name == own.name:
        raise PeerRefused(
            Code.OWN_NAME,
            "it is this node itself: an address of another node leads here"
            if info.incarnation == own.incarnation
            else f"it is named {name}, as this node is: names must differ",
        )
    if hello.to != own.name or dialed not in (None, name):
        wanted, met = (hello.to, own.name) if dialed is None else (dialed, name)
        raise PeerRefused(
            Code.WRONG_NODE, f"node {wanted} was dialed, but {met} answered: check the addresses"
        )
    if name not in known:
        raise PeerRefused(Code.UNKNOWN_NAME, f"node {name} is not one of the peers of {own.name}")
    if dialed is None and name > own.name:
        raise PeerRefused(
            Code.DIRECTION, f"{own.name} dials {name}, not the other way: the smaller name dials"
        )
    incarnation = known[name].incarnation
    if incarnation not in (None, info.incarnation):
        raise PeerRefused(
            Code.INCARNATION,
            f"node {name} is known as incarnation {incarnation}, and this is {info.incarnation}: "
            "a node that lost its data waits until it is replaced",
        )
    return HelloResult.NEW if open_ is None else _judge_again(hello, open_)


def _judge_cluster(info: PeerInfo, own: PeerInfo) -> None:
    if own.cluster_id is None:
        raise PeerRefused(Code.NOT_FORMED, f"node {own.name} belongs to no cluster yet")
    if info.cluster_id is None:
        raise PeerRefused(Code.NOT_FORMED, f"node {info.name} belongs to no cluster yet")
    if info.cluster_id != own.cluster_id:
        raise PeerRefused(
            Code.CLUSTER,
            f"node {info.name} belongs to cluster {info.cluster_id}, "
            f"and {own.name} to {own.cluster_id}",
        )


def _judge_again(hello: Hello, open_: Hello) -> HelloResult:
    name = hello.info.name
    if hello.info.incarnation != open_.info.incarnation:
        raise PeerRefused(
            Code.INCARNATION,
            f"a node {name} of incarnation {open_.info.incarnation} is connected, and this is "
            f"{hello.info.incarnation}: names must differ",
        )
    if hello.run != open_.run:
        raise PeerRefused(
            Code.SECOND,
            f"another process with the name and the data of node {name} is connected",
        )
    if hello.dial <= open_.dial:
        raise PeerRefused(Code.OVERTAKEN, f"node {name} has a later connection")
    return HelloResult.REPLACES
