"""The profile of one seed: drawn at its begin, so that each seed is hard in its own way.

One run with all faults at once finds less than many runs with a few faults each, because one fault
destroys what another one needs.
"""

import random
from dataclasses import dataclass, fields

from tests.simulation.network import Nature
from tests.simulation.timeline import MS, SECOND

FAULTS = (
    "cut", "part", "block", "slow link", "crash", "crash at sync", "pause", "restart all",
    "power loss", "step clock", "drift", "slow disk", "failing disk", "full disk", "away",
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    nodes: int
    replicas: int
    groups: int
    clients: int
    """Clients of each group."""
    pause_us: int
    item_bytes: int
    delays: bool
    faulty_us: int
    fault_every_us: int
    """Mean time between two faults."""
    faults: tuple[str, ...]
    nature: Nature
    sync_us: int
    offset_ms: int
    """Largest error of wall clocks at the begin."""
    drift_ppm: int
    log_bytes_kept: int
    transfers: bool
    members: bool
    lmdb: bool
    loss: float
    """Part of the answers to clients that are lost."""
    pipelines: int = 0
    """Number of pipelines that write by transactions into a queue with its own partitions."""
    readers: bool = False
    """Whether there is one more group, with readers."""
    doomed: bool = False
    """Whether groups are created and deleted under load."""
    starts: bool = False
    """Whether nodes remember each other's starts, and judge by that."""

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw(seed: int, chance: random.Random) -> Profile:
    replicas = chance.choices((1, 3, 5), (5, 70, 25))[0]
    members = replicas == 3 and chance.random() < 0.35
    kinds = chance.randrange(1, 6)
    faults = chance.sample(FAULTS, kinds) if chance.random() > 0.03 else []
    if members and chance.random() < 0.4:
        faults.append("lost disk")
    # Drawn from a separate generator, so that other seeds do not change.
    if random.Random(f"jumps {seed}").random() < 0.25:
        faults.append("jump clock")
    groups = chance.choice((1, 1, 2, 3))
    clients = chance.choice((1, 2, 4))
    # The load must fit into about a second of a real core.
    pause_us = max(chance.choice((30, 100, 300)), groups * clients * replicas * 5) * MS
    return Profile(
        nodes=replicas + (chance.choice((1, 2)) if members else 0),
        replicas=replicas,
        groups=groups,
        clients=clients,
        pause_us=pause_us,
        item_bytes=chance.choice((10, 200, 2_000)),
        delays=chance.random() < 0.5,
        faulty_us=chance.choice((10, 20, 25)) * SECOND,
        fault_every_us=chance.choice((500, 1_500, 4_000)) * MS,
        faults=tuple(faults),
        nature=Nature(
            latency_us=chance.choice((100, 300, 2_000, 20_000)),
            jitter_us=chance.choice((0, 100, 5_000, 50_000)),
            bytes_per_s=chance.choice((1_000_000, 100_000_000)),
            buffer_bytes=chance.choice((1 << 14, 1 << 20)),
            keepalive_us=chance.choice((1, 3)) * SECOND,
            reconnect_us=chance.choice((20, 200, 1_000)) * MS,
            notice_us=chance.choice((1, 100, 1_000)) * MS,
        ),
        sync_us=chance.choice((100, 300, 2_000, 10_000)),
        offset_ms=chance.choice((0, 50, 400)),
        drift_ppm=chance.choice((0, 200, 5_000)),
        log_bytes_kept=chance.choice((2_000, 20_000, 1 << 26)),
        transfers=chance.random() < 0.4,
        members=members,
        lmdb=seed % 100 == 99,
        loss=chance.choice((0.0, 0.0, 0.02, 0.2)),
        pipelines=chance.choice((0, 0, 1, 2)),
        # Drawn from a separate generator, so that other seeds do not change.
        readers=random.Random(f"readers {seed}").random() < 0.3,
        doomed=random.Random(f"doomed {seed}").random() < 0.3,
    )
