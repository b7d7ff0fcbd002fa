import msgspec
import pytest

from querator.model.ids import GroupId, QueueId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedNode
from querator.model.queues import (
    BreakerSettings,
    DedupUntil,
    Fairness,
    GroupSettings,
    QueueKind,
    QueueSettings,
    RateSettings,
    RetryBackoff,
)
from querator.placement.map import entry
from querator.placement.map.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    DrainNode,
    FormCluster,
    GiveUpTarget,
    GroupSettled,
    HandOffNode,
    JoinNode,
    NodeGone,
    PartitionsEmpty,
    Place,
    PlaceGroups,
    QueueConfigured,
    QueueRouted,
    ReadmitNode,
    RegisterNode,
    RemoveNode,
    ReplaceNode,
    ReplicasClosed,
    ReplicasGone,
    UndoRouting,
    UpdateQueue,
)

SETTINGS = QueueSettings(
    partitions=4,
    lease_timeout_ms=60_000,
    expire_timeout_ms=7,
    max_attempts=3,
    dead_queue="d",
    dedup_window_ms=5,
    partition_items_max=9,
    description="é",
    retry_delay_ms=2_000,
    retry_delay_max_ms=60_000,
    retry_backoff=RetryBackoff.LINEAR,
    retry_jitter=False,
    replicas=3,
    priority_aging_ms=6,
    dedup_until=DedupUntil.DONE,
    kind=QueueKind.FAIR,
    fairness=Fairness.TURNS,
    group_leased_max=100,
    groups=(GroupSettings("eu.de", 3, 50, True, RateSettings(10, 1_000, 20)),),
    key_leased_max=4,
    key_retry_blocks=False,
    lease_paused=True,
    produce_paused=True,
    breaker=BreakerSettings(50, 20, 60_000, 30_000, 3),
    rate_limit=RateSettings(10, 1_000, 20),
    lease_limit=50,
    group_rate_limit=RateSettings(5, 2_000, 2),
    key_rate_limit=RateSettings(7, 3_000, 3),
    events_retention_ms=60_000,
    execution_retention_ms=86_400_000,
)

# [now, [[tag, ...]]] by hand from the msgpack specification. Released bytes never change; a command
# that gets another field keeps its old bytes here and adds further ones.
SETTINGS_BYTES = (
    "dc001e 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 95 a565752e6465 03 32 c3 93 0a cd03e8 14 04 c2 c3 c3 95 32 14 cdea60 cd7530 03"
    "93 0a cd03e8 14 32"
    "93 05 cd07d0 02 93 07 cd0bb8 03 cdea60 ce05265c00"
)
UNKEPT_SETTINGS = msgspec.structs.replace(SETTINGS, execution_retention_ms=604_800_000)
UNKEPT_SETTINGS_BYTES = (
    "dc001d 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 95 a565752e6465 03 32 c3 93 0a cd03e8 14 04 c2 c3 c3 95 32 14 cdea60 cd7530 03"
    "93 0a cd03e8 14 32"
    "93 05 cd07d0 02 93 07 cd0bb8 03 cdea60"
)
"""Settings without the retention of executions."""
SILENT_SETTINGS = msgspec.structs.replace(UNKEPT_SETTINGS, events_retention_ms=0)
SILENT_SETTINGS_BYTES = (
    "dc001c 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 95 a565752e6465 03 32 c3 93 0a cd03e8 14 04 c2 c3 c3 95 32 14 cdea60 cd7530 03"
    "93 0a cd03e8 14 32"
    "93 05 cd07d0 02 93 07 cd0bb8 03"
)
"""Settings without events."""
UNRATED_SETTINGS = msgspec.structs.replace(
    SILENT_SETTINGS,
    groups=(GroupSettings("eu.de", 3, 50, paused=True),),
    group_rate_limit=None,
    key_rate_limit=None,
)
UNRATED_SETTINGS_BYTES = (
    "dc001a 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 94 a565752e6465 03 32 c3 04 c2 c3 c3 95 32 14 cdea60 cd7530 03 93 0a cd03e8 14 32"
)
"""Settings without rates of groups and keys."""
UNLIMITED_SETTINGS = msgspec.structs.replace(UNRATED_SETTINGS, rate_limit=None, lease_limit=0)
UNLIMITED_SETTINGS_BYTES = (
    "dc0018 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 94 a565752e6465 03 32 c3 04 c2 c3 c3 95 32 14 cdea60 cd7530 03"
)
"""Settings without limits of leases."""
UNBROKEN_SETTINGS = msgspec.structs.replace(UNLIMITED_SETTINGS, breaker=None)
UNBROKEN_SETTINGS_BYTES = (
    "dc0017 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 94 a565752e6465 03 32 c3 04 c2 c3 c3"
)
"""Settings without a breaker."""
UNPAUSED_SETTINGS = msgspec.structs.replace(
    UNBROKEN_SETTINGS,
    groups=(GroupSettings("eu.de", 3, 50),),
    lease_paused=False,
    produce_paused=False,
)
UNPAUSED_SETTINGS_BYTES = (
    "dc0015 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02 01 01 64"
    "91 93 a565752e6465 03 32 04 c2"
)
"""Settings without pauses."""
PLAIN_SETTINGS = msgspec.structs.replace(
    UNPAUSED_SETTINGS,
    kind=QueueKind.PLAIN,
    fairness=Fairness.IN_FLIGHT,
    group_leased_max=0,
    groups=(),
    key_leased_max=1,
    key_retry_blocks=True,
)
PLAIN_SETTINGS_BYTES = "9f 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06 02"
"""Settings without a kind of the queue."""
AGING_SETTINGS = msgspec.structs.replace(PLAIN_SETTINGS, dedup_until=DedupUntil.WINDOW)
AGING_SETTINGS_BYTES = "9e 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2 06"
"""Settings without the end of dedup keys."""
RETRY_SETTINGS = msgspec.structs.replace(AGING_SETTINGS, priority_aging_ms=0)
RETRY_SETTINGS_BYTES = "9d 04 cdea60 07 03 a164 05 09 a2c3a9 03 cd07d0 cdea60 02 c2"
"""Settings without the aging of priorities."""
EARLIER_SETTINGS = msgspec.structs.replace(
    RETRY_SETTINGS,
    retry_delay_ms=0,
    retry_delay_max_ms=3_600_000,
    retry_backoff=RetryBackoff.EXPONENTIAL,
    retry_jitter=True,
)
EARLIER_SETTINGS_BYTES = "99 04 cdea60 07 03 a164 05 09 a2c3a9 03"
"""Settings without a retry policy."""
OLD_SETTINGS = msgspec.structs.replace(EARLIER_SETTINGS, replicas=0)
OLD_SETTINGS_BYTES = "98 04 cdea60 07 03 a164 05 09 a2c3a9"
"""Settings without a number of replicas."""
A, B, C = NodeKey("a/i"), NodeKey("b/i"), NodeKey("c/i")
NODE = PlacedNode(
    name="a",
    incarnation="i",
    peer_address="p:1",
    client_address="c:2",
    zone="z",
    boots=3,
    version="v",
    handoff_boots=2,
)
NODE_BYTES = "99 a161 a169 a3703a31 a3633a32 a17a 03 a176 02 a6616374697665"
OLD_NODE_BYTES = "98 a161 a169 a3703a31 a3633a32 a17a 03 a176 02"
"""A node without a state."""
GOLDEN: list[tuple[Command, str]] = [
    (
        CreateQueue("n", "q", SETTINGS, ("replicas",)),
        f"95 01 a16e a171 {SETTINGS_BYTES} 91 a87265706c69636173",
    ),
    (
        UpdateQueue("n", "q", SETTINGS, ("description",), 2),
        f"96 02 a16e a171 {SETTINGS_BYTES} 91 ab6465736372697074696f6e 02",
    ),
    (DeleteQueue("n", "q"), "93 03 a16e a171"),
    (QueueConfigured(QueueId(300), 2), "93 04 cd012c 02"),
    (FormCluster("c", (NODE,)), f"93 06 a163 91 {NODE_BYTES}"),
    (RegisterNode(NODE), f"92 07 {NODE_BYTES}"),
    (ReplaceNode(NODE, "j"), f"93 08 {NODE_BYTES} a16a"),
    (HandOffNode("a", "i", 3), "94 09 a161 a169 03"),
    (ReplicasGone(QueueId(300), NodeKey("a/i")), "93 0a cd012c a3612f69"),
    (ReplicasClosed(QueueId(300), NodeKey("a/i")), "93 15 cd012c a3612f69"),
    (JoinNode(NODE), f"92 0b {NODE_BYTES}"),
    (DrainNode("a"), "93 0c a161 c3"),
    (RemoveNode("a"), "92 0d a161"),
    (NodeGone("a"), "92 0e a161"),
    (ReadmitNode("a"), "92 11 a161"),
    (
        PlaceGroups((Place(GroupId(7), (A,), (A, B), A, (C,)),)),
        "92 0f 91 95 07 91 a3612f69 92 a3612f69 a3622f69 a3612f69 91 a3632f69",
    ),
    (GroupSettled(GroupId(7), 5), "93 10 07 05"),
    (GiveUpTarget(GroupId(7), 5, (Replica(1, A),), 1), "95 16 07 05 91 93 01 a3612f69 c3 01"),
    (QueueRouted(QueueId(300), 2, 12), "94 12 cd012c 02 0c"),
    (UndoRouting(QueueId(300), 3), "93 14 cd012c 03"),
    (PartitionsEmpty(QueueId(300), 2, 4, (1, 300)), "95 13 cd012c 02 04 92 01 cd012c"),
]
OLD: list[tuple[Command, str]] = [
    (CreateQueue("n", "q", SETTINGS), f"94 01 a16e a171 {SETTINGS_BYTES}"),
    (CreateQueue("n", "q", UNKEPT_SETTINGS), f"94 01 a16e a171 {UNKEPT_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", SILENT_SETTINGS), f"94 01 a16e a171 {SILENT_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", UNRATED_SETTINGS), f"94 01 a16e a171 {UNRATED_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", UNLIMITED_SETTINGS), f"94 01 a16e a171 {UNLIMITED_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", UNBROKEN_SETTINGS), f"94 01 a16e a171 {UNBROKEN_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", PLAIN_SETTINGS), f"94 01 a16e a171 {PLAIN_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", UNPAUSED_SETTINGS), f"94 01 a16e a171 {UNPAUSED_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", AGING_SETTINGS), f"94 01 a16e a171 {AGING_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", RETRY_SETTINGS), f"94 01 a16e a171 {RETRY_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", EARLIER_SETTINGS), f"94 01 a16e a171 {EARLIER_SETTINGS_BYTES}"),
    (CreateQueue("n", "q", OLD_SETTINGS), f"94 01 a16e a171 {OLD_SETTINGS_BYTES}"),
    (
        UpdateQueue("n", "q", OLD_SETTINGS, ("description",), 2),
        f"96 02 a16e a171 {OLD_SETTINGS_BYTES} 91 ab6465736372697074696f6e 02",
    ),
    (FormCluster("c", (NODE,)), f"93 06 a163 91 {OLD_NODE_BYTES}"),
    (RegisterNode(NODE), f"92 07 {OLD_NODE_BYTES}"),
    (ReplaceNode(NODE, "j"), f"93 08 {OLD_NODE_BYTES} a16a"),
]


@pytest.mark.parametrize(("command", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(command: Command, golden: str):
    data = bytes.fromhex("01 92 cd03e8 91" + golden)
    assert entry.encode(1_000, [command]).hex() == data.hex()
    assert entry.decode(data) == entry.Batch(1_000, (command,))


@pytest.mark.parametrize(("command", "old"), OLD, ids=lambda value: type(value).__name__)
def test_bytes_of_earlier_releases(command: Command, old: str):
    data = bytes.fromhex("01 92 cd03e8 91" + old)
    assert entry.decode(data) == entry.Batch(1_000, (command,))


def test_there_are_golden_bytes_of_every_command():
    assert {type(command) for command, _ in GOLDEN} == set(Command.__args__)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x02" + entry.encode(1, [])[1:], b"\x01", b"\x01\x92\x01\x91\x91\x63"],
    ids=["empty", "version 0", "version 2", "truncated", "unknown command"],
)
def test_what_is_not_known_is_not_guessed(data: bytes):
    with pytest.raises(entry.UnknownEntryError):
        entry.decode(data)
