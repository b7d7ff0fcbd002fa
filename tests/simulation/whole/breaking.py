"""Programs at a queue with a breaker: what the consumers call is broken at times, so that their
items fail; and an operator opens and closes the breaker by hand.

What the log of the partitions says goes to `breakers`, which has the rules.
"""

import random

from querator.model.calls import SetBreakerCall
from querator.model.queues import BreakerSettings
from tests.simulation.timeline import SECOND
from tests.simulation.whole.programs import NAMESPACE, Consuming, Held, Program
from tests.simulation.whole.winding import Streaming

QUEUE = "breaking"
BREAKER = BreakerSettings(
    failure_percent=50, outcomes_min=3, window_ms=5_000, open_ms=1_000, probes=2
)
BROKEN_US = 2 * SECOND
"""What the consumers call is broken and whole for this time, in turns."""


class Calling(Consuming):
    """Its items fail while what it calls is broken."""

    most = (1, 3, 10)
    rejects = 0.0

    async def use(self, lease_id: str, held: Held) -> None:
        broken = self._ground.timeline.now_us // BROKEN_US % 2 == 0
        if broken and self._chance.random() < 0.8:
            await self.retry(lease_id, held)
        else:
            await super().use(lease_id, held)


class CallingStream(Calling, Streaming):
    credit_items = 6


class Switching(Program):
    """The operator."""

    async def act(self) -> None:
        call = SetBreakerCall(NAMESPACE, self.queue, open=self._chance.random() < 0.5)
        ended = await self.call(
            "set the breaker", lambda core: core.admin.breakers.set_breaker(call), again=True
        )
        if ended.error is not None:
            self.unexpected("setting the breaker", ended)


def consumer(seed: int) -> type[Calling]:
    """The kind of consumer in this seed."""
    return random.Random(f"breaking consumer {seed}").choice((Calling, CallingStream))


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"breaking resized {seed}").random() < 0.3
