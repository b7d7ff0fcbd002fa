"""Messages of one turn on their way out, before and after its sync.

now     what needs no disk of ours: entries of a leader, whose own copy is written meanwhile
later   what promises something: acknowledgements, votes, and requests for votes (which are a
        vote for oneself)
"""

from collections import defaultdict

from querator.model.nodes import NodeKey
from querator.raft.messages import AppendReply, Envelope, PeerMessage
from querator.raft.peers import Peers


class Mail:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._now: defaultdict[NodeKey, list[PeerMessage]] = defaultdict(list)
        self._later: defaultdict[NodeKey, list[PeerMessage]] = defaultdict(list)

    def room_bytes(self, node: NodeKey) -> int:
        return self._peers.room_bytes(node)

    def now(self, node: NodeKey, message: PeerMessage) -> None:
        self._now[node].append(message)

    def later(self, node: NodeKey, message: PeerMessage) -> None:
        self._later[node].append(message)

    def acknowledge(self, node: NodeKey, envelope: Envelope) -> None:
        """After the sync, instead of an acknowledgement of the same group that comes right before
        it and says less.
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

    def send_now(self) -> None:
        self._send(self._now)

    def send_later(self) -> None:
        self._send(self._later)

    def _send(self, mail: defaultdict[NodeKey, list[PeerMessage]]) -> None:
        if not mail:
            return
        for node, messages in mail.items():
            self._peers.send(node, messages)
        mail.clear()
        self._peers.flush()
