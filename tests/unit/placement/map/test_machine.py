"""The placement machine through its own interface: commands in, results and maps out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import NODE_PARTITIONS_MAX, PARTITIONS_MAX
from querator.model.nodes import NodeKey
from querator.model.queues import (
    Fairness,
    GroupSettings,
    Queue,
    QueueKind,
    QueueSettings,
    QueueState,
)
from querator.placement.map.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    PartitionsEmpty,
    QueueConfigured,
    QueueCreated,
    QueueDeleted,
    QueueRouted,
    QueueUpdated,
    ReplicasGone,
    UpdateQueue,
)
from tests.unit.placement.conftest import Group

A = NodeKey("a/1")
B = NodeKey("b/1")


def create(group: Group, name: str, *, active: bool = True, **settings: Any) -> Queue:
    result = group.propose(CreateQueue("n", name, QueueSettings(**settings)))
    assert isinstance(result, QueueCreated)
    if active:
        group.propose(QueueConfigured(result.queue.id, result.queue.settings_version))
    queue = group.map.get(result.queue.id)
    assert queue is not None
    return queue


def update(group: Group, name: str, *, expected_version: int = 0, **settings: Any) -> Any:
    mask = tuple(settings)
    return group.propose(UpdateQueue("n", name, QueueSettings(**settings), mask, expected_version))


def state(group: Group, name: str) -> QueueState:
    queue = group.map.find("n", name)
    assert queue is not None
    return queue.state


def refused(result: Any, code: ErrorCode, field: str) -> str:
    assert isinstance(result, Refusal), result
    assert (result.code, result.field) == (code, field)
    return result.message


def deleted(result: Any) -> tuple[QueueId, bool]:
    assert isinstance(result, QueueDeleted), result
    return result.queue.id, result.changed


def test_an_empty_map_has_the_default_namespace(group: Group):
    assert group.map.namespaces == ("default",)
    assert list(group.map) == []
    assert group.effects.pending == frozenset()


def test_no_queue_before_there_are_nodes():
    group = Group(nodes="")
    assert group.map.epoch == 0
    result = group.propose(CreateQueue("n", "q", QueueSettings()))
    assert "being formed" in refused(result, ErrorCode.UNAVAILABLE, "")
    assert list(group.map) == []


def test_life_of_a_queue(group: Group):
    queue = create(group, "q", active=False, partitions=3)
    assert queue == Queue(
        namespace="n",
        name="q",
        id=QueueId(1),
        state=QueueState.CREATING,
        settings=QueueSettings(partitions=3),
        settings_version=1,
        created_at_ms=1_000,
        groups=(GroupId(1), GroupId(2), GroupId(3)),
        routed=3,
    )
    assert group.map.namespaces == ("default", "n")
    assert group.effects.pending == {1}

    assert group.propose(QueueConfigured(QueueId(1), 1)) == Done(1)
    assert state(group, "q") is QueueState.ACTIVE
    assert group.effects.pending == frozenset()

    assert update(group, "q", max_attempts=5).queue.settings_version == 2
    updated = group.map.get(QueueId(1))
    assert updated is not None
    assert updated.settings == QueueSettings(partitions=3, max_attempts=5)
    assert group.effects.pending == {1}
    group.propose(QueueConfigured(QueueId(1), 2))
    assert group.effects.pending == frozenset()

    assert deleted(group.propose(DeleteQueue("n", "q"))) == (QueueId(1), True)
    assert state(group, "q") is QueueState.DELETING
    assert group.effects.pending == {1}
    assert group.propose(ReplicasGone(QueueId(1), A)) == Done(1)
    assert group.map.find("n", "q") is None
    assert group.map.by_group(GroupId(2)) is None
    assert not group.map.has_namespace("n")
    assert group.effects.pending == frozenset()


def test_a_namespace_goes_with_its_last_queue(group: Group):
    for name in ("a", "b"):
        create(group, name)
    for name, number in (("a", 1), ("b", 2)):
        group.propose(DeleteQueue("n", name))
        assert group.map.has_namespace("n"), "one is being deleted"
        group.propose(ReplicasGone(QueueId(number), A))
        assert group.map.has_namespace("n") == (name == "a")
    group.restart()
    assert list(group.map.namespaces) == ["default"]
    refused(group.propose(DeleteQueue("n", "b")), ErrorCode.NAMESPACE_NOT_FOUND, "namespace")
    assert create(group, "b").id == QueueId(3)
    assert list(group.map.namespaces) == ["default", "n"]


def test_ids_of_a_deleted_queue_are_never_used_again(group: Group):
    create(group, "q", partitions=2)
    group.propose(DeleteQueue("n", "q"))
    group.propose(ReplicasGone(QueueId(1), A))
    assert group.map.next_group == 3
    group.restart()
    assert group.map.next_group == 3
    again = create(group, "q", partitions=2)
    assert (again.id, again.groups) == (2, (3, 4))
    assert group.map.next_group == 5


def test_create_repeats(group: Group):
    queue = create(group, "q", max_attempts=3)
    epoch = group.map.epoch
    again = group.propose(CreateQueue("n", "q", QueueSettings(max_attempts=3)))
    assert again == QueueCreated(queue, created=False)
    other = group.propose(CreateQueue("n", "q", QueueSettings(max_attempts=4, partitions=2)))
    message = refused(other, ErrorCode.QUEUE_EXISTS, "queue")
    assert message.endswith("partitions is 1, not 2; max_attempts is 3, not 4")
    assert group.map.epoch == epoch


def test_create_compares_only_the_settings_that_are_given(group: Group):
    create(group, "q", partitions=2)
    changed = update(group, "q", max_attempts=3).queue
    wanted = QueueSettings(partitions=2, max_attempts=20, lease_timeout_ms=7_000)
    for compared in ((), ("partitions",)):
        repeat = group.propose(CreateQueue("n", "q", wanted, compared))
        assert repeat == QueueCreated(changed, created=False)
    other = group.propose(CreateQueue("n", "q", wanted, ("lease_timeout_ms", "max_attempts")))
    message = refused(other, ErrorCode.QUEUE_EXISTS, "queue")
    assert message.endswith("lease_timeout is 30000 ms, not 7000 ms; max_attempts is 3, not 20")
    other = group.propose(CreateQueue("n", "q", QueueSettings(dead_queue="d"), ("dead_queue",)))
    assert refused(other, ErrorCode.QUEUE_EXISTS, "queue").endswith("dead_queue is '', not 'd'")


def test_one_entry_with_one_bad_command_refuses_only_that(group: Group):
    settings = QueueSettings()
    results = group.propose_all(
        [
            CreateQueue("n", "a", settings),
            CreateQueue("n", "b", QueueSettings(partitions=0)),
            CreateQueue("n", "c", settings),
            CreateQueue("n", "a", settings),
        ]
    )
    refused(results[1], ErrorCode.LIMIT_EXCEEDED, "settings.partitions")
    assert [getattr(result, "created", None) for result in results] == [True, None, True, False]
    assert [queue.name for queue in group.map.queues("n")] == ["a", "c"]


def test_a_deleting_queue_keeps_its_name(group: Group):
    create(group, "q")
    group.propose(DeleteQueue("n", "q"))
    again = group.propose(CreateQueue("n", "q", QueueSettings()))
    refused(again, ErrorCode.QUEUE_DELETING, "queue")
    refused(update(group, "q", max_attempts=1), ErrorCode.QUEUE_DELETING, "queue")
    assert deleted(group.propose(DeleteQueue("n", "q"))) == (QueueId(1), False)
    # The reconciler was about to propose this when the deletion overtook it.
    assert group.propose(QueueConfigured(QueueId(1), 1)) == Done()
    assert state(group, "q") is QueueState.DELETING


@pytest.mark.parametrize(
    "command",
    [DeleteQueue, lambda namespace, name: UpdateQueue(namespace, name, QueueSettings(), ())],
)
def test_what_is_not_there(group: Group, command: Any):
    refused(group.propose(command("n", "q")), ErrorCode.NAMESPACE_NOT_FOUND, "namespace")
    create(group, "other")
    refused(group.propose(command("n", "q")), ErrorCode.QUEUE_NOT_FOUND, "queue")
    refused(group.propose(command("default", "q")), ErrorCode.QUEUE_NOT_FOUND, "queue")


def test_reports_about_queues_that_are_gone_change_nothing(group: Group):
    epoch = group.map.epoch
    assert group.propose(QueueConfigured(QueueId(7), 1)) == Done()
    assert group.propose(ReplicasGone(QueueId(7), A)) == Done()
    assert group.map.epoch == epoch
    create(group, "q")
    assert group.propose(ReplicasGone(QueueId(1), A)) == Done(), "it is not being deleted"
    assert group.map.find("n", "q") is not None


def test_partitions_have_limits(group: Group):
    for partitions in (-1, 0, PARTITIONS_MAX + 1):
        result = group.propose(CreateQueue("n", "q", QueueSettings(partitions=partitions)))
        assert str(partitions) in refused(result, ErrorCode.LIMIT_EXCEEDED, "settings.partitions")
    create(group, "a", partitions=PARTITIONS_MAX)
    create(group, "most", partitions=NODE_PARTITIONS_MAX - PARTITIONS_MAX - 1)
    result = group.propose(CreateQueue("n", "b", QueueSettings(partitions=2)))
    assert str(NODE_PARTITIONS_MAX) in refused(
        result, ErrorCode.LIMIT_EXCEEDED, "settings.partitions"
    )
    create(group, "b", partitions=1)
    group.propose(DeleteQueue("n", "a"))
    result = group.propose(CreateQueue("n", "c", QueueSettings()))
    refused(result, ErrorCode.LIMIT_EXCEEDED, "settings.partitions")
    group.propose(ReplicasGone(QueueId(1), A))
    create(group, "c")


def test_more_nodes_may_have_more_partitions():
    group = Group(nodes="abcd")
    partitions = 4 * NODE_PARTITIONS_MAX // 3
    for number in range(partitions // PARTITIONS_MAX):
        create(group, f"q{number}", partitions=PARTITIONS_MAX)
    settings = QueueSettings(partitions=PARTITIONS_MAX)
    assert "2000 for each" in refused(
        group.propose(CreateQueue("n", "q", settings)),
        ErrorCode.LIMIT_EXCEEDED,
        "settings.partitions",
    )
    create(group, "q", partitions=partitions % PARTITIONS_MAX)


def test_update_changes_what_the_mask_names(group: Group):
    create(group, "q", max_attempts=3, description="was")
    settings = QueueSettings(max_attempts=9, description="is", lease_timeout_ms=1)
    result = group.propose(UpdateQueue("n", "q", settings, ("description",)))
    assert isinstance(result, QueueUpdated)
    assert result.queue.settings == QueueSettings(max_attempts=3, description="is")
    assert result.queue.settings_version == 2


def test_update_to_what_is_there_changes_nothing(group: Group):
    queue = create(group, "q", max_attempts=3)
    epoch = group.map.epoch
    assert update(group, "q", max_attempts=3) == QueueUpdated(queue)
    assert update(group, "q", partitions=1) == QueueUpdated(queue)
    assert group.map.epoch == epoch


def test_update_checks_the_version(group: Group):
    create(group, "q")
    assert update(group, "q", expected_version=1, max_attempts=1).queue.settings_version == 2
    late = update(group, "q", expected_version=1, max_attempts=2)
    assert "version 2" in refused(late, ErrorCode.VERSION_CONFLICT, "expected_version")
    assert update(group, "q", expected_version=2, max_attempts=2).queue.settings_version == 3


def route(group: Group, name: str = "q") -> None:
    """What the leader of group 0 proposes when all partitions use their next number."""
    queue = group.map.find("n", name)
    assert queue is not None
    group.propose(QueueConfigured(queue.id, queue.settings_version))
    done = group.propose(QueueRouted(queue.id, queue.routing + 1, queue.settings.partitions))
    assert done == Done(1)


def test_more_partitions_and_fewer(group: Group):
    create(group, "q", partitions=2)
    larger = update(group, "q", partitions=4).queue
    assert (larger.groups, larger.routed_partitions, larger.opening) == ((1, 2, 3, 4), 2, 2)
    assert all(group.map.placed(one) is not None for one in larger.groups)
    assert group.effects.pending == {1}
    assert group.propose(QueueRouted(QueueId(1), 1, 3)) == Done(), "of another number"
    assert group.propose(QueueRouted(QueueId(1), 2, 4)) == Done(), "of another version"
    route(group)
    group.restart()
    assert group.effects.pending == frozenset()

    update(group, "q", partitions=1)
    early = PartitionsEmpty(QueueId(1), 1, 2, (7, 8))
    assert group.propose(early) == Done(), "they still take items"
    route(group)
    smaller = group.map.get(QueueId(1))
    assert smaller is not None
    assert (len(smaller.groups), smaller.routed_partitions, smaller.closing, smaller.routing) == (
        4,
        1,
        3,
        2,
    )
    assert group.propose(early) == Done(), "of the routing before"
    for wrong in (
        PartitionsEmpty(QueueId(1), 2, 0, (1,) * 4),
        PartitionsEmpty(QueueId(1), 2, 2, ()),
    ):
        assert group.propose(wrong) == Done()
    assert group.propose(PartitionsEmpty(QueueId(1), 2, 2, (7, 8))) == Done(2)
    group.restart()
    left = group.map.get(QueueId(1))
    assert left is not None
    assert (left.groups, left.first_seqs) == ((1, 2), (0, 0, 7, 8))
    assert (group.map.by_group(GroupId(3)), group.map.placed(GroupId(4))) == (None, None)

    again = update(group, "q", partitions=3).queue
    assert again.groups == (1, 2, 5)
    assert [again.first_seq(partition) for partition in range(5)] == [0, 0, 7, 8, 0]


def test_a_setting_is_complete_while_the_number_of_partitions_is_being_changed(group: Group):
    create(group, "q", partitions=1)
    resized = update(group, "q", partitions=3).queue
    paused = update(group, "q", lease_paused=True).queue
    assert not group.effects.has_settled(paused, routed=False)
    group.propose(QueueConfigured(paused.id, paused.settings_version))
    assert group.effects.has_settled(paused, routed=False)
    assert not group.effects.has_settled(resized, routed=True)
    route(group)
    assert group.effects.has_settled(resized, routed=True)


def test_numbers_of_partitions_that_are_refused(group: Group):
    create(group, "q", partitions=2)
    for partitions in (-1, 0, PARTITIONS_MAX + 1, 10_000):
        result = update(group, "q", partitions=partitions)
        assert str(partitions) in refused(result, ErrorCode.LIMIT_EXCEEDED, "settings.partitions")
    create(group, "other", partitions=NODE_PARTITIONS_MAX - 1_000)
    create(group, "third", partitions=990)
    refused(update(group, "q", partitions=11), ErrorCode.LIMIT_EXCEEDED, "settings.partitions")
    update(group, "q", partitions=10)
    message = refused(
        update(group, "q", partitions=5), ErrorCode.UNAVAILABLE, "settings.partitions"
    )
    assert "from 2 to 10; partitions=2 undoes that; or try again" in message
    assert update(group, "q", max_attempts=7).queue.settings.partitions == 10, "others are not"
    route(group)
    update(group, "q", partitions=5)


def test_users_of_a_dead_queue_are_told_of_its_partitions(group: Group):
    create(group, "dead", partitions=2)
    create(group, "q", dead_queue="dead")
    update(group, "dead", partitions=3)
    user = group.map.find("n", "q")
    assert user is not None
    assert user.settings_version == 2
    assert group.effects.pending == {1, 2}
    group.restart()
    assert group.effects.pending == {1, 2}


@pytest.mark.parametrize(
    ("settings", "mask", "field"),
    [
        (QueueSettings(), (), "update_mask"),
        (QueueSettings(), ("lease_timeout_ms", "colour"), "update_mask"),
    ],
)
def test_updates_that_make_no_sense(
    group: Group, settings: QueueSettings, mask: tuple[str, ...], field: str
):
    create(group, "q")
    result = group.propose(UpdateQueue("n", "q", settings, mask))
    refused(result, ErrorCode.INVALID_ARGUMENT, field)


def test_update_while_creating_is_kept_for_the_partitions(group: Group):
    create(group, "q", active=False)
    update(group, "q", max_attempts=2)
    assert state(group, "q") is QueueState.CREATING
    # The reconciler had given the partitions version 1 when version 2 came.
    group.propose(QueueConfigured(QueueId(1), 1))
    assert state(group, "q") is QueueState.ACTIVE
    assert group.effects.pending == {1}
    group.propose(QueueConfigured(QueueId(1), 2))
    assert group.effects.pending == frozenset()


DEAD_QUEUES: list[tuple[str, ErrorCode | None]] = [
    ("dead", None),
    ("q", ErrorCode.INVALID_ARGUMENT),
    ("nowhere", ErrorCode.QUEUE_NOT_FOUND),
    ("elsewhere", ErrorCode.QUEUE_NOT_FOUND),
    ("creating", ErrorCode.UNAVAILABLE),
    ("deleting", ErrorCode.QUEUE_DELETING),
    ("has-one", ErrorCode.INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("dead_queue", "code"), DEAD_QUEUES)
@pytest.mark.parametrize("how", ["create", "update"])
def test_dead_queues(group: Group, how: str, dead_queue: str, code: ErrorCode | None):
    create(group, "dead")
    create(group, "other-dead")
    create(group, "has-one", dead_queue="other-dead")
    create(group, "creating", active=False)
    create(group, "deleting")
    group.propose(DeleteQueue("n", "deleting"))
    group.propose(CreateQueue("m", "elsewhere", QueueSettings()))
    if how == "create":
        result = group.propose(CreateQueue("n", "q", QueueSettings(dead_queue=dead_queue)))
    else:
        create(group, "q")
        result = update(group, "q", dead_queue=dead_queue)
    if code is None:
        assert result.queue.settings.dead_queue == dead_queue
    else:
        refused(result, code, "settings.dead_queue")


def test_no_chain_from_the_other_end(group: Group):
    create(group, "q-dead")
    create(group, "deader")
    create(group, "q", dead_queue="q-dead")
    result = update(group, "q-dead", dead_queue="deader")
    assert "dead queue of q" in refused(result, ErrorCode.INVALID_ARGUMENT, "settings.dead_queue")


def test_a_dead_queue_may_have_the_default_dead_queue_which_has_none(group: Group):
    create(group, "dead")
    create(group, "q-dead", dead_queue="dead")
    create(group, "q", dead_queue="q-dead")
    create(group, "r-dead")
    create(group, "r", dead_queue="r-dead")
    assert update(group, "r-dead", dead_queue="dead").queue.settings.dead_queue == "dead"
    create(group, "s")
    result = update(group, "dead", dead_queue="s")
    assert "dead has no dead queue" in refused(
        result, ErrorCode.INVALID_ARGUMENT, "settings.dead_queue"
    )


def test_a_dead_queue_in_use_cannot_be_deleted(group: Group):
    create(group, "dead")
    create(group, "a", dead_queue="dead")
    create(group, "b", dead_queue="dead")
    result = group.propose(DeleteQueue("n", "dead"))
    message = refused(result, ErrorCode.QUEUE_IN_USE, "queue")
    assert "a, b" in message
    assert "to empty it: querator queue purge dead" in message
    update(group, "a", dead_queue="")
    refused(group.propose(DeleteQueue("n", "dead")), ErrorCode.QUEUE_IN_USE, "queue")
    group.propose(DeleteQueue("n", "b"))
    assert deleted(group.propose(DeleteQueue("n", "dead")))[1]


def test_time_never_goes_backwards(group: Group):
    group.now_ms = 5_000
    create(group, "a")
    group.now_ms = 4_000
    assert create(group, "b").created_at_ms == 5_000


NAMES = st.sampled_from(["a", "b", "c", "d"])
SETTINGS = st.builds(
    QueueSettings,
    partitions=st.integers(0, 3),
    max_attempts=st.integers(0, 2),
    dead_queue=st.sampled_from(["", "a", "b", "c", "d"]),
)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateQueue, st.just("n"), NAMES, SETTINGS),
    st.builds(
        UpdateQueue,
        st.just("n"),
        NAMES,
        SETTINGS,
        st.sets(st.sampled_from(["max_attempts", "dead_queue", "partitions"])).map(
            lambda mask: tuple(sorted(mask))
        ),
        st.integers(0, 2),
    ),
    st.builds(DeleteQueue, st.just("n"), NAMES),
    st.builds(QueueConfigured, st.integers(1, 8).map(QueueId), st.integers(1, 3)),
    st.builds(ReplicasGone, st.integers(1, 8).map(QueueId), st.sampled_from([A, B])),
)


def assert_rules_hold(group: Group) -> None:
    placed = group.map
    by_name = {queue.name: queue for queue in placed}
    groups = [one for queue in placed for one in queue.groups]
    assert len(by_name) == len(placed)
    assert len(set(groups)) == len(groups) == placed.partitions
    for queue in placed:
        # While the number is being changed, the queue has the partitions of both numbers.
        partitions = max(queue.settings.partitions, queue.routed_partitions)
        assert len(queue.groups) == partitions >= 1
        assert placed.find(queue.namespace, queue.name) is placed.get(queue.id) is queue
        for partition, one in enumerate(queue.groups):
            assert placed.by_group(one) == (queue, partition)
        if queue.settings.dead_queue and queue.state is not QueueState.DELETING:
            dead = by_name[queue.settings.dead_queue]
            assert dead.id != queue.id
            assert dead.state is QueueState.ACTIVE
            assert dead.settings.dead_queue == ""
        if queue.state is not QueueState.ACTIVE:
            assert queue.id in group.effects.pending
        for one in queue.groups:
            assert [replica.node for replica in placed.replicas(one)] == [A, B]
    assert placed.groups.keys() == {PLACEMENT_GROUP, *groups}
    assert group.effects.deleted_on.keys() <= group.effects.pending


@given(st.lists(st.lists(COMMANDS, min_size=1, max_size=3), max_size=25), st.data())
def test_any_commands_keep_the_rules(entries: list[list[Command]], data: st.DataObject):
    group = Group(nodes="ab")
    used: dict[int, int] = {}
    for commands in entries:
        group.now_ms = data.draw(st.integers(0, 10_000))
        epoch = group.map.epoch
        group.propose_all(commands)
        assert_rules_hold(group)
        assert group.map.epoch >= epoch
        for queue in group.map:
            for one in queue.groups:
                assert used.setdefault(one, queue.id) == queue.id, "a group was used again"

    # A replica that restarts before every entry reaches the same state as one that never restarts.
    replica = Group(nodes="")
    for entry in group.log:
        replica.restart()
        replica.apply(entry)
    assert replica.digest() == group.digest()
    assert replica.effects.pending == group.effects.pending
    assert list(replica.map.queues("n")) == list(group.map.queues("n"))
    assert replica.map.epoch == group.map.epoch


def test_the_kind_of_a_queue_is_fixed(group: Group):
    create(group, "fair", kind=QueueKind.FAIR)
    result = update(group, "fair", kind=QueueKind.KEYED)
    message = refused(result, ErrorCode.INVALID_ARGUMENT, "settings.kind")
    assert "was created as fair" in message
    assert (result.limit, result.value) == ("fair", "keyed")
    same = update(group, "fair", kind=QueueKind.FAIR)
    assert isinstance(same, QueueUpdated)
    assert same.queue.settings_version == 1
    other = update(group, "fair", fairness=Fairness.TURNS, groups=(GroupSettings("eu", 3),))
    assert other.queue.settings.groups == (GroupSettings("eu", 3),)
    assert other.queue.settings_version == 2


def test_a_repeated_create_names_the_differences_of_fair_queues(group: Group):
    create(group, "fair", kind=QueueKind.FAIR)
    other = QueueSettings(kind=QueueKind.PLAIN, groups=(GroupSettings("eu"),))
    result = group.propose(CreateQueue("n", "fair", other))
    message = refused(result, ErrorCode.QUEUE_EXISTS, "queue")
    assert message.endswith("kind is fair, not plain; groups differ")


@pytest.mark.parametrize(("kind", "version"), [(QueueKind.FAIR, 3), (QueueKind.PLAIN, 2)])
def test_when_partitions_leave_a_fair_queue_the_others_get_their_limits(
    group: Group, kind: QueueKind, version: int
):
    queue = create(group, "q", kind=kind, partitions=4)
    update(group, "q", partitions=2)
    group.propose(QueueConfigured(queue.id, 2))
    group.propose(QueueRouted(queue.id, 1, 2))
    group.propose(PartitionsEmpty(queue.id, 1, 2, (5, 5)))
    left = group.map.get(queue.id)
    assert left is not None
    assert (len(left.groups), left.settings_version) == (2, version)
