"""Connections between nodes, and what can happen to them.

Each pair of nodes has one connection at a time. Each connection has an *epoch*. One queue (a
`Lane`) for each direction holds what a node is to hear of the other: the start of an epoch, its
messages, its end, the start of the next. So the guarantee of `querator.raft.peers` holds by
construction: messages come in order, at most once while the connection lives, and none of an old
connection comes after the start of the next.

Everything that this leaves open is drawn by chance:

- How much of what was in flight when a connection broke still arrives before its end is noticed.
  Messages that are sent again over the next connection may therefore arrive twice.
- When each side notices the end.
- When the next connection comes.

A blocked direction holds messages back, as TCP does, and breaks the connection when the block
lasts. Before that its receiver is informed that the sender is quiet, as with a node that is paused.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from tests.simulation.timeline import MS, SECOND, Timeline

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Endpoint(Protocol[M_contra]):
    """A node as the network sees it. `listening`: it is up and not paused."""

    @property
    def listening(self) -> bool: ...

    def on_connected(self, peer: str) -> None: ...

    def on_disconnected(self, peer: str) -> None: ...

    def on_quiet(self, peer: str) -> None: ...

    def on_message(self, peer: str, message: M_contra) -> None: ...


@dataclass
class Nature:
    """How connections behave when nothing is broken."""

    latency_us: int = 300
    jitter_us: int = 200
    bytes_per_s: int = 100_000_000
    buffer_bytes: int = 1 << 20
    """Bytes that a sender may have in flight before its buffer is full."""
    quiet_us: int = 700 * MS
    """Time without a message after which a sender is reported as quiet."""
    keepalive_us: int = 3 * SECOND
    """A direction that is blocked for this long, up to twice as long, breaks the connection."""
    reconnect_us: int = 200 * MS
    """The next attempt to connect comes within this time."""
    notice_us: int = 100 * MS
    """A side notices within this time that the other one has closed the connection."""


@dataclass
class _Item(Generic[M]):
    arrives_us: int
    epoch: int
    kind: str
    message: M | None = None
    size: int = 0
    leaves_us: int = 0


@dataclass
class Lane(Generic[M]):
    """What `receiver` is to hear of `sender`, in order."""

    sender: str
    receiver: str
    items: deque[_Item[M]] = field(default_factory=deque)
    last_us: int = 0
    free_us: int = 0
    """When the wire has taken everything that was sent so far."""
    bytes: int = 0
    blocks: int = 0
    extra_us: int = 0
    bytes_per_s: int = 0
    """0: the network's own rate."""
    knows_epoch: int = 0
    """The connection that the receiver believes to have; 0: none."""


class Network(Generic[M]):
    def __init__(self, timeline: Timeline, chance: random.Random, nature: Nature) -> None:
        self.nature = nature
        self._timeline = timeline
        self._chance = chance
        self._endpoints: dict[str, Endpoint[M]] = {}
        self._lanes: dict[tuple[str, str], Lane[M]] = {}
        self._epochs: dict[tuple[str, str], int] = {}
        self._connecting: set[tuple[str, str]] = set()
        self._last_epoch = 0
        self.describe: Callable[[M], str] = str
        self.digest: Callable[[M], object] = lambda message: 0
        self.delivered = 0
        self.lets_in: Callable[[str, str], bool] = lambda a, b: True
        """Whether two nodes that reach each other get a connection."""
        self.doubles: dict[str, str] = {}
        """Endpoint of a second process on the data of a node, by node."""

    # --- nodes -----------------------------------------------------------------------

    def add(self, name: str, endpoint: Endpoint[M]) -> None:
        for other in self._endpoints:
            self._lanes[name, other] = Lane(name, other)
            self._lanes[other, name] = Lane(other, name)
        self._endpoints[name] = endpoint

    def at(self, asking: str, node: str) -> str:
        """The endpoint at which `asking` reaches the node: its double's, if it is connected to
        that.
        """
        double = self.doubles.get(node)
        return node if double is None or not self.connected(asking, double) else double

    def nodes(self) -> list[str]:
        return list(self._endpoints)

    def pairs(self) -> list[tuple[str, str]]:
        names = list(self._endpoints)
        return [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]

    def came_up(self, name: str) -> None:
        """The node listens, and connects."""
        for other in self._endpoints:
            if other != name:
                self._dial(name, other)

    def went_down(self, name: str, *, silent: bool = False) -> None:
        """The process is gone, with all that it had not read. `silent`: its machine is gone too,
        and sends no notice; the others notice by keepalive.
        """
        for other in self._endpoints:
            if other != name:
                self._break(name, other, silent=silent)
                lane = self._lanes[other, name]
                lane.items.clear()
                lane.bytes = 0
                lane.knows_epoch = 0

    def resumed(self, name: str) -> None:
        """A paused node reads again what has arrived."""
        for other in self._endpoints:
            if other != name:
                self._pump(self._lanes[other, name])
                self._dial(name, other)

    # --- messages --------------------------------------------------------------------

    def send(
        self, sender: str, receiver: str, message: M, *, size: int = 100, at_us: int | None = None
    ) -> None:
        """Messages to one receiver leave in the order of the calls; `at_us` is not in the past.

        A message is dropped when there is no connection, or when the sender's connection has ended.
        """
        pair = _pair(sender, receiver)
        lane = self._lanes[sender, receiver]
        epoch = self._epochs.get(pair, 0)
        if epoch == 0 or self._lanes[receiver, sender].knows_epoch != epoch:
            return
        nature = self.nature
        sent_us = self._timeline.now_us if at_us is None else at_us
        speed = lane.bytes_per_s or nature.bytes_per_s
        lane.free_us = max(lane.free_us, sent_us) + size * SECOND // speed
        arrives_us = lane.free_us + nature.latency_us + lane.extra_us
        if nature.jitter_us:
            arrives_us += self._chance.randrange(nature.jitter_us)
        lane.bytes += size
        self._put(
            lane,
            _Item(
                arrives_us=arrives_us,
                epoch=epoch,
                kind="message",
                message=message,
                size=size,
                leaves_us=sent_us,
            ),
        )

    def connected(self, node: str, peer: str) -> bool:
        """Whether the node believes that it is connected."""
        return self._lanes[peer, node].knows_epoch != 0

    def room_bytes(self, sender: str, receiver: str) -> int:
        if self._lanes[receiver, sender].knows_epoch == 0:
            return 0
        return max(0, self.nature.buffer_bytes - self._lanes[sender, receiver].bytes)

    def _put(self, lane: Lane[M], item: _Item[M]) -> None:
        item.arrives_us = lane.last_us = max(item.arrives_us, lane.last_us)
        lane.items.append(item)
        self._timeline.at(item.arrives_us, lambda: self._pump(lane))

    def _pump(self, lane: Lane[M]) -> None:
        """Delivers what has arrived."""
        endpoint = self._endpoints[lane.receiver]
        now_us = self._timeline.now_us
        while lane.items and lane.items[0].arrives_us <= now_us and endpoint.listening:
            item = lane.items[0]
            if item.kind == "message" and lane.blocks:
                return
            lane.items.popleft()
            lane.bytes -= item.size
            self._deliver(lane, endpoint, item)

    def _deliver(self, lane: Lane[M], endpoint: Endpoint[M], item: _Item[M]) -> None:
        timeline = self._timeline
        if item.kind == "message":
            assert item.message is not None
            assert lane.knows_epoch == item.epoch
            self.delivered += 1
            timeline.note("message", lane.sender, lane.receiver, self.digest(item.message))
            if timeline.told:
                timeline.tell(lane.receiver, f"<- {lane.sender} {self.describe(item.message)}")
            endpoint.on_message(lane.sender, item.message)
        elif item.kind == "start":
            assert lane.knows_epoch == 0
            lane.knows_epoch = item.epoch
            timeline.note("connected", lane.receiver, lane.sender)
            timeline.tell(lane.receiver, f"is connected to {lane.sender}")
            endpoint.on_connected(lane.sender)
        elif lane.knows_epoch:
            lane.knows_epoch = 0
            timeline.note("disconnected", lane.receiver, lane.sender)
            timeline.tell(lane.receiver, f"has lost its connection to {lane.sender}")
            endpoint.on_disconnected(lane.sender)

    # --- faults ------------------------------------------------------------------------

    def cut(self, a: str, b: str) -> None:
        """Breaks the connection; all or most of what is in flight is lost."""
        self._break(a, b)

    def block(self, sender: str, receiver: str) -> None:
        """Nothing gets from sender to receiver until as many calls of `unblock`."""
        lane = self._lanes[sender, receiver]
        lane.blocks += 1
        epoch = self._epochs.get(_pair(sender, receiver), 0)
        if epoch:
            keepalive = self.nature.keepalive_us
            limit_us = keepalive + self._chance.randrange(keepalive)
            self._timeline.after(limit_us, lambda: self._lapse(lane, epoch))
            self._timeline.after(self.nature.quiet_us, partial(self._quiet, lane, epoch))

    def paused(self, name: str) -> None:
        """The process does nothing, and its connections stay."""
        for other in self._endpoints:
            epoch = self._epochs.get(_pair(name, other), 0)
            if epoch:
                quiet = partial(self._quiet, self._lanes[name, other], epoch)
                self._timeline.after(self.nature.quiet_us, quiet)

    def _quiet(self, lane: Lane[M], epoch: int) -> None:
        """Reports the sender as quiet while it is blocked or paused, even if a message has come."""
        silent = lane.blocks or not self._endpoints[lane.sender].listening
        receiver = self._endpoints[lane.receiver]
        if silent and lane.knows_epoch == epoch and receiver.listening:
            self._timeline.note("quiet", lane.receiver, lane.sender)
            receiver.on_quiet(lane.sender)

    def unblock(self, sender: str, receiver: str) -> None:
        lane = self._lanes[sender, receiver]
        assert lane.blocks > 0
        lane.blocks -= 1
        if not lane.blocks:
            self._pump(lane)
            self._dial(sender, receiver)

    def slow(self, sender: str, receiver: str, *, extra_us: int = 0, bytes_per_s: int = 0) -> None:
        """Slows the way from sender to receiver; zeros restore it."""
        lane = self._lanes[sender, receiver]
        lane.extra_us, lane.bytes_per_s = extra_us, bytes_per_s

    def heal(self) -> None:
        """Ends all blocks and delays, also for messages in flight. Connections come back by
        themselves.
        """
        for lane in self._lanes.values():
            lane.extra_us = lane.bytes_per_s = 0
            self._hurry(lane)
            while lane.blocks:
                self.unblock(lane.sender, lane.receiver)

    def _hurry(self, lane: Lane[M]) -> None:
        """What a slow link would still be busy with for long arrives at the network's own speed."""
        nature, now_us = self.nature, self._timeline.now_us
        lane.free_us = min(lane.free_us, now_us)
        lane.last_us = now_us
        for item in lane.items:
            lane.free_us = max(lane.free_us, now_us) + item.size * SECOND // nature.bytes_per_s
            item.arrives_us = lane.last_us = max(
                lane.last_us, min(item.arrives_us, lane.free_us + nature.latency_us)
            )
            self._timeline.at(item.arrives_us, lambda: self._pump(lane))

    def _lapse(self, lane: Lane[M], epoch: int) -> None:
        if lane.blocks and self._epochs.get(_pair(lane.sender, lane.receiver)) == epoch:
            self._break(lane.sender, lane.receiver)

    def _break(self, a: str, b: str, *, silent: bool = False) -> None:
        epoch = self._epochs.pop(_pair(a, b), 0)
        if epoch:
            nature = self.nature
            for lane in (self._lanes[a, b], self._lanes[b, a]):
                notice = nature.keepalive_us if silent else nature.notice_us
                self._end(lane, epoch, self._chance.randrange(notice))
        self._dial(a, b)

    def _end(self, lane: Lane[M], epoch: int, noticed_in_us: int) -> None:
        """Some messages of the epoch arrive before its end is noticed; the rest is lost."""
        now_us = self._timeline.now_us
        sent = 0
        for item in lane.items:
            sent += item.kind == "message" and item.epoch == epoch and item.leaves_us <= now_us
        keep = 0 if lane.blocks else self._chance.randrange(sent + 1)
        while lane.items and lane.items[-1].kind == "message" and lane.items[-1].epoch == epoch:
            last = lane.items[-1]
            if last.leaves_us <= now_us:
                if sent == keep:
                    break
                sent -= 1
            lane.items.pop()
            lane.bytes -= last.size
        lane.free_us = now_us
        at_us = now_us + noticed_in_us
        lane.last_us = lane.items[-1].arrives_us if lane.items else 0
        self._put(lane, _Item(at_us, epoch, "end"))

    # --- connecting ----------------------------------------------------------------------

    def _dial(self, a: str, b: str) -> None:
        pair = _pair(a, b)
        if pair in self._connecting or pair in self._epochs:
            return
        self._connecting.add(pair)
        delay_us = self._chance.randrange(1, self.nature.reconnect_us)
        self._timeline.after(delay_us, lambda: self._connect(pair))

    def _connect(self, pair: tuple[str, str]) -> None:
        a, b = pair
        self._connecting.discard(pair)
        lanes = (self._lanes[a, b], self._lanes[b, a])
        if pair in self._epochs:
            return
        if any(lane.blocks or not self._endpoints[lane.receiver].listening for lane in lanes):
            return  # The fault connects again when it ends.
        if not self.lets_in(a, b):
            return
        self._last_epoch += 1
        self._epochs[pair] = self._last_epoch
        for lane in lanes:
            takes_us = 2 * self.nature.latency_us + lane.extra_us
            if self.nature.jitter_us:
                takes_us += self._chance.randrange(self.nature.jitter_us)
            at_us = self._timeline.now_us + takes_us
            self._put(lane, _Item(at_us, self._last_epoch, "start"))


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
