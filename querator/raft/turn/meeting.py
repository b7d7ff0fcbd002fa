"""The turn's part of the record of nodes' starts (`raft.starts`): writes it to disk in time, marks
the own start, and sends it to the others.
"""

from collections.abc import Sequence
from typing import Final

from querator.model.limits import START_MARK_MS
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock
from querator.raft.messages import Meetings
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.peers import Connected, Disconnected, PeerEvent
from querator.raft.starts import StartMemory
from querator.storage.environment import WriteTransaction

_MARK_S: Final = START_MARK_MS / 1000


class Meeting:
    """Starts in a node's turns. Only the raft thread calls it."""

    def __init__(self, starts: StartMemory, *, clock: Clock, outbox: PeerOutbox) -> None:
        self._starts = starts
        self._clock = clock
        self._outbox = outbox
        self._connected: dict[NodeKey, None] = {}
        self._new: list[NodeKey] = []
        """Newly connected nodes, which must get all starts."""
        self._mark_s = 0.0

    @property
    def pending(self) -> bool:
        """Whether the next turn has something to write."""
        return self._starts.changed

    @property
    def due_s(self) -> float | None:
        """When to mark the own start, while another node is connected."""
        return self._mark_s if self._connected and self._starts.own else None

    def must_be_kept(self, events: Sequence[PeerEvent]) -> bool:
        """Notes connected and disconnected nodes; returns whether starts must be on disk before
        anything else happens.
        """
        for event in events:
            if isinstance(event, Connected):
                self._connected[event.node] = None
                self._new.append(event.node)
            elif isinstance(event, Disconnected):
                self._connected.pop(event.node, None)
        now_s = self._clock.monotonic_s()
        if self._new or (self._connected and now_s >= self._mark_s):
            self._starts.mark()
            self._mark_s = now_s + _MARK_S
        return self._starts.changed

    def flush(self, txn: WriteTransaction) -> None:
        self._starts.flush(txn)

    def send_starts(self) -> None:
        """Sends what is on disk: all starts to newly connected nodes, and new starts to the
        others.
        """
        if self._new:
            everything = Meetings(self._starts.all())
            for node in self._new:
                if node in self._connected and everything.met:
                    self._outbox.now(node, everything)
        if news := self._starts.take_news():
            for node in self._connected:
                if node not in self._new:
                    self._outbox.now(node, Meetings(news))
        self._new.clear()

    def learn(self, message: Meetings) -> None:
        self._starts.learn(message.met)
