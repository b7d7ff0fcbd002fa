"""The other nodes over TCP: one connection for each pair, for all groups. The real form of `Peers`.

Of two nodes the one with the smaller name dials, so that two connections of one pair never compete.
A later connection of the same process replaces the earlier one. A node without a cluster id dials
no node and answers only queries (`raft.tcp.query`).

    accepted ─► shaking ──► open ──► closed          an error before `open` is Refused:
    dialed ─► connecting ─┘                          one line in the log, and no other effect

All sockets are in one epoll, whose descriptor is readable while there is something to do. Other
threads may call only `set_peers`, `set_cluster_id`, `set_description`, `connected`, `quiet`,
`newcomers`, `waiting` and `old_copies`.

A connection ends when received bytes are damaged, when nothing arrives for PEER_SILENCE_MS_MAX (an
idle node pings), or when its queue grows beyond PEER_SEND_BYTES_CAP. Long before that its node is
`Quiet`: when nothing has arrived for PEER_QUIET_MS, and for three times the longest recent gap, so
that a link with regular gaps does not cause it each time. Time during which this node itself was
held up does not count as silence, because received bytes are read first. It counts as a gap.

The module is longer than 500 lines, because the beginning, the use and the end of connections
belong together: each of the three may end what another one began.
"""

import os
import random
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from querator import telemetry
from querator.model.limits import (
    PEER_CONNECT_MS_MAX,
    PEER_HANDSHAKE_MS_MAX,
    PEER_SEND_BYTES_CAP,
    PEER_SEND_BYTES_MAX,
    PEER_UNPROVEN_MAX,
)
from querator.model.nodes import NodeKey, node_name
from querator.raft.clock import Clock
from querator.raft.messages import MessageError, PeerMessage, decode_frame, encode_frames
from querator.raft.peers import Connected, Disconnected, PeerEvent, Quiet, Received
from querator.raft.refusals import (
    TOLD,
    Code,
    LastingRefusal,
    LastingRefusals,
    OtherTokens,
    PeerRefused,
    RefusalLog,
    TokenMemory,
)
from querator.raft.starts import StartMemory
from querator.raft.tcp import dialing
from querator.raft.tcp.channel import PeerTls
from querator.raft.tcp.connection import PING_S, SILENCE_S, PeerConnection, Phase, set_up
from querator.raft.tcp.frames import OPEN_LIMITS, FrameKind
from querator.raft.tcp.handshake import HandshakeState, refusal_frame
from querator.raft.tcp.hello import HelloResult, KnownPeer, PeerInfo
from querator.raft.tcp.listening import Listener
from querator.raft.tcp.local_hello import Greeter

_CONNECT_S: Final = PEER_CONNECT_MS_MAX / 1000
_HANDSHAKE_S: Final = PEER_HANDSHAKE_MS_MAX / 1000
_GAP_KEPT: Final = 0.99
"""Factor of the longest gap at each check of the timers."""
_NEVER: Final = float("inf")

_log = telemetry.logger(__name__)


class TcpPeers:
    def __init__(
        self,
        node: PeerInfo,
        *,
        listen: str,
        token: bytes,
        peers: Mapping[str, KnownPeer],
        clock: Clock,
        tls: PeerTls | None = None,
        description: bytes = b"",
        chance: random.Random | None = None,
        resolve: dialing.Resolve = dialing.resolve,
        starts: StartMemory | None = None,
        on_old_copy: Callable[[str], None] | None = None,
    ) -> None:
        """Listens at `listen`, HOST:PORT; port 0 takes a free one. `peers` are the nodes that may
        connect, by name; this node's own entry is ignored. An empty `node.peer_address` is replaced
        by the listening address. `tls` None: all bytes are unencrypted. `starts` is the record of
        nodes' starts (None: empty). `on_old_copy` receives, on the thread that calls `receive`, the
        reason of another node that refuses this node's data as an old copy.

        Raises OSError when it cannot listen, ConfigError when `listen` is not HOST:PORT, and
        PeerRefused when others could not read `node`.
        """
        self._clock = clock
        self._tls = tls
        self.starts = StartMemory(node.key, {}) if starts is None else starts
        self._starts_judged = self.starts.version
        self._on_old_copy = on_old_copy
        self._greeter = Greeter(node, token, self.starts, now_s=clock.monotonic_s)
        self._greeter.describe(description)
        self._poll = select.epoll()
        self._listener = Listener(listen, self._poll)
        self.address = self._listener.address
        """HOST:PORT, with the real port."""
        if not node.peer_address:
            self._greeter.change(peer_address=self.address)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)
        self._dialer = dialing.Dialer(
            chance=chance if chance is not None else random.Random(),
            wake=self._wake,
            resolve=resolve,
        )
        self._connections: dict[int, PeerConnection] = {}
        self._open: dict[NodeKey, PeerConnection] = {}
        self._events: list[PeerEvent] = []
        self._refusals = RefusalLog()
        self._tokens = TokenMemory()
        self._lasting = LastingRefusals()
        self._due_s = 0.0
        """When to check timers: never later than the first of them."""
        # Written by any thread under the lock, and taken over by `receive`.
        self._lock = threading.Lock()
        self._closed = False
        self._wanted: dict[str, KnownPeer] | None = None
        self._cluster_id: str | None = node.cluster_id
        self._connected: dict[NodeKey, PeerInfo] = {}
        self._quiet: frozenset[NodeKey] = frozenset()
        self.set_peers(peers)

    # --- any thread ----------------------------------------------------------------------

    def set_peers(self, peers: Mapping[str, KnownPeer]) -> None:
        """Sets the nodes that may connect from here on. Connections to others end."""
        with self._lock:
            self._wanted = dict(peers)
        self._wake()

    def set_cluster_id(self, cluster_id: str) -> None:
        """The node has become a member of its first cluster."""
        with self._lock:
            assert self._cluster_id in (None, cluster_id)
            self._cluster_id = cluster_id
        self._wake()

    def set_description(self, description: bytes) -> None:
        """Sets the answer to queries from here on."""
        self._greeter.describe(description)

    def newcomers(self) -> tuple[PeerInfo, ...]:
        """The nodes without a cluster that have asked for the description since the last call."""
        return self._greeter.newcomers()

    def waiting(self) -> tuple[PeerInfo, ...]:
        """See `Greeter.waiting`."""
        return self._greeter.waiting()

    def connected(self) -> dict[NodeKey, PeerInfo]:
        """The nodes with open connections, and their descriptions."""
        return dict(self._connected)

    def quiet(self) -> frozenset[NodeKey]:
        """The connected nodes of which nothing is heard."""
        return self._quiet

    def old_copies(self) -> dict[str, str]:
        """Nodes that were refused because of an old copy of their data: the reason by name. Of a
        node that is connected, the refusals of the last `OLD_COPY_S`.
        """
        connected = {node_name(key) for key in self._connected}
        return self._greeter.old_copies(connected)

    def other_tokens(self) -> OtherTokens:
        """The nodes that had another cluster token lately."""
        return self._tokens.lately(self._clock.monotonic_s())

    def lasting_refusals(self) -> tuple[LastingRefusal, ...]:
        """Connections that are refused again and again, except for reasons that `other_tokens` and
        `old_copies` report.
        """
        return self._lasting.lately(self._clock.monotonic_s())

    def refused(self) -> dict[str, int]:
        """How many peers this node has refused since its start, by the code of the reason."""
        return dict(self._refusals.counts)

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    # --- the raft thread: Peers --------------------------------------------------------------

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        """See `Peers`. One message fits into a frame: replication bounds what it sends at once."""
        connection = self._open.get(node)
        if connection is None or not messages:
            return
        for body in encode_frames(list(messages)):
            connection.put(FrameKind.MESSAGES, body)
        if connection.queued_bytes > PEER_SEND_BYTES_CAP:
            self._lose(connection, f"{connection.queued_bytes} bytes wait to be sent to it")

    def room_bytes(self, node: NodeKey) -> int:
        connection = self._open.get(node)
        return 0 if connection is None else max(0, PEER_SEND_BYTES_MAX - connection.queued_bytes)

    def flush(self) -> None:
        now_s = self._clock.monotonic_s()
        for connection in list(self._open.values()):
            # While the socket is full, the poll reports when it accepts more.
            if connection.queued_bytes and not connection.watches_room:
                self._send(connection, now_s)

    # --- the raft thread: what drives it --------------------------------------------------------

    def fileno(self) -> int:
        """Descriptor of an epoll that is readable while `receive` has something to do, except
        timers.
        """
        return self._poll.fileno()

    def wait_s(self) -> float | None:
        """Seconds until `receive` must be called even if the descriptor is not readable; None:
        never.
        """
        if self._events:
            return 0.0
        if self._due_s == _NEVER:
            return None
        return max(0.0, self._due_s - self._clock.monotonic_s())

    def receive(self, *, readable: bool = True) -> list[PeerEvent]:
        """Does everything that is possible without waiting: accepts, dials, shakes hands, reads and
        sends. Events of one node are in the order in which they happened. See `PeerLink`.
        """
        now_s = self._clock.monotonic_s()
        if self.starts.version != self._starts_judged:
            self._judge_again(now_s)
        accepts = False
        for descriptor, mask in self._poll.poll(0) if readable else ():
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
                self._take_over(now_s)
            elif descriptor == self._listener.fileno():
                accepts = True
            elif (connection := self._connections.get(descriptor)) is not None:
                self._on_ready(connection, mask, now_s)
        # Last: a descriptor that was closed above may return with a new connection.
        if accepts:
            self._accept(now_s)
        if now_s >= self._due_s:
            self._on_time(now_s)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Ends all connections without an event. No other method may be called after it, except by
        other threads; those calls then do nothing.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connected = {}
        self._listener.close()
        self._poll.close()
        os.close(self._bell)

    # --- what is taken over from other threads ----------------------------------------------------

    def _take_over(self, now_s: float) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
            cluster_id = self._cluster_id
        self._greeter.change(cluster_id=cluster_id)
        if wanted is not None:
            self._greeter.known = wanted
        self._judge_again(now_s)
        self._dialer.set_peers(self._greeter.dialed(), now_s)
        self._due_s = now_s

    def _judge_again(self, now_s: float) -> None:
        """Checks the connected nodes by what is known now."""
        self._starts_judged = self.starts.version
        for connection, refused in self._greeter.judge_again(self._open.values()):
            self._refuse(connection, refused, now_s)

    # --- connections begin ------------------------------------------------------------------------

    def _accept(self, now_s: float) -> None:
        for sock, address in self._listener.accept(now_s):
            self._make_room(now_s)
            try:
                set_up(sock)
            except OSError:
                sock.close()
                continue
            deadline_s = now_s + _HANDSHAKE_S
            connection = PeerConnection(
                sock, address, dialed=None, now_s=now_s, deadline_s=deadline_s
            )
            if self._tls is not None:
                connection.secure(self._tls.accept())
            connection.handshake = self._greeter.accept()
            self._begin(connection, select.EPOLLIN)
        self._due_by(self._listener.due_s)

    def _make_room(self, now_s: float) -> None:
        """Ends the oldest accepted connection that has proven nothing, if there are too many of
        them.
        """
        unproven = [
            connection
            for connection in self._connections.values()
            if connection.dialed is None and connection.phase is Phase.SHAKING
        ]
        if len(unproven) >= PEER_UNPROVEN_MAX:
            reason = (
                f"{PEER_UNPROVEN_MAX} connections have not finished their handshake: this is the "
                "oldest"
            )
            self._refuse(unproven[0], PeerRefused(Code.CROWDED, reason), now_s)

    def _dial(self, now_s: float) -> None:
        for name, address, sock in self._dialer.dial(now_s):
            connection = PeerConnection(
                sock, address, dialed=name, now_s=now_s, deadline_s=now_s + _CONNECT_S
            )
            self._begin(connection, select.EPOLLOUT)

    def _begin(self, connection: PeerConnection, mask: int) -> None:
        descriptor = connection.socket.fileno()
        self._connections[descriptor] = connection
        self._poll.register(descriptor, mask)
        self._due_by(connection.deadline_s)

    def _on_connect(self, connection: PeerConnection, now_s: float) -> None:
        """The connect has ended, with or without success."""
        assert connection.dialed is not None
        failure = connection.connect_error()
        if failure:
            self._lose(connection, os.strerror(failure))
            return
        connection.phase = Phase.SHAKING
        connection.deadline_s = now_s + _HANDSHAKE_S
        self._due_by(connection.deadline_s)
        if self._tls is not None:
            connection.secure(self._tls.dial())
        connection.handshake, opening = self._greeter.dial(connection.dialed)
        connection.put(*opening)
        self._poll.modify(connection.socket, select.EPOLLIN)
        self._send(connection, now_s)

    # --- connections go on ------------------------------------------------------------------------

    def _on_ready(self, connection: PeerConnection, mask: int, now_s: float) -> None:
        if connection.phase is Phase.CONNECTING:
            self._on_connect(connection, now_s)
            return
        if mask & ~select.EPOLLOUT:
            self._read(connection, now_s)
        if mask & select.EPOLLOUT and connection.phase is not Phase.CLOSED:
            self._send(connection, now_s)

    def _read(self, connection: PeerConnection, now_s: float) -> None:
        messages: list[PeerMessage] = []
        trouble: PeerRefused | EOFError | OSError | None = None
        try:
            arrived = connection.receive(now_s)
            if connection.quiet:
                connection.quiet = False
                self._publish()
            while arrived:
                self._take_frames(connection, messages, now_s)
                arrived = connection.phase is not Phase.CLOSED and connection.more()
            if connection.phase is Phase.SHAKING and connection.queued_bytes:
                self._send(connection, now_s)
        except (PeerRefused, EOFError, OSError) as error:
            trouble = error
        if messages:
            assert connection.key is not None
            self._events.append(Received(connection.key, messages))
        if isinstance(trouble, PeerRefused):
            self._refuse(connection, trouble, now_s)
        elif trouble is not None:
            self._on_end(connection, trouble, now_s)

    def _take_frames(
        self, connection: PeerConnection, messages: list[PeerMessage], now_s: float
    ) -> None:
        """Raises PeerRefused and OSError; `messages` has the messages before that."""
        reader = connection.reader
        # Sending the last frame of a handshake may fail and close the connection.
        while connection.phase is not Phase.CLOSED and (arrived := reader.next()) is not None:
            kind, body = arrived
            if connection.phase is Phase.SHAKING:
                self._shake(connection, kind, bytes(body), now_s)
            elif kind is FrameKind.MESSAGES:
                try:
                    messages.extend(decode_frame(body))
                except MessageError as error:
                    raise PeerRefused(Code.DAMAGED, str(error)) from error

    def _on_end(self, connection: PeerConnection, error: EOFError | OSError, now_s: float) -> None:
        reason = "closed by the other side"
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        handshake = connection.handshake
        begun = handshake is not None and handshake.state not in (
            HandshakeState.LISTENING,
            HandshakeState.ANSWERED,
        )
        if connection.phase is Phase.SHAKING and (begun or connection.reader.partial):
            what = "TLS" if connection.awaits_tls else "the handshake"
            refused = PeerRefused(Code.CLOSED, f"it went away in the middle of {what}: {reason}")
            self._refuse(connection, refused, now_s)
        else:
            self._lose(connection, reason)

    def _shake(
        self, connection: PeerConnection, kind: FrameKind, body: bytes, now_s: float
    ) -> None:
        handshake = connection.handshake
        assert handshake is not None
        handshake.binding = connection.binding
        reply = handshake.receive(kind, body)
        if handshake.state is HandshakeState.PROVEN:
            reply = self._greeter.greet(connection, handshake, self._open.values())
        if reply is not None:
            connection.put(*reply)
        if handshake.state is HandshakeState.DONE:
            self._join(connection, now_s)
        if connection.queued_bytes:
            self._send(connection, now_s)

    def _join(self, connection: PeerConnection, now_s: float) -> None:
        """The handshake is done: the connection is open. Raises PeerRefused."""
        hello = connection.hello
        if hello is None:
            raise PeerRefused(Code.UNEXPECTED, "a connection with a question sends nothing else")
        # Another connection of its name may have opened first.
        answer = self._greeter.judge(connection, hello, self._open.values())
        if answer is HelloResult.REPLACES:
            self._lose(self._open[hello.info.key], "it has connected again")
        key = hello.info.key
        connection.key = key
        connection.phase = Phase.OPEN
        connection.reader.limits = OPEN_LIMITS
        connection.gap_s = 0.0
        self._open[key] = connection
        self._greeter.meet(hello.info)
        self._tokens.agreed(hello.info.name)
        self._lasting.agreed(hello.info.name)
        self._publish()
        if connection.dialed is not None:
            self._dialer.opened(connection.dialed, now_s)
        self._due_by(now_s + PING_S)
        self._events.append(Connected(key))
        _log.info("peers.connected", peer=key, address=connection.address)

    def _send(self, connection: PeerConnection, now_s: float) -> None:
        try:
            connection.send(now_s)
        except OSError as error:
            self._on_end(connection, error, now_s)
            return
        watches = connection.queued_bytes > 0
        if watches is not connection.watches_room:
            connection.watches_room = watches
            mask = select.EPOLLIN | (select.EPOLLOUT if watches else 0)
            self._poll.modify(connection.socket, mask)

    # --- time -------------------------------------------------------------------------------------

    def _due_by(self, due_s: float) -> None:
        self._due_s = min(self._due_s, due_s)

    def _on_time(self, now_s: float) -> None:
        self._listener.on_time(now_s)
        for connection in list(self._connections.values()):
            if connection.phase is Phase.OPEN:
                self._look_after(connection, now_s)
            elif now_s >= connection.deadline_s:
                self._time_out(connection, now_s)
        self._due_s = _NEVER
        self._dial(now_s)
        for connection in self._connections.values():
            self._due_by(connection.due_s)
        self._due_by(min(self._listener.due_s, self._dialer.due_s()))

    def _look_after(self, connection: PeerConnection, now_s: float) -> None:
        if now_s >= connection.received_s + SILENCE_S:
            self._lose(connection, f"it has been silent for {SILENCE_S:g} s")
            return
        connection.gap_s *= _GAP_KEPT
        if not connection.quiet and now_s >= connection.quiet_s:
            assert connection.key is not None
            connection.quiet = True
            self._publish()
            self._events.append(Quiet(connection.key))
        if connection.worn:
            self._lose(
                connection, "its keys have reached their age limit: the connection is opened again"
            )
        elif now_s >= connection.sent_s + PING_S and not connection.queued_bytes:
            connection.put(FrameKind.PING)
            self._send(connection, now_s)

    def _time_out(self, connection: PeerConnection, now_s: float) -> None:
        if connection.phase is Phase.CONNECTING:
            self._lose(connection, f"it does not answer within {_CONNECT_S:g} s")
        else:
            reason = f"its handshake was not done within {_HANDSHAKE_S:g} s"
            self._refuse(connection, PeerRefused(Code.TIMEOUT, reason), now_s)

    # --- connections end --------------------------------------------------------------------------

    def _refuse(self, connection: PeerConnection, refused: PeerRefused, now_s: float) -> None:
        """Logs the refusal, sends the reason to the other side if it concerns it, and ends the
        connection.
        """
        self._refusals.refused(
            refused, address=connection.address, name=connection.name, now_s=now_s
        )
        dialed = connection.dialed
        self._tokens.refused(refused, dialed=dialed, now_s=now_s)
        self._lasting.refused(refused, dialed=dialed, address=connection.address, now_s=now_s)
        if refused.by_peer and refused.code is Code.OLD_COPY and self._on_old_copy is not None:
            self._on_old_copy(refused.reason)
        if connection.phase is Phase.SHAKING:
            if refused.code in TOLD and not refused.by_peer:
                connection.put(*refusal_frame(refused))
            try:
                connection.send(now_s)
            except OSError:
                pass  # It has gone already.
        self._drop(connection, now_s, refused.reason)

    def _lose(self, connection: PeerConnection, reason: str) -> None:
        """Ends a connection without a refusal."""
        if connection.phase is Phase.OPEN:
            _log.info(
                "peers.disconnected",
                peer=connection.key,
                address=connection.address,
                reason=reason,
            )
        self._drop(connection, self._clock.monotonic_s(), reason)

    def _drop(self, connection: PeerConnection, now_s: float, reason: str) -> None:
        if connection.phase is Phase.CLOSED:
            return
        phase = connection.phase
        del self._connections[connection.socket.fileno()]
        connection.close()
        if phase is Phase.OPEN:
            assert connection.key is not None
            del self._open[connection.key]
            self._publish()
            self._events.append(Disconnected(connection.key))
        if connection.dialed is not None:
            if phase is Phase.CONNECTING:
                self._dialer.failed(connection.dialed, reason, now_s)
            else:
                self._dialer.ended(connection.dialed, now_s)
            self._due_by(self._dialer.due_s())

    def _publish(self) -> None:
        self._connected = {
            key: connection.hello.info
            for key, connection in self._open.items()
            if connection.hello is not None
        }
        self._quiet = frozenset(key for key, connection in self._open.items() if connection.quiet)
