"""The profile of one seed of whole nodes: drawn at its begin.

Seeds from `HARSH_FROM` on have more at once: more kinds of faults, which come faster and last
longer, and more kinds of programs.
"""

import random
from dataclasses import dataclass, fields, replace

from tests.simulation.network import Nature
from tests.simulation.timeline import MS, SECOND

FAULTS = (
    "cut", "cut links", "part", "block", "slow link", "crash", "crash at sync", "pause",
    "restart all", "power loss", "step clock", "drift", "slow disk", "away", "jump clock",
    "damage", "leave",
)  # fmt: skip


HARSH_FROM = 1_000_001
HANGS = 0.24
"""Share of seeds in which a raft thread or an event loop hangs."""
SPOILS = 0.3
"""Share of seeds in which others fill disks, or a node goes away when the number of partitions of a
queue changes.
"""
RANKED = 0.12
"""Share of seeds that have a queue with priorities."""
SWEPT = 0.12
"""Share of seeds that have a queue which is purged."""
RETRIED = 0.12
"""Share of seeds that have a queue whose items say how they are retried."""
GROUPED = 0.12
"""Share of seeds that have a fair queue."""
KEYED = 0.12
"""Share of seeds that have a keyed queue."""
RECURRING = 0.12
"""Share of seeds that have a queue with recurrences."""
CHAINED = 0.12
"""Share of seeds that have queues whose items have follow-ups."""
UNIQUE = 0.12
"""Share of seeds that have a queue whose dedup keys count until their items are done."""
PAUSING = 0.12
"""Share of seeds in which an operator pauses a queue."""
BREAKING = 0.12
"""Share of seeds that have a queue with a breaker."""
LIMITING = 0.12
"""Share of seeds that have a queue with limits of leases."""
FOLLOWING = 0.15
"""Share of seeds whose queues record their events."""
CHOOSING = 0.12
"""Share of seeds that have a queue of which consumers choose items."""
EXECUTING = 0.12
"""Share of seeds that have a queue of executions, and workers."""
LOST = 0.15
"""Share of seeds in which a machine loses its disk."""
SPOIL_DATA = frozenset(("old copy", "twins", "damage", "lost disk"))
"""Faults after which the data of one node cannot be spared."""
COPIES = 0.24
"""Share of seeds that start a node from an older image, or for the second time."""


@dataclass(frozen=True)
class WholeProfile:
    nodes: int
    queues: int
    partitions: int
    """Partitions of each queue at the begin."""
    programs: int
    """Programs of each kind at each queue."""
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
    """Whether one queue with a dead queue, streams and operators replaces the other queues."""
    dead_room: int = 0
    """Items that a partition of the dead queue takes; 0: any number."""
    wayward: bool = False
    """Whether a client's clock is wrong by years."""
    passing: bool = False
    """Whether a queue comes and goes."""
    patient: bool = False
    """Whether the run waits until partitions that were taken out of the routing are gone:
    15 min.
    """
    stuck: bool = False
    """Whether one partition is away beside others after the faults have ended."""
    lapsing: bool = False
    """Whether leases lapse during a broken link after the faults have ended."""

    readers: bool = False
    """Whether there is one more queue, which is read by named batches and changes its
    partitions.
    """

    schedules: bool = False
    """Whether there is one more queue, whose items are scheduled, and an operator of schedules."""

    ranked: bool = False
    """Whether there is one more queue, whose items have priorities, and an operator of these."""

    sweeping: bool = False
    """Whether there is one more queue, which an operator purges."""

    retried: bool = False
    """Whether there is one more queue, whose items say how they are retried."""

    grouped: bool = False
    """Whether there is one more queue, which is fair, and an operator of its groups."""

    keyed: bool = False
    """Whether there is one more queue, which is keyed."""

    recurring: bool = False
    """Whether there is one more queue, which produces items by itself."""

    chained: bool = False
    """Whether there are further queues, whose items have follow-ups in these queues."""

    unique: bool = False
    """Whether there is one more queue, whose dedup keys count until their items are done."""

    pausing: bool = False
    """Whether an operator pauses the leases and the producers of a usual queue."""

    breaking: bool = False
    """Whether there is one more queue, which has a breaker."""
    limiting: bool = False
    """Whether there is one more queue, which has limits of leases."""
    choosing: bool = False
    """Whether there is one more queue, of which consumers choose items."""

    executing: bool = False
    """Whether there is one more queue, which has executions, and workers that run them."""

    following: bool = False
    """Whether all queues record their events, which programs follow."""

    retiring: bool = False
    """Whether there is one node more than replicas, and nodes are drained and taken back."""
    removing: bool = False
    """Whether one of these nodes goes down, and is removed."""
    clocks_mended: bool = False
    """Whether all clocks are set right when the faults have ended. With each clock wrong by
    seconds, no node takes a leadership over, so no node can be drained.
    """

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw(seed: int, chance: random.Random) -> WholeProfile:
    drawn = _draw(seed, chance)
    return drawn if seed < HARSH_FROM else _harsher(drawn, random.Random(f"harsh {seed}"))


def _harsher(drawn: WholeProfile, chance: random.Random) -> WholeProfile:
    faults = {*drawn.faults, *chance.sample(FAULTS, chance.randrange(3, 9))}
    faults |= {
        fault
        for fault in ("hung disk", "hung loop", "full disk", "away at change")
        if chance.random() < 0.3
    }
    # As in other seeds: no other fault may have damaged what is lost or older.
    if drawn.nodes < 3:
        faults.discard("damage")
    if faults & {"old copy", "twins"}:
        faults.discard("lost disk")
    if "lost disk" in faults:
        faults.discard("damage")
    return replace(
        drawn,
        removing=drawn.removing and not faults & SPOIL_DATA,
        faults=tuple(sorted(faults)),
        faulty_us=chance.choice((10, 20)) * SECOND,
        fault_every_us=chance.choice((300, 700, 1_500)) * MS,
        winding=chance.random() < 0.7,
        passing=chance.random() < 0.6,
        stuck=drawn.nodes > 1 and chance.random() < 0.3,
        readers=chance.random() < 0.5,
        lapsing=drawn.nodes > 1 and chance.random() < 0.3,
        schedules=chance.random() < 0.5,
        ranked=chance.random() < RANKED,
        retried=chance.random() < RETRIED,
        grouped=chance.random() < GROUPED,
        keyed=chance.random() < KEYED,
        recurring=random.Random(f"harsher recurring {drawn}").random() < RECURRING,
        chained=random.Random(f"harsher chained {drawn}").random() < CHAINED,
        unique=random.Random(f"harsher unique {drawn}").random() < UNIQUE,
        pausing=random.Random(f"harsher pausing {drawn}").random() < PAUSING,
        breaking=random.Random(f"harsher breaking {drawn}").random() < BREAKING,
        limiting=random.Random(f"harsher limiting {drawn}").random() < LIMITING,
        following=random.Random(f"harsher following {drawn}").random() < FOLLOWING,
        choosing=random.Random(f"harsher choosing {drawn}").random() < CHOOSING,
        executing=random.Random(f"harsher executing {drawn}").random() < EXECUTING,
        clocks_mended=True,
    )


def _draw(seed: int, chance: random.Random) -> WholeProfile:
    nodes = chance.choices((1, 3), (5, 95))[0]
    retiring = nodes > 2 and random.Random(f"retiring {seed}").random() < 0.1
    kinds = chance.randrange(1, 5)
    faults = chance.sample(FAULTS, kinds) if chance.random() > 0.03 else []
    # Drawn from a separate generator, so that other seeds do not change.
    copies = random.Random(f"copies {seed}").random()
    if copies < COPIES:
        faults.append("old copy" if copies < COPIES / 2 else "twins")
    hangs = random.Random(f"hangs {seed}").random()
    if hangs < HANGS:
        faults.append("hung disk" if hangs < HANGS * 2 / 3 else "hung loop")
    spoils = random.Random(f"spoils {seed}").random()
    if spoils < SPOILS:
        faults.append("full disk" if spoils < SPOILS / 2 else "away at change")
    lost = random.Random(f"lost disks {seed}").random()
    # No other fault may have damaged what is lost.
    if lost < LOST and nodes > 2 and not {"old copy", "twins", "damage"} & set(faults):
        faults.append("lost disk")
    queues = chance.choice((1, 1, 2))
    programs = chance.choice((1, 1, 2))
    pause_us = max(chance.choice((200, 400, 800)), queues * programs * 100) * MS
    return WholeProfile(
        nodes=nodes + retiring,
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
        # Drawn from a separate generator, so that other seeds do not change.
        stuck=nodes > 1 and random.Random(f"stuck {seed}").random() < 0.15,
        readers=random.Random(f"readers {seed}").random() < 0.25,
        schedules=random.Random(f"schedules {seed}").random() < 0.25,
        ranked=random.Random(f"ranked {seed}").random() < RANKED,
        sweeping=random.Random(f"sweeping {seed}").random() < SWEPT,
        retried=random.Random(f"retried {seed}").random() < RETRIED,
        grouped=random.Random(f"grouped {seed}").random() < GROUPED,
        keyed=random.Random(f"keyed {seed}").random() < KEYED,
        recurring=random.Random(f"recurring {seed}").random() < RECURRING,
        chained=random.Random(f"chained {seed}").random() < CHAINED,
        unique=random.Random(f"unique {seed}").random() < UNIQUE,
        pausing=random.Random(f"pausing {seed}").random() < PAUSING,
        breaking=random.Random(f"breaking {seed}").random() < BREAKING,
        limiting=random.Random(f"limiting {seed}").random() < LIMITING,
        following=random.Random(f"following {seed}").random() < FOLLOWING,
        choosing=random.Random(f"choosing {seed}").random() < CHOOSING,
        executing=random.Random(f"executing {seed}").random() < EXECUTING,
        lapsing=nodes > 1 and random.Random(f"lapsing {seed}").random() < 0.15,
        retiring=retiring,
        clocks_mended=retiring,
        removing=retiring
        and not SPOIL_DATA & set(faults)
        and random.Random(f"removing {seed}").random() < 0.5,
    )
