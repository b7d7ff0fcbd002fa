"""This node's description in handshakes, and its check of other nodes' descriptions."""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from querator.model.limits import PEER_DESCRIPTION_BYTES_MAX
from querator.raft.refusals import Code, PeerRefused
from querator.raft.starts import StartMemory
from querator.raft.tcp.connection import PeerConnection
from querator.raft.tcp.frames import NONCE_BYTES, FrameKind
from querator.raft.tcp.handshake import Handshake, Reply
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

NEWCOMERS_MAX: Final = 64
"""Most nodes without a cluster that are remembered; the others ask again."""
WAITING_S: Final = 5.0
"""A node without a cluster that has not asked for this long does not wait any more."""
OLD_COPY_S: Final = 60.0
"""While the real node is connected, a refused copy of its data is reported for this long."""


class Greeter:
    """Handshakes of this node. Only the raft thread calls it, except that any thread may call
    `describe`, `newcomers`, `waiting` and `old_copies`.
    """

    def __init__(
        self,
        own: PeerInfo,
        token: bytes,
        starts: StartMemory,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`token` is not empty: an empty token would prove nothing."""
        assert token
        self.own = own
        self._starts = starts
        self.known: Mapping[str, KnownPeer] = {}
        self._old_copies: dict[str, tuple[float, str]] = {}
        """When a node was refused last for an old copy of its data, and the reason, by name."""
        self._token = token
        self._run = secrets.token_hex(16)
        self._dials = 0
        self._description = b""
        self._newcomers: dict[str, PeerInfo] = {}
        self._now_s = now_s
        self._waiting: dict[str, tuple[float, PeerInfo]] = {}
        """Nodes without a cluster, by name, and when they asked last."""
        # Finds a description here that others would refuse.
        decode_hello(encode_hello(self._hello(own.name, 0)))

    def describe(self, description: bytes) -> None:
        """Sets the answer to queries from here on."""
        assert len(description) <= PEER_DESCRIPTION_BYTES_MAX
        self._description = description

    def newcomers(self) -> tuple[PeerInfo, ...]:
        """The nodes without a cluster that have asked since the last call."""
        asked, self._newcomers = self._newcomers, {}
        return tuple(asked.values())

    def waiting(self) -> tuple[PeerInfo, ...]:
        """The nodes without a cluster that still ask, by name."""
        since_s = self._now_s() - WAITING_S
        asked = sorted(self._waiting.copy().items())
        return tuple(info for _, (asked_s, info) in asked if asked_s >= since_s)

    def old_copies(self, connected: Collection[str]) -> dict[str, str]:
        """Nodes that were refused for an old copy of their data, with the reason, by name. Those
        that are `connected` with the newest data are left out after `OLD_COPY_S`.
        """
        since_s = self._now_s() - OLD_COPY_S
        runs = {*connected, self.own.name}
        return {
            name: reason
            for name, (refused_s, reason) in self._old_copies.copy().items()
            if name not in runs or refused_s >= since_s
        }

    def change(self, **fields: str | None) -> None:
        """Changes fields of `own`."""
        self.own = msgspec.structs.replace(self.own, **fields)

    def dialed(self) -> dict[str, str]:
        """Addresses of the nodes that this one dials, by name."""
        if self.own.cluster_id is None:
            return {}
        known = self.known.items()
        return {name: peer.address for name, peer in known if self.own.name < name}

    def accept(self) -> Handshake:
        return Handshake.accept(self._token, secrets.token_bytes(NONCE_BYTES))

    def dial(self, name: str) -> tuple[Handshake, Reply]:
        self._dials += 1
        payload = encode_hello(self._hello(name, self._dials))
        return Handshake.dial(self._token, secrets.token_bytes(NONCE_BYTES), payload)

    def greet(
        self, connection: PeerConnection, handshake: Handshake, open_: Iterable[PeerConnection]
    ) -> tuple[FrameKind, bytes]:
        """The frame to send to a node that has proven the token. `open_` are the open connections.
        Raises PeerRefused.
        """
        hello = decode_hello(handshake.payload)
        if isinstance(hello, Query):
            if connection.dialed is not None:
                raise PeerRefused(Code.UNEXPECTED, "it answers with a question")
            if hello.info is not None:
                self._look_at(hello.info)
            return handshake.agree(self._description)
        connection.hello = hello
        self.judge(connection, hello, open_)
        if connection.dialed is not None:
            return handshake.agree()
        return handshake.agree(encode_hello(self._hello(hello.info.name, hello.dial)))

    def _look_at(self, info: PeerInfo) -> None:
        """Checks the description of a node that sends a query. Raises PeerRefused for an old
        copy: it must not start.
        """
        if info.cluster_id is None:
            if len(self._newcomers) < NEWCOMERS_MAX:
                self._newcomers[info.name] = info
            if info.name in self._waiting or len(self._waiting) < NEWCOMERS_MAX:
                self._waiting[info.name] = self._now_s(), info
        elif info.cluster_id == self.own.cluster_id:
            self._judge_starts(info)

    def _judge_starts(self, info: PeerInfo) -> None:
        try:
            self._starts.judge(info.key, info.starts)
        except PeerRefused as refused:
            self._old_copies[info.name] = self._now_s(), refused.reason
            raise

    def judge(
        self, connection: PeerConnection, hello: Hello, open_: Iterable[PeerConnection]
    ) -> HelloResult:
        """See `hello.judge` and `StartMemory.judge`."""
        name = hello.info.name
        before = next((other.hello for other in open_ if other.name == name), None)
        dialed = connection.dialed
        # First: a copy that runs beside its original must learn that it is a copy.
        judge(hello, self.own, known=self.known, open_=None, dialed=dialed)
        self._judge_starts(hello.info)
        return judge(hello, self.own, known=self.known, open_=before, dialed=dialed)

    def judge_again(
        self, open_: Iterable[PeerConnection]
    ) -> list[tuple[PeerConnection, PeerRefused]]:
        """The open connections that may not stay open, with the reasons."""
        refusals = []
        for connection in open_:
            assert connection.hello is not None
            try:
                self.judge(connection, connection.hello, ())
            except PeerRefused as refused:
                refusals.append((connection, refused))
        return refusals

    def meet(self, info: PeerInfo) -> None:
        """The connection to the node is open."""
        self._starts.meet(info.key, info.starts)
        self._old_copies.pop(info.name, None)
        self._waiting.pop(info.name, None)

    def _hello(self, to: str, dial: int) -> Hello:
        own = msgspec.structs.replace(self.own, starts=self._starts.own)
        return Hello(own, to, self._run, dial)
