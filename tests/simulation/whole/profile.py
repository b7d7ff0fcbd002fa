"""What one seed of whole nodes is about: drawn at its begin."""

import random
from dataclasses import dataclass, fields

from tests.simulation.network import Nature
from tests.simulation.timeline import MS, SECOND

FAULTS = (
    "cut", "cut links", "part", "block", "slow link", "crash", "crash at sync", "pause",
    "restart all", "power loss", "step clock", "drift", "slow disk", "away", "jump clock",
    "damage", "leave",
)  # fmt: skip


@dataclass(frozen=True)
class WholeProfile:
    nodes: int
    queues: int
    partitions: int
    """Of each queue at the begin."""
    programs: int
    """Of each kind at each queue."""
    pause_us: int
    item_bytes: int
    delays: bool
    faulty_us: int
    fault_every_us: int
    faults: tuple[str, ...]
    nature: Nature
    sync_us: int
    offset_ms: int
    drift_ppm: int
    log_bytes_kept: int
    loss: float
    winding: bool = False
    """Whether there is a queue with a dead queue, streams and operators, in place of the others."""
    dead_room: int = 0
    """Items that a partition of the dead queue takes; 0: any number."""
    wayward: bool = False
    """Whether a client's clock is wrong by years."""
    passing: bool = False
    """Whether a queue comes and goes."""
    patient: bool = False
    """Whether it is seen that partitions that were taken out of the routing go: after 15 min."""

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw(seed: int, chance: random.Random) -> WholeProfile:
    nodes = chance.choices((1, 3), (5, 95))[0]
    kinds = chance.randrange(1, 5)
    faults = chance.sample(FAULTS, kinds) if chance.random() > 0.03 else []
    queues = chance.choice((1, 1, 2))
    programs = chance.choice((1, 1, 2))
    pause_us = max(chance.choice((200, 400, 800)), queues * programs * 100) * MS
    return WholeProfile(
        nodes=nodes,
        queues=queues,
        partitions=chance.choice((1, 1, 2, 3)),
        programs=programs,
        pause_us=pause_us,
        item_bytes=chance.choice((10, 200)),
        delays=chance.random() < 0.3,
        faulty_us=chance.choice((6, 10)) * SECOND,
        fault_every_us=chance.choice((700, 1_500, 3_000)) * MS,
        faults=tuple(faults),
        nature=Nature(
            latency_us=chance.choice((100, 300, 2_000, 20_000)),
            jitter_us=chance.choice((0, 100, 5_000, 50_000)),
            bytes_per_s=chance.choice((10_000_000, 100_000_000)),
            buffer_bytes=chance.choice((1 << 16, 1 << 20)),
            keepalive_us=chance.choice((1, 3)) * SECOND,
            reconnect_us=chance.choice((20, 200, 1_000)) * MS,
            notice_us=chance.choice((1, 100, 1_000)) * MS,
        ),
        sync_us=chance.choice((100, 300, 2_000, 10_000)),
        offset_ms=chance.choice((0, 50, 200)),
        drift_ppm=chance.choice((0, 200, 5_000)),
        log_bytes_kept=chance.choice((20_000, 1 << 26)),
        loss=chance.choice((0.0, 0.0, 0.02, 0.2)),
        winding=chance.random() < 0.5,
        dead_room=chance.choice((0, 3, 20)),
        passing=chance.random() < 0.3,
        patient=chance.random() < 0.03,
        wayward=chance.random() < 0.2,
    )
