"""Programs at a keyed queue: producers of few keys, consumers that fail, let leases lapse and retry
later, and other numbers of partitions.

What the log of the partitions says goes to `key_order`, which has the rules.
"""

import random
from collections.abc import Sequence
from struct import pack
from typing import Any

import msgspec

from querator.model.calls import ProduceCall
from querator.model.commands import NO_SLOT
from querator.model.queues import QueueKind
from querator.model.routing import slot_of_key
from querator.wire.flow_names import flow_names
from tests.simulation.whole.grouping import path_of as key_of
from tests.simulation.whole.programs import Consuming, Producing, wire_item
from tests.simulation.whole.winding import Streaming

QUEUE = "keyed"
DEAD = "keyed.dead"
MAX_ATTEMPTS = 4
KEYS = ("", "k1", "k2", "k3", "k4", "k5", "k6")


def settings_of(seed: int) -> dict[str, Any]:
    """The settings of the queue in this seed."""
    chance = random.Random(f"keyed {seed}")
    return {
        "kind": QueueKind.KEYED,
        "key_leased_max": chance.choice((1, 1, 3)),
        "key_retry_blocks": chance.random() < 0.7,
    }


class Keying(Producing):
    """Produces items of several keys."""

    counts = (1, 2, 5, 12)

    def _named(self, number: int) -> str:
        return f"{super()._named(number)}@{self._chance.choice(KEYS)}"

    def _item(self, reference: str) -> bytes:
        return wire_item(reference.encode(), key=key_of(reference).encode())

    def _sent(self, call: ProduceCall, references: Sequence[str]) -> ProduceCall:
        keys = {n: key_of(one).encode() for n, one in enumerate(references) if key_of(one)}
        if not keys:
            return call
        count = len(references)
        slots = [slot_of_key(keys[n]) if n in keys else NO_SLOT for n in range(count)]
        return msgspec.structs.replace(
            call, keys=flow_names(keys, count), slots=pack(f"<{count}H", *slots)
        )


class Serving(Consuming):
    """Takes leases of different sizes. Some retries are for later."""

    most = (1, 2, 5, 30)
    rejects = 0.05
    later_ms = (0, 300, 900)


class ServingStream(Serving, Streaming):
    credit_items = 6


def consumer(seed: int) -> type[Serving]:
    """The kind of consumer in this seed."""
    return random.Random(f"keyed consumer {seed}").choice((Serving, ServingStream))


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"keyed resized {seed}").random() < 0.4
