"""Programs that follow the events of a queue. What they read goes to `feeds`, which has the rules.

A follower asks one partition after the other, through any node, and continues where the last answer
says. Sometimes it begins again at an earlier position, as a program does that has died before it
saved its last one.
"""

from querator.model.errors import ErrorCode
from querator.model.event_calls import EventsReply, EventStart, ReadEventsCall
from querator.model.ids import GroupId
from querator.model.limits import HOUR_MS
from tests.simulation.whole.programs import NAMESPACE, Program

RETENTION_MS = 24 * HOUR_MS
"""Longer than a run."""
WAITS_MS = (0, 0, 300, 2_000)
MOST = (1, 7, 1_000)
GOING = frozenset((ErrorCode.QUEUE_NOT_FOUND, ErrorCode.QUEUE_DELETING, ErrorCode.INVALID_ARGUMENT))
"""A partition that closes leaves the map of one node before it leaves that of another one."""


class Following(Program):
    _positions: dict[GroupId, int]

    async def act(self) -> None:
        if not hasattr(self, "_positions"):
            self._positions = {}
        queue = self._ground.queue(self.queue)
        if queue is None:
            return
        partition = self._chance.randrange(len(queue.groups))
        feed = queue.groups[partition]
        position = self._positions.get(feed, 1)
        if self._chance.random() < 0.1:
            position = self._chance.randint(1, position)
        call = ReadEventsCall(
            namespace=NAMESPACE,
            queue=self.queue,
            partition=partition,
            feed=feed,
            position=position,
            start=EventStart.FIRST,
            kinds=frozenset(),
            events_max=self._chance.choice(MOST),
            wait_ms=self._chance.choice(WAITS_MS),
        )
        ended = await self.call("follow", lambda core: core.service.read_events(call), again=True)
        if ended.error is not None:
            if ended.error.code is ErrorCode.EVENTS_GONE:
                queue = self._ground.queue(self.queue)
                if queue is not None and feed in queue.groups:
                    self._ground.feeds.gone(feed, position)
            elif ended.error.code not in GOING:
                self.unexpected("following", ended)
            return
        if ended.result is None:
            return
        reply: EventsReply = ended.result
        self._ground.feeds.answered(position, reply)
        self._positions[feed] = max(self._positions.get(feed, 1), reply.next_position)
