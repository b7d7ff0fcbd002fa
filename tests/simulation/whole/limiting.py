"""Programs at a queue with limits of leases: an operator changes the limits, and they are never so
low at the end that the queue could not become empty in time. In some seeds the queue is fair or
keyed, and each group or key has a rate.

What the log of the partitions says goes to `limits`, which has the rules.
"""

import random
from typing import Any, Final

from querator.model.queues import QueueKind, QueueSettings, RateSettings
from tests.simulation.whole.grouping import Grouping
from tests.simulation.whole.keying import Keying
from tests.simulation.whole.pausing import Updating
from tests.simulation.whole.programs import Consuming, Producing
from tests.simulation.whole.winding import Streaming

QUEUE = "limiting"
LIMITS: Final = (
    (RateSettings(40, 1_000, 8), 6),
    (RateSettings(5, 1_000), 0),
    (RateSettings(7, 3_000, 2), 4),
    (RateSettings(400, 1_000, 30), 0),
    (None, 4),
)
"""Rates and numbers of leased items. The queue has up to four partitions."""
LAST: Final = (RateSettings(100, 1_000, 20), 8)
_MASK = ("rate_limit", "lease_limit")


class Asking(Consuming):
    """Wants more than there may be, and gives much of it back."""

    most = (1, 5, 20)
    rejects = 0.0


class AskingStream(Asking, Streaming):
    credit_items = 9


class Limiting(Updating):
    """The operator."""

    async def act(self) -> None:
        rate, leased = self._chance.choice(LIMITS)
        await self.update(QueueSettings(rate_limit=rate, lease_limit=leased), _MASK)

    async def finish(self) -> None:
        rate, leased = LAST
        settings = QueueSettings(rate_limit=rate, lease_limit=leased)
        while not await self.update(settings, _MASK):
            self._preferred = ""


def settings_of(seed: int) -> dict[str, Any]:
    """The settings with which the queue is created in this seed."""
    rate, leased = random.Random(f"limiting {seed}").choice(LIMITS)
    return {"rate_limit": rate, "lease_limit": leased} | _OF_KIND[kind(seed)]


def kind(seed: int) -> QueueKind:
    return random.Random(f"limiting kind {seed}").choice(list(_OF_KIND))


_OF_KIND: Final[dict[QueueKind, dict[str, Any]]] = {
    QueueKind.PLAIN: {},
    QueueKind.FAIR: {"kind": QueueKind.FAIR, "group_rate_limit": RateSettings(20, 1_000, 2)},
    QueueKind.KEYED: {"kind": QueueKind.KEYED, "key_rate_limit": RateSettings(5, 1_000, 2)},
}


def producer(seed: int) -> type[Producing]:
    """The kind of producer in this seed."""
    of_kind = {QueueKind.FAIR: Grouping, QueueKind.KEYED: Keying}
    return of_kind.get(kind(seed), Producing)


def consumer(seed: int) -> type[Asking]:
    """The kind of consumer in this seed."""
    return random.Random(f"limiting consumer {seed}").choice((Asking, AskingStream))


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"limiting resized {seed}").random() < 0.5
