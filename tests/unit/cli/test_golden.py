"""What the command line shows at 80 and 40 columns: every help text, and every table.

Look at the new texts after a change, then keep them:

    GOLDEN=write .venv/bin/pytest -n0 tests/unit/cli/test_golden.py
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import bench, querator, verify
from querator.cli.demo.measure import Latency
from querator.cli.spark import run
from querator.spark import pipelines
from querator.spark.pipelines.scans import ItemGroup, QueueScan, StateHistogram
from querator.spark.pipelines.settings import QueuePlace
from querator.v1 import (
    admin_service_pb2,
    cluster_service_pb2,
    execution_service_pb2,
    items_pb2,
    queue_service_pb2,
    reader_service_pb2,
    transaction_service_pb2,
)
from tests.unit.cli.scripted_cluster import (
    ScriptedCluster,
    on_terminal,
    scripted_cluster,
    scripted_counts,
    scripted_execution,
    scripted_journal,
    written,
)

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("GOLDEN") == "write"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


HELPS = {"-".join(("help", *path)): path for path in commands(querator)}
NARROW_HELPS = ("help", "help-queue-create", "help-dead", "help-produce", "help-schedule")
TABLES = {
    "queue-create": ("queue", "create", "mail"),
    "queue-info": ("queue", "info", "mail"),
    "queue-info-fair": ("queue", "info", "jobs"),
    "queue-list": ("queue", "list"),
    "group-list": ("group", "list", "jobs"),
    "stats": ("stats",),
    "stats-partitions": ("stats", "mail", "--partitions"),
    "peek": ("peek", "mail"),
    "peek-leased": ("peek", "mail", "--state", "leased"),
    "dead-groups": ("dead", "groups", "mail"),
    "dead-list": ("dead", "list", "mail"),
    "schedule-list": ("schedule", "list", "mail"),
    "schedule-count": ("schedule", "count", "mail"),
    "schedule-count-range": (
        "schedule",
        "count",
        "mail",
        "--interval",
        "10m",
        "--from",
        "2030-01-31T12:30:00Z",
        "--until",
        "2030-01-31T15:30:00Z",
    ),
    "lease": ("lease", "mail"),
    "checkpoint": ("checkpoint", "mail", "1.0.2a", "0-17", "page 7"),
    "extend": ("extend", "mail", "1.0.2a", "--lease-timeout", "10m"),
    "txn-list": ("txn", "list", "mail"),
    "reader-list": ("reader", "list", "mail", "--partitions"),
    "cluster-status": ("cluster", "status"),
    "cluster-status-partitions": ("cluster", "status", "--partitions"),
    "cluster-plan": ("cluster", "plan"),
    "cluster-repair-time": ("cluster", "repair-time", "mail", "--dry-run"),
    "execution-list": ("execution", "list", "shop"),
    "execution-show": ("execution", "show", "shop", "order-17"),
    "execution-journal": ("execution", "journal", "shop", "order-17"),
    "queue-give-up": ("queue", "give-up", "mail", "--dry-run"),
}
WIDTHS = (80, 40)
LATENCY = Latency(count=200, p50_ms=2.1, p99_ms=9.75, max_ms=31.5)
BENCH = bench.BenchView(
    items=20_000,
    batch_items=100,
    delivery_items=100,
    payload_bytes=1_000,
    producers=4,
    consumers=2,
    durable=True,
    seconds=3.25,
    produced_per_second=6_154.0,
    completed_per_second=6_001.0,
    ack=LATENCY,
    delivery=LATENCY,
    client_cpu_seconds=1.5,
    problems=[],
)
VERIFY = verify.VerifyView(
    data_dir="./data",
    cluster_id="0197",
    queues=2,
    partitions=5,
    items=1_200,
    log_entries=340,
    attachments=38,
    problems=[],
)
FOUND = [
    verify.Problem(f"default/mail partition {number}", sentence, kind)
    for number, (kind, sentence) in enumerate(
        (
            (verify.Kind.LOG, "entry 17 is missing"),
            (verify.Kind.PAYLOAD, "attachment 12/0: its checksum does not match"),
            (verify.Kind.STATE, "3 items are counted as ready, and there are 4"),
            (verify.Kind.LEFTOVER, "there are items that belong to no queue"),
        )
    )
]
REPORTS: dict[str, Callable[[], None]] = {
    "bench": lambda: bench.write_report(BENCH),
    "bench-without-consumers": lambda: bench.write_report(
        msgspec.structs.replace(BENCH, completed_per_second=None, delivery=None, durable=False)
    ),
    "verify": lambda: verify.write_report(VERIFY),
    "verify-problems": lambda: verify.write_report(
        msgspec.structs.replace(VERIFY, problems=FOUND, actions=verify.actions_for(FOUND, "node-1"))
    ),
}
"""Reports of commands that measure or read a disk: the values are made here."""


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        cluster.answers = {
            "CreateQueue": admin_service_pb2.CreateQueueResponse(queue=MAIL, created=True),
            "GetQueue": _queue,
            "ListGroups": _groups(),
            "ListQueues": admin_service_pb2.ListQueuesResponse(queues=[MAIL, DEAD]),
            "GetQueueStats": _stats,
            "PeekItems": _peeked,
            "ListDeadLetters": admin_service_pb2.ListDeadLettersResponse(items=LETTERS),
            "ListScheduledItems": admin_service_pb2.ListScheduledItemsResponse(items=WAITING),
            "CountScheduledItems": scripted_counts(DUE),
            "Lease": queue_service_pb2.LeaseResponse(batches=[BATCH], durable=True),
            "Extend": queue_service_pb2.ExtendResponse(outcomes=[EXTENDED]),
            "ListTxns": _staged(),
            "ListReaders": _readers(),
            "GetClusterStatus": _status(),
            "GetClusterPlan": PLAN,
            "RepairTime": TIMES,
            "GiveUpDamagedItems": DAMAGE,
            "ListExecutions": _executions(),
            "GetExecution": scripted_execution(),
            "ReadJournal": scripted_journal(),
        }
        yield cluster


@pytest.mark.parametrize("name", HELPS)
def test_help(name: str) -> None:
    outcome = CliRunner().invoke(querator, [*HELPS[name], "--help"], terminal_width=80)
    assert outcome.exit_code == 0
    assert max(map(len, outcome.output.splitlines())) <= 80
    agree(name, outcome.output)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_table(
    name: str, columns: int, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*TABLES[name], "--address", cluster.address]
    code, text = on_terminal(monkeypatch, command, columns=columns)
    assert code == (1 if name.startswith("cluster-status") else 0)
    agree(f"table-{name}-{columns}", text)


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_spark(
    columns: int, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself is replaced: two scans, each with its own time."""
    monkeypatch.setattr(run, "check_requirements", lambda: None)
    monkeypatch.setattr(run, "check_java", lambda: None)
    monkeypatch.setattr(run, "open_session", lambda *_: Session())
    # The attribute of the module would import Spark.
    monkeypatch.setitem(pipelines.__dict__, "stats", lambda _, settings: _scan(settings.source))
    command = ["spark", "stats", "mail", "mail-dead", "--address", cluster.address]
    code, text = on_terminal(monkeypatch, command, columns=columns)
    assert code == 0
    agree(f"table-spark-stats-{columns}", text)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_report(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(f"report-{name}-{columns}", written(monkeypatch, REPORTS[name], columns=columns))


@pytest.mark.parametrize("name", NARROW_HELPS)
def test_narrow_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    outcome = CliRunner().invoke(querator, [*HELPS[name], "--help"])
    assert outcome.exit_code == 0
    agree(f"{name}-40", outcome.output)


def test_every_golden_file_is_compared() -> None:
    names = (*TABLES, "spark-stats")
    tables = {f"table-{name}-{columns}" for name in names for columns in WIDTHS}
    narrow = {f"{name}-40" for name in NARROW_HELPS}
    reports = {f"report-{name}-{columns}" for name in REPORTS for columns in WIDTHS}
    assert {path.stem for path in GOLDEN.iterdir()} == {*HELPS, *narrow, *tables, *reports}


def agree(name: str, text: str) -> None:
    """Compares `text` with its file; with GOLDEN=write in the environment, writes the file."""
    path = GOLDEN / f"{name}.txt"
    if WRITE:
        path.write_text(text)
    assert path.exists(), f"{name} is new: see the head of this file"
    assert text == path.read_text(), f"{name} has changed: see the head of this file"


# --- answers of the cluster ----------------------------------------------------------------


def at(text: str) -> Timestamp:
    stamp = Timestamp()
    stamp.FromJsonString(text)
    return stamp


def ago(**units: float) -> Timestamp:
    """An instant whose age is shown alike for the next half minute."""
    stamp = Timestamp()
    stamp.FromDatetime(datetime.now(UTC) - timedelta(**units, seconds=15))
    return stamp


NOON = at("2026-01-31T12:00:00Z")
MAIL = admin_service_pb2.Queue(
    namespace="default",
    name="mail",
    id=1,
    state=admin_service_pb2.QUEUE_STATE_ACTIVE,
    settings=admin_service_pb2.QueueSettings(
        partitions=4,
        lease_timeout=Duration(seconds=90),
        max_attempts=5,
        dead_queue="mail-dead",
        dedup_window=Duration(seconds=3600),
        description="letters of the shop",
    ),
    settings_version=3,
    created_at=NOON,
)
DEAD = admin_service_pb2.Queue(
    namespace="default",
    name="mail-dead",
    id=2,
    state=admin_service_pb2.QUEUE_STATE_ACTIVE,
    settings=admin_service_pb2.QueueSettings(partitions=1, lease_timeout=Duration(seconds=30)),
    settings_version=1,
    created_at=NOON,
    partitions_closing=2,
)
FAIR = admin_service_pb2.Queue(
    namespace="default",
    name="jobs",
    id=3,
    state=admin_service_pb2.QUEUE_STATE_ACTIVE,
    settings=admin_service_pb2.QueueSettings(
        partitions=4,
        lease_timeout=Duration(seconds=30),
        kind=admin_service_pb2.QUEUE_KIND_FAIR,
        fairness=admin_service_pb2.FAIRNESS_IN_FLIGHT,
        group_leased_max=50,
        groups=[
            admin_service_pb2.GroupSettings(path="eu", weight=3),
            admin_service_pb2.GroupSettings(path="eu.fr", weight=2, leased_max=1_200),
        ],
    ),
    settings_version=4,
    created_at=NOON,
)
LETTER_PAYLOAD = b'{"to": "ann@example.org", "subject": "Welcome"}'
LEASED = admin_service_pb2.PeekedItem(
    partition=1,
    seq=1206,
    state=items_pb2.ITEM_STATE_LEASED,
    attempt=1,
    produced_at=NOON,
    lease_id="1.1.2a",
    client_id="mailer-host7-4711-x3",
    deadline=at("2026-01-31T12:00:30Z"),
    checkpoint_bytes=4_096,
    item=items_pb2.Item(payload=LETTER_PAYLOAD, kind="email"),
)
ITEMS = [
    admin_service_pb2.PeekedItem(
        partition=0,
        seq=17,
        state=items_pb2.ITEM_STATE_READY,
        produced_at=NOON,
        item=items_pb2.Item(
            payload=b'{"to": "ann@example.org", "subject": "Welcome"}', kind="email"
        ),
    ),
    admin_service_pb2.PeekedItem(
        partition=1,
        seq=1204,
        state=items_pb2.ITEM_STATE_SCHEDULED,
        attempt=2,
        produced_at=NOON,
        due_at=at("2026-01-31T12:05:00Z"),
        errors=["mailbox busy"],
        item=items_pb2.Item(payload="東京へようこそ".encode(), kind="email"),
    ),
    admin_service_pb2.PeekedItem(
        partition=1,
        seq=1205,
        state=items_pb2.ITEM_STATE_READY,
        produced_at=NOON,
        item=items_pb2.Item(payload=b"\xff\x00" * 500, kind="image"),
    ),
]
WAITING = [
    ITEMS[1],
    admin_service_pb2.PeekedItem(
        partition=0,
        seq=12,
        state=items_pb2.ITEM_STATE_SCHEDULED,
        produced_at=NOON,
        due_at=at("2026-02-01T08:00:00Z"),
        item=items_pb2.Item(
            payload=b'{"to": "ann@example.org", "subject": "Your order is on its way"}',
            kind="reminder",
            reference="order-4711",
        ),
    ),
]
DUE = {
    datetime(2030, 1, 31, 12, tzinfo=UTC) + timedelta(minutes=minutes): items
    for minutes, items in (
        (3, 40),
        (12, 1_250),
        (20, 804),
        (31, 90),
        (45, 7),
        (60, 512),
        (61, 600),
        (64, 1),
        (200, 35),
        (215, 3),
    )
}
LETTER = items_pb2.DeadLetter(
    origin_queue="mail",
    origin_partition=0,
    origin_seq=17,
    attempts=5,
    reason=items_pb2.DEAD_REASON_ATTEMPTS,
    errors=["mailbox busy", "ConnectionError: smtp.example.org port 25 refused the connection"],
    produced_at=NOON,
    died_at=at("2026-01-31T12:30:00Z"),
)
LETTERS = [
    admin_service_pb2.PeekedItem(
        partition=0,
        seq=1,
        state=items_pb2.ITEM_STATE_READY,
        produced_at=NOON,
        dead_letter=LETTER,
        item=items_pb2.Item(payload=LETTER_PAYLOAD),
    )
]


def _peeked(data: bytes) -> admin_service_pb2.PeekItemsResponse:
    state = admin_service_pb2.PeekItemsRequest.FromString(data).state
    leased = state == items_pb2.ITEM_STATE_LEASED
    if not leased:
        return admin_service_pb2.PeekItemsResponse(items=ITEMS)
    shown = admin_service_pb2.PeekedItem(leased_at=ago(hours=3, minutes=5))
    shown.MergeFrom(LEASED)
    return admin_service_pb2.PeekItemsResponse(items=[shown])


def _executions() -> execution_service_pb2.ListExecutionsResponse:
    kind = execution_service_pb2.Execution
    listed = (
        kind(id="order-17", function="checkout", state=execution_service_pb2.EXECUTION_STATE_PARKED,
             records=12, created_at=ago(hours=3, minutes=5)),
        kind(id="order-18", function="checkout", state=execution_service_pb2.EXECUTION_STATE_STUCK,
             records=1_204, created_at=ago(minutes=7),
             reason="the worker has no function checkout; it has pack, ship"),
    )  # fmt: skip
    return execution_service_pb2.ListExecutionsResponse(executions=listed)


BATCH = items_pb2.LeasedBatch(
    lease_id="1.0.2a",
    queue="mail",
    partition=0,
    first_seq=17,
    attempt=1,
    deadline=at("2026-01-31T12:01:30Z"),
    lease_remaining=Duration(seconds=90),
    produced_at=NOON,
    items=[
        items_pb2.Item(payload=b"hello", kind="email", reference="order-4711"),
        items_pb2.Item(payload=b"a longer letter, which does not fit in a narrow terminal"),
    ],
)
EXTENDED = queue_service_pb2.ExtendOutcome(
    lease_id="1.0.2a",
    deadline=at("2026-01-31T12:10:00Z"),
    lease_remaining=Duration(seconds=600),
)
PLAN = cluster_service_pb2.GetClusterPlanResponse(
    epoch=7,
    moves=[
        cluster_service_pb2.ClusterMove(
            namespace="default",
            queue="mail",
            partition=partition,
            origin=["node-1", "node-2", "node-3"],
            to=["node-1", "node-2", "node-4"],
            leader="node-1",
            reason="node-3 is being drained",
            moving=partition == 0,
        )
        for partition in (0, 1)
    ],
)
TIMES = admin_service_pb2.RepairTimeResponse(
    partitions=[
        admin_service_pb2.PartitionTime(
            partition=1, ahead=Duration(seconds=7262), leases=3, scheduled=12, expired=1
        ),
        admin_service_pb2.PartitionTime(partition=2, ahead=Duration(seconds=-61)),
    ]
)
DAMAGE = admin_service_pb2.GiveUpDamagedItemsResponse(
    blocks=[
        admin_service_pb2.DamagedBlock(
            partition=1, first_seq=257, items=256, kept=2, lost=True, node="node-2",
            reason="no replica has it whole",
        ),
        admin_service_pb2.DamagedBlock(
            partition=3, first_seq=1, items=9, node="node-3", reason="node-1 does not answer"
        ),
    ]
)  # fmt: skip


def _stats(request: bytes) -> admin_service_pb2.GetQueueStatsResponse:
    name = admin_service_pb2.GetQueueStatsRequest.FromString(request).queue
    if name == "mail-dead":
        letters = admin_service_pb2.PartitionStats(ready=1, produced=0, moved_in=1, bytes=120)
        return admin_service_pb2.GetQueueStatsResponse(
            queue=DEAD, total=letters, partitions=[letters], durable=True
        )
    parts = [
        admin_service_pb2.PartitionStats(
            partition=partition,
            ready=300 + partition,
            leased=partition,
            scheduled=12 if partition == 2 else 0,
            bytes=300_000,
            produced=308_641,
            delivered=310_000,
            completed=308_000,
            retried=1_000,
            released=20,
            dead=1 if partition == 0 else 0,
            oldest_ready_at=ago(hours=3, minutes=5),
        )
        for partition in range(4)
    ]
    total = admin_service_pb2.PartitionStats(
        ready=1_206,
        leased=6,
        scheduled=12,
        bytes=1_200_000,
        produced=1_234_564,
        delivered=1_240_000,
        completed=1_232_000,
        retried=4_000,
        released=80,
        lapsed=17,
        dead=1,
        oldest_ready_at=ago(hours=3, minutes=5),
    )
    return admin_service_pb2.GetQueueStatsResponse(
        queue=MAIL, total=total, partitions=parts, durable=True
    )


class Session:
    """A session of Spark that does nothing."""

    def stop(self) -> None:
        pass


def _group(items: int, age_s: float, payload_bytes: int) -> ItemGroup:
    return ItemGroup(
        items=items,
        age_s_p50=age_s / 4,
        age_s_p95=age_s / 2,
        age_s_max=age_s,
        attempts_mean=0.25,
        attempts_max=3,
        payload_bytes=payload_bytes,
        payload_bytes_max=payload_bytes // 100,
    )


def _scan(place: QueuePlace) -> QueueScan:
    """A busy queue, and a quiet dead queue that was scanned five minutes later."""
    none = StateHistogram((), {})
    mail = place.queue == "mail"
    at = datetime(2026, 1, 31, 12, 0 if mail else 5, tzinfo=UTC)
    whole = _group(308_641, 90_000, 1 << 30) if mail else _group(1, 600, 120)
    kinds = {"email": _group(300_000, 90_000, 1 << 29), "": _group(8_000, 5, 4_000_000)}
    return QueueScan(
        queue=place.queue,
        scanned_at=at,
        rows=whole.items,
        states={"ready": whole},
        kinds=kinds if mail else {"email": whole},
        kinds_more=3 if mail else 0,
        other_kinds=_group(641, 3_000, 64_100) if mail else None,
        partitions={0: whole},
        states_of_partitions={0: {"ready": whole.items}},
        ages=none,
        attempts=none,
        sizes=none,
        dead_letters={} if mail else {"attempts": 1},
        told={"ready": whole.items},
        stood_still=not mail,
        problems=(),
    )


def _queue(data: bytes) -> admin_service_pb2.GetQueueResponse:
    named = admin_service_pb2.GetQueueRequest.FromString(data).queue
    return admin_service_pb2.GetQueueResponse(queue=FAIR if named == "jobs" else MAIL)


def _groups() -> admin_service_pb2.ListGroupsResponse:
    Stats = admin_service_pb2.GroupStats
    return admin_service_pb2.ListGroupsResponse(
        groups=[
            Stats(group="us", weight=1, items=102_000, ready=101_950, leased=50, leased_max=50,
                  oldest_ready_at=ago(hours=3)),
            Stats(group="eu", weight=3, items=62, ready=12, leased=50),
            Stats(group="eu.de", weight=1, items=12, leased=12),
            Stats(group="eu.fr", weight=2, items=50, ready=12, leased=38,
                  oldest_ready_at=ago(minutes=5)),
            Stats(items=102_063, weight=1, ready=101_963, leased=100,
                  oldest_ready_at=ago(minutes=0.5)),
            Stats(group="zz\x1b[2J\u202e", weight=1, items=1, ready=1),
        ]
    )  # fmt: skip


def _staged() -> transaction_service_pb2.ListTxnsResponse:
    return transaction_service_pb2.ListTxnsResponse(
        txns=[
            transaction_service_pb2.Txn(
                producer="3f2c8a5e-archive",
                batch=17,
                state=transaction_service_pb2.TXN_STATE_STAGED,
                stages=8,
                items=20_000,
                bytes=1_300_000,
                begun_at=ago(hours=2),
                changed_at=ago(hours=2),
            )
        ]
    )


def _readers() -> reader_service_pb2.ListReadersResponse:
    batch = reader_service_pb2.NamedBatch(
        seq=4, count=200, bytes=9_000, opened_at=ago(hours=1, minutes=2), replays=3
    )
    partitions = [
        reader_service_pb2.ReaderPartition(partition=0, epoch=2, acked_seq=3, open_batch=batch),
        reader_service_pb2.ReaderPartition(partition=1, epoch=2, acked_seq=9, ready=1_200),
    ]
    reader = reader_service_pb2.Reader(
        reader_id="lake",
        epoch=2,
        opened_at=ago(days=2, hours=3),
        advanced_at=ago(hours=1, minutes=2),
        partitions=partitions,
    )
    return reader_service_pb2.ListReadersResponse(readers=[reader])


def _status() -> cluster_service_pb2.GetClusterStatusResponse:
    names = ("node-1", "node-2", "node-3")
    # Nothing answers at the port 1: the other nodes are down.
    nodes = [
        cluster_service_pb2.ClusterNode(
            name=name,
            incarnation=name,
            peer_address=f"10.0.0.{number}:4480",
            client_address=f"10.0.0.{number}:4470" if number == 1 else "127.0.0.1:1",
            zone=f"zone-{number}",
            boots=1,
            version="0.1.0",
            state="active",
            connected=number == 1,
        )
        for number, name in enumerate(names, 1)
    ]
    groups = [
        cluster_service_pb2.ClusterGroup(
            group=number + 1,
            namespace="default",
            queue="mail",
            partition=number,
            leads=True,
            leader="node-1",
            preferred_leader="node-1",
            term=2,
            open=True,
            applied_index=100,
            replicas=[
                cluster_service_pb2.ClusterReplica(
                    id=place, node=name, incarnation=name, voter=True, followed=place < 3
                )
                for place, name in enumerate(names, 1)
            ],
            target=[
                cluster_service_pb2.ClusterReplica(
                    id=place, node=name, incarnation=name, voter=True
                )
                for place, name in enumerate(names, 1)
            ],
        )
        for number in range(2)
    ]
    return cluster_service_pb2.GetClusterStatusResponse(
        cluster_id="c0ffee",
        epoch=7,
        node="node-1",
        waiting=[
            cluster_service_pb2.ClusterWaiting(
                name="node-3", incarnation="other", peer_address="10.0.0.3:4480"
            )
        ],
        nodes=nodes,
        groups=groups,
        scrub=cluster_service_pb2.ClusterScrub(on=True, rounds=1, age=Duration(seconds=4_000)),
        certificates=[
            cluster_service_pb2.ClusterCertificate(
                port=port,
                expires_at=Timestamp(seconds=1_900_000_000),
                left=Duration(seconds=days * 86_400),
            )
            for port, days in (("clients", 9), ("nodes", 700))
        ],
    )
