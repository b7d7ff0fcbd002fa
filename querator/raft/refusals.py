"""Reasons for refusing a peer at the peer port, and their log: one line, with repeats counted.

A peer that has shown that it speaks the protocol receives the reason, so that its log has it too.
"""

import enum
from collections import Counter, OrderedDict
from typing import Final, NamedTuple

from querator import telemetry
from querator.model.limits import (
    PEER_REFUSAL_CHARS_MAX,
    PEER_REFUSAL_LOG_MS,
    PEER_REFUSALS_KEPT_MAX,
)


class Code(enum.StrEnum):
    # The received bytes make no sense.
    STRANGER = "stranger"
    DAMAGED = "damaged"
    TOO_LARGE = "too_large"
    UNEXPECTED = "unexpected"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    CROWDED = "crowded"
    CERTIFICATE = "certificate"
    # The peer does not belong to this cluster or node.
    VERSION = "version"
    TLS = "tls"
    TOKEN = "token"
    NOT_FORMED = "not_formed"
    CLUSTER = "cluster"
    OWN_NAME = "own_name"
    WRONG_NODE = "wrong_node"
    UNKNOWN_NAME = "unknown_name"
    INCARNATION = "incarnation"
    OLD_COPY = "old_copy"
    SECOND = "second"
    DIRECTION = "direction"
    OVERTAKEN = "overtaken"


TOLD: Final = frozenset(Code) - {
    Code.STRANGER,
    Code.DAMAGED,
    Code.TOO_LARGE,
    Code.TIMEOUT,
    Code.CLOSED,
    Code.CROWDED,
    Code.CERTIFICATE,
}
"""Reasons that are sent to the other side. TLS itself reports a refused certificate."""

QUIET: Final = frozenset((Code.NOT_FORMED, Code.OVERTAKEN))
"""Reasons that occur while a cluster forms, and when connections cross: no action is needed."""

TOKEN_S: Final = 10.0
"""A node with another token is known for this long. Nodes dial each other once a second."""
LASTING_S: Final = 3.0
"""Refusals that are repeated for this long are reported. A single one has passed: the map or the
certificates were those of a moment ago, or a scanner has looked at the port."""
REPORTED: Final = frozenset(
    (
        Code.CERTIFICATE,
        Code.VERSION,
        Code.TLS,
        Code.TOKEN,
        Code.CLUSTER,
        Code.OWN_NAME,
        Code.WRONG_NODE,
        Code.INCARNATION,
        Code.SECOND,
    )
)
"""Reasons that an operator has to remove. Old copies have a memory of their own."""
_PERIOD_S: Final = PEER_REFUSAL_LOG_MS / 1000
_log = telemetry.logger(__name__)


class PeerRefused(Exception):
    """Ends the connection. `reason` is one line for people; `by_peer`: the other side refused."""

    def __init__(self, code: Code, reason: str, *, by_peer: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason[:PEER_REFUSAL_CHARS_MAX]
        self.by_peer = by_peer


class OtherTokens(NamedTuple):
    """The nodes that have another cluster token than this one. `names` of those that it dials;
    `unnamed`: whether others dial it, which cannot prove a name.
    """

    names: frozenset[str] = frozenset()
    unnamed: bool = False


class TokenMemory:
    """Which nodes had another cluster token lately. Any thread may call `lately`."""

    def __init__(self) -> None:
        self._refused_s: dict[str, float] = {}
        """Time of the last refusal, by the name of a dialed node; empty: of a node that dialed."""

    def refused(self, refused: PeerRefused, *, dialed: str | None, now_s: float) -> None:
        """`dialed`: name of the node that this one has dialed; None: the other side has dialed."""
        if refused.code is Code.TOKEN:
            self._refused_s[dialed or ""] = now_s

    def agreed(self, name: str) -> None:
        """The node has connected, so it has the same token."""
        self._refused_s.pop(name, None)

    def lately(self, now_s: float) -> OtherTokens:
        """The refusals of the last `TOKEN_S`."""
        found = {
            name for name, last_s in self._refused_s.copy().items() if now_s - last_s <= TOKEN_S
        }
        return OtherTokens(frozenset(found - {""}), "" in found)


class LastingRefusal(NamedTuple):
    """Connections that are refused again and again. `peer` is the node that this one dials; if
    `dialed` is False, it is the host that dials this node. `by_peer` and `reason` as in
    `PeerRefused`.
    """

    peer: str
    dialed: bool
    by_peer: bool
    reason: str


class _Series(NamedTuple):
    first_s: float
    last_s: float
    refusal: LastingRefusal


class LastingRefusals:
    """The refusals that last. Those of a dialed node for another token are `TokenMemory`'s. Any
    thread may call `lately`.
    """

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[str, bool], _Series] = OrderedDict()

    def refused(
        self, refused: PeerRefused, *, dialed: str | None, address: str, now_s: float
    ) -> None:
        """`dialed` as for `TokenMemory`."""
        if refused.code not in REPORTED or (dialed and refused.code is Code.TOKEN):
            return
        peer = dialed or address.rpartition(":")[0]
        key = peer, dialed is not None
        before = self._series.get(key)
        first_s = now_s
        if before is not None and now_s - before.last_s <= TOKEN_S:
            first_s = before.first_s
        refusal = LastingRefusal(*key, refused.by_peer, refused.reason)
        self._series[key] = _Series(first_s, now_s, refusal)
        self._series.move_to_end(key)
        if len(self._series) > PEER_REFUSALS_KEPT_MAX:
            self._series.popitem(last=False)

    def agreed(self, name: str) -> None:
        """The node has connected."""
        self._series.pop((name, True), None)

    def lately(self, now_s: float) -> tuple[LastingRefusal, ...]:
        return tuple(
            one.refusal
            for one in self._series.copy().values()
            if now_s - one.last_s <= TOKEN_S and one.last_s - one.first_s >= LASTING_S
        )


class RefusalLog:
    """Logs one line for each kind of refusal, host and name, then at most one a minute with a
    count.
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, Code, str], tuple[float, int]] = OrderedDict()
        """Time of the last line, and the number of refusals since then."""
        self.counts: Counter[str] = Counter()
        """Refusals by this node since its start, by code, without the QUIET ones. The raft thread
        counts; other threads copy.
        """

    def refused(self, refused: PeerRefused, *, address: str, name: str, now_s: float) -> None:
        """`name` of the node, if it is proven or dialed; else empty."""
        if not refused.by_peer and refused.code not in QUIET:
            self.counts[refused.code.value] += 1
        key = (address.rpartition(":")[0], refused.code, name)
        last_s, repeated = self._lines.get(key, (-_PERIOD_S, 0))
        if now_s - last_s < _PERIOD_S:
            self._lines[key] = (last_s, repeated + 1)
            return
        self._lines[key] = (now_s, 0)
        self._lines.move_to_end(key)
        if len(self._lines) > PEER_REFUSALS_KEPT_MAX:
            self._lines.popitem(last=False)
        keys: dict[str, str | int] = {"address": address}
        if name:
            keys["name"] = name
        if repeated:
            keys["repeated"] = repeated
        event = "peers.refused_by_peer" if refused.by_peer else "peers.refused"
        log = _log.debug if refused.code in QUIET else _log.warning
        log(event, **keys, code=refused.code.value, reason=refused.reason)
