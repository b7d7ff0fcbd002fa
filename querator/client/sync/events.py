"""Events of a queue, for programs without an event loop."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from querator.client.events import EventPosition, Events, QueueEvent
from querator.client.sync.leases import Runner
from querator.client.sync.loop_thread import iterate


class SyncEvents:
    """The events of a queue, as `Events`. Use it as a `with` block, and iterate over it."""

    def __init__(self, runner: Runner, events: Events) -> None:
        self._runner = runner
        self._events = events

    def __enter__(self) -> Self:
        self._runner.run(self._events.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the requests, also while another thread waits for an event."""
        self._runner.run(self._events.close())

    @property
    def positions(self) -> tuple[EventPosition, ...]:
        """Where to continue. See `Events.positions`."""
        return self._events.positions

    def __iter__(self) -> Iterator[QueueEvent]:
        return iterate(self._runner, self._events)
