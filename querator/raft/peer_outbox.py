"""Outgoing messages of one turn, before and after its sync.

now     messages that do not need this node's sync: entries of a leader, which writes its own
        log meanwhile
later   messages that promise something: acknowledgements, votes, and requests for votes
        (which are votes for the sender itself)
"""

from collections import defaultdict

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft.messages import AppendReply, Envelope, PeerMessage
from querator.raft.peers import Peers


class PeerOutbox:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._now: defaultdict[NodeKey, list[PeerMessage]] = defaultdict(list)
        self._later: defaultdict[NodeKey, list[PeerMessage]] = defaultdict(list)
        self._now_bytes: defaultdict[NodeKey, int] = defaultdict(int)
        self._later_bytes: defaultdict[NodeKey, int] = defaultdict(int)
        self._without_room: defaultdict[NodeKey, dict[GroupId, None]] = defaultdict(dict)

    def room_bytes(self, node: NodeKey) -> int:
        """The bytes that remain for the groups of this turn."""
        taken = self._now_bytes.get(node, 0) + self._later_bytes.get(node, 0)
        return self._peers.room_bytes(node) - taken

    def finds_no_room(self, node: NodeKey, group: GroupId) -> None:
        """Records that the group has more for the node; `called` returns it as soon as there is
        space.
        """
        self._without_room[node][group] = None

    @property
    def calls(self) -> bool:
        """Whether there is space for a group that found none before."""
        return any(self._peers.room_bytes(node) > 0 for node in self._without_room)

    def called(self) -> list[GroupId]:
        """Groups for which there is space, longest waiting first."""
        nodes = [node for node in self._without_room if self._peers.room_bytes(node) > 0]
        groups: dict[GroupId, None] = {}
        for node in nodes:
            groups |= self._without_room.pop(node)
        return list(groups)

    def now(self, node: NodeKey, message: PeerMessage, *, bytes_: int = 0) -> None:
        """`bytes_` reduce `room_bytes` until they are sent."""
        self._now[node].append(message)
        if bytes_:
            self._now_bytes[node] += bytes_

    def later(self, node: NodeKey, message: PeerMessage, *, bytes_: int = 0) -> None:
        """As `now`."""
        self._later[node].append(message)
        if bytes_:
            self._later_bytes[node] += bytes_

    def acknowledge(self, node: NodeKey, envelope: Envelope) -> None:
        """Sends the envelope after the sync. It replaces an acknowledgement of the same group right
        before it that acknowledges less.
        """
        waiting = self._later[node]
        if waiting and isinstance(waiting[-1], Envelope) and waiting[-1].group == envelope.group:
            before, after = waiting[-1].message, envelope.message
            if (
                isinstance(before, AppendReply)
                and isinstance(after, AppendReply)
                and before.success
                and after.success
                and before.term == after.term
                and before.index <= after.index
            ):
                waiting.pop()
        waiting.append(envelope)

    def withdraw(self, group: GroupId) -> None:
        """Drops the promises of a group that stopped before its rows were written."""
        for node, messages in self._later.items():
            self._later[node] = [
                message
                for message in messages
                if not isinstance(message, Envelope) or message.group != group
            ]

    def send_now(self) -> None:
        self._send(self._now)
        self._now_bytes.clear()

    def send_later(self) -> None:
        self._send(self._later)
        self._later_bytes.clear()

    def _send(self, outbox: defaultdict[NodeKey, list[PeerMessage]]) -> None:
        if not outbox:
            return
        for node, messages in outbox.items():
            if messages:
                self._peers.send(node, messages)
        outbox.clear()
        self._peers.flush()
