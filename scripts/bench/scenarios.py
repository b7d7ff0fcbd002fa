"""The scenarios, as data. Rates are per second, sizes in bytes, times in seconds."""

import msgspec


class Scenario(msgspec.Struct, frozen=True):
    """One kind of load on one queue.

    `kind` is one of
        produce   closed loop: `in_flight` requests wait for their answers at any time
        both      the same, while consumers lease and complete everything
        latency   open loop: `rate` requests per second, whatever the answers do
        drain     lease and complete a backlog of `backlog_items`

    `roles` are the client processes: `produce`, `consume` or `both`.
    `gather` sends single items through the SDK's gathering, `unary` as one unary call each: to the
    node that leads the partition, or `elsewhere` to one that sends them on, as most nodes of a
    cluster do. That is left out where there is one node.
    """

    name: str
    kind: str
    roles: tuple[str, ...]
    batch_items: int = 100
    payload_bytes: int = 1024
    partitions: int = 1
    in_flight: int = 16
    rate: float = 0.0
    backlog_items: int = 0
    gather: bool = False
    unary: bool = False
    elsewhere: bool = False
    seconds: float = 6.0
    warmup_seconds: float = 2.0


PRODUCE = ("produce",)
SCENARIOS = (
    Scenario("produce", "produce", PRODUCE),
    Scenario("produce, 4 partitions", "produce", PRODUCE, partitions=4),
    Scenario("both", "both", ("both",)),
    Scenario("both, 4 partitions", "both", ("both",), partitions=4),
    Scenario("both, two client processes", "both", ("produce", "consume")),
    Scenario(
        "latency of 1,000 single items/s", "latency", PRODUCE, batch_items=1, rate=1000, gather=True
    ),
    Scenario(
        "latency of 1,000 single items/s, one per frame",
        "latency",
        PRODUCE,
        batch_items=1,
        rate=1000,
    ),
    Scenario("latency of 10,000/s in hundreds", "latency", PRODUCE, rate=100),
    Scenario(
        "singles gathered by the SDK",
        "produce",
        PRODUCE,
        batch_items=1,
        in_flight=2000,
        gather=True,
    ),
    Scenario("singles, one per stream frame", "produce", PRODUCE, batch_items=1, in_flight=64),
    Scenario(
        "singles, unary, 64 in flight", "produce", PRODUCE, batch_items=1, in_flight=64, unary=True
    ),
    Scenario(
        "singles, unary, sent on",
        "produce",
        PRODUCE,
        batch_items=1,
        in_flight=64,
        unary=True,
        elsewhere=True,
    ),
    Scenario("drain 10,000", "drain", ("consume",), payload_bytes=100, backlog_items=10_000),
    Scenario("drain 1,000,000", "drain", ("consume",), payload_bytes=100, backlog_items=1_000_000),
)
"""The scenarios of `make bench`; `--only` selects by a part of the name."""
