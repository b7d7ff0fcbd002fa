"""The host through its API: proposals, groups, failures, bounds. Environments are in memory."""

import asyncio
import pickle  # noqa: TID251 - to see that it is never called
from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    APPLY_ENTRIES_TURN_MAX,
    DAY_MS,
    KIB,
    LEASE_GRACE_MS,
    MIB,
    PROPOSAL_BYTES_WAITING_MAX,
    PROPOSALS_WAITING_MAX,
)
from querator.model.shares import share
from querator.raft.clock import SimulatedClock
from querator.raft.machine import Machine
from querator.storage.environment import EnvironmentFailed
from querator.storage.generations import stored_groups
from querator.storage.keys import ALL
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import APPLIED, ATTACHMENTS
from tests.unit.raft.fake_machine import (
    REGISTER,
    EventRecorder,
    MendedMachine,
    RegisterMachine,
    read,
)
from tests.unit.raft.running_host import CommitGate, CountingClock, CrashAt, code_of, running_host

G1, G2, G3 = GroupId(1), GroupId(2), GroupId(3)


async def test_a_command_is_applied_and_answered():
    owner = EventRecorder()
    async with running_host(MemoryEnvironment(), RegisterMachine(1), owner=owner) as host:
        value, index = await host.propose(G1, 5)
        assert value == 5
        assert await host.propose(G1, 2, b"attached") == (7, index + 1)
        assert host.groups() == (G1,)
        assert host.leads(G1)
        assert not host.leads(G2)
        status = host.status(G1)
        assert status is not None
        assert status.applied_index == status.log_last == index + 1
        assert status.term == 1
    assert owner.leadership == [(G1, True)]
    assert [value for _, value in owner.effects] == [0, 5, 7]


async def test_effects_are_told_after_the_futures_of_their_turn_are_set():
    owner = EventRecorder()
    async with running_host(MemoryEnvironment(), RegisterMachine(1), owner=owner) as host:
        future = host.propose(G1, 5)
        done: list[bool] = []
        owner.on_effects = lambda group, effects: done.append(future.done())  # type: ignore[method-assign]
        await future
    assert done == [True]


async def test_an_owner_that_fails_at_one_event_hears_of_the_others():
    class Failing(EventRecorder):
        def on_effects(self, group: GroupId, effects: Any) -> None:
            super().on_effects(group, effects)
            if group == G1:
                raise RuntimeError("nobody expects this")

    owner = Failing()
    environment = MemoryEnvironment()
    gate = CommitGate(environment)
    async with running_host(
        environment, RegisterMachine(1), RegisterMachine(2), owner=owner
    ) as host:
        gate.close()
        first = host.propose(G2, 1)
        await gate.reached()
        # One turn applies both.
        futures = [host.propose(G1, 5), host.propose(G2, 4)]
        gate.open()
        await asyncio.gather(first, *futures)
    assert (G1, 5) in owner.effects
    assert (G2, 5) in owner.effects


async def test_commands_that_wait_together_share_entries_and_one_synced_commit():
    environment = MemoryEnvironment()
    machines = [RegisterMachine(group) for group in range(1, 21)]
    gate = CommitGate(environment)
    async with running_host(environment, *machines) as host:
        before = environment.commit_points
        gate.close()
        first = host.propose(G1, 1)
        await gate.reached()
        futures = [host.propose(GroupId(m.group), 1) for m in machines for _ in range(50)]
        gate.open()
        await asyncio.gather(first, *futures)
        assert environment.commit_points == before + 2
        stats = host.turn_stats()
    assert [len(machine.applied) for machine in machines] == [2] + [1] * 19
    assert stats.commands.largest == 1000
    assert stats.entries.largest == 20
    assert stats.commands.total == 1001


async def test_results_come_back_one_per_command_in_order():
    async with running_host(MemoryEnvironment(), RegisterMachine(1)) as host:
        results = await asyncio.gather(*[host.propose(G1, n) for n in range(1, 200)])
    values = [value for value, _ in results]
    assert values == [sum(range(1, n + 1)) for n in range(1, 200)]


async def test_an_idle_host_neither_commits_nor_wakes():
    environment = MemoryEnvironment()
    clock = CountingClock()
    machines = [RegisterMachine(group) for group in range(1, 101)]
    async with running_host(environment, *machines, clock=clock) as host:
        await host.propose(G1, 1)
        commits, reads = environment.commit_points, clock.reads
        assert await host.propose(G2, 1) == (1, 2)
        assert environment.commit_points == commits + 1
        # The number of clock reads of a turn does not grow with the number of idle groups.
        assert clock.reads - reads < 60


async def test_a_restart_recovers_and_applies_nothing_twice():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        for _ in range(10):
            await host.propose(G1, 1, b"x" * 100)
    after = environment.crash()
    machine, owner = RegisterMachine(1), EventRecorder()
    async with running_host(after, machine, owner=owner) as host:
        assert machine.applied == []
        assert machine.recovered == 1
        assert owner.effects == [(G1, 10)]
        assert (await host.propose(G1, 1))[0] == 11
        status = host.status(G1)
        assert status is not None
        assert status.term == 2


@pytest.mark.parametrize("point", ["commit", "sync", "synced"])
async def test_a_crash_at_any_commit_keeps_what_was_acknowledged_once(point):
    crashes = 0
    for nth in range(1, 100):
        environment = MemoryEnvironment()
        environment.faults = CrashAt(point, nth)
        acknowledged = await work_until_crash(environment)
        if acknowledged == WORK:
            break
        crashes += 1
        after = environment.crash()
        async with running_host(after, RegisterMachine(1), RegisterMachine(2)) as host:
            for group in (G1, G2):
                value, _ = await host.propose(group, 0)
                # The command in flight may have been applied; acknowledged commands have been.
                assert acknowledged.count(group) <= value <= acknowledged.count(group) + 1
            with after.snapshot() as snapshot:
                total = read(snapshot, 1).value + read(snapshot, 2).value
            assert len(acknowledged) <= total <= len(acknowledged) + 1
    assert crashes == len(WORK) + 2, "one for each command, and one for each creation"


async def test_a_machine_that_raises_stops_only_its_group():
    environment, owner = MemoryEnvironment(), EventRecorder()
    async with running_host(
        environment, RegisterMachine(1), RegisterMachine(2), owner=owner
    ) as host:
        await host.propose(G1, 1)
        assert await code_of(host.propose(G1, "raise")) is ErrorCode.OUTCOME_UNKNOWN
        assert await code_of(host.propose(G1, 1)) is ErrorCode.INTERNAL
        assert await host.propose(G2, 3) == (3, 2)
        assert [group for group, _ in owner.quarantined] == [G1]
        assert (G1, False) in owner.leadership
        assert not host.leads(G1)
        status = host.status(G1)
        assert status is not None
        assert status.quarantined
        assert status.applied_index < status.log_last
        with environment.snapshot() as snapshot:
            assert read(snapshot, 1).value == 1
        with pytest.raises(QueratorError) as caught:
            await host.create_group(G1, RegisterMachine(1))
        assert caught.value.code is ErrorCode.INTERNAL
        assert host.unreadable() == {}, "its status says that it is stopped"


async def test_what_is_on_disk_is_opened_without_a_first_configuration():
    """The map no longer names the replica: it is moving away."""
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        await host.propose(G1, 3)
    async with running_host(environment.crash()) as host:
        await host.create_group(G1, RegisterMachine(1), ())
        assert (await host.propose(G1, 4))[0] == 7


async def test_a_poisoned_entry_stops_the_group_again_after_a_restart():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        await code_of(host.propose(G1, "raise"))
    owner, machine = EventRecorder(), RegisterMachine(1)
    async with running_host(environment.crash(), RegisterMachine(2), owner=owner) as host:
        with pytest.raises(QueratorError) as caught:
            await host.create_group(G1, machine)
        assert caught.value.code is ErrorCode.INTERNAL
        assert (await host.propose(G2, 1))[0] == 1
    assert [group for group, _ in owner.quarantined] == [G1]
    assert machine.recovered == 1, "the machine learns its state before its first apply"


async def test_a_mended_machine_applies_what_the_broken_one_left():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        await host.propose(G1, 1)
        await code_of(host.propose(G1, "raise"))
    machine, owner = MendedMachine(1), EventRecorder()
    async with running_host(environment.crash(), machine, owner=owner) as host:
        assert machine.applied == [3]
        assert owner.effects == [(G1, 101)], "only what holds at the office, once"
        assert (await host.propose(G1, 1))[0] == 102


async def test_a_long_unapplied_tail_is_applied_over_several_turns():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        for _ in range(2 * APPLY_ENTRIES_TURN_MAX + 10):
            await host.propose(G1, 1)
    txn = environment.begin()
    APPLIED.delete(txn, 1)
    REGISTER.delete(txn, 1)
    txn.commit(sync=True)
    before, machine = environment.commit_points, RegisterMachine(1)
    async with running_host(environment, machine) as host:
        assert environment.commit_points == before + 3
        assert machine.applied == list(range(2, 2 * APPLY_ENTRIES_TURN_MAX + 12))
        assert (await host.propose(G1, 1))[0] == 2 * APPLY_ENTRIES_TURN_MAX + 11


async def test_a_command_that_does_not_pack_is_refused_alone():
    environment = MemoryEnvironment()
    gate = CommitGate(environment)
    async with running_host(environment, RegisterMachine(1)) as host:
        gate.close()
        first = host.propose(G1, 1)
        await gate.reached()
        good, bad, better = (host.propose(G1, what) for what in (1, "no pack", 1))
        gate.open()
        assert (await first)[0] == 1
        assert await code_of(bad) is ErrorCode.INTERNAL
        assert [(await future)[0] for future in (good, better)] == [2, 3]


async def test_damage_in_what_a_group_stores_stops_only_that_group():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1), RegisterMachine(2)) as host:
        await host.propose(G1, 1)
    txn = environment.begin()
    log = next(table for table in ALL.values() if table.name == "log")
    for key, value in list(log.rows(txn, 1)):
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    txn.commit(sync=True)
    owner = EventRecorder()
    async with running_host(environment, RegisterMachine(2), owner=owner) as host:
        with pytest.raises(QueratorError) as caught:
            await host.create_group(G1, RegisterMachine(1))
        assert caught.value.code is ErrorCode.INTERNAL
        assert (await host.propose(G2, 1))[0] == 1
        assert host.status(G1) is None
        assert host.unreadable() == {G1: caught.value}
        await host.delete_group(G1)
        assert host.unreadable() == {}
    assert [group for group, _ in owner.quarantined] == [G1]


async def test_a_cancelled_future_does_not_cancel_its_command():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        cancelled = host.propose(G1, 5)
        cancelled.cancel()
        assert (await host.propose(G1, 1))[0] == 6
        assert cancelled.cancelled()


async def test_stop_answers_everything_it_has_taken_on_and_takes_nothing_more():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        futures = [host.propose(G1, 1) for _ in range(5000)]
        await host.stop()
        assert all(future.done() for future in futures)
        assert futures[-1].result()[0] == 5000
        assert await code_of(host.propose(G1, 1)) is ErrorCode.UNAVAILABLE
        with pytest.raises(QueratorError) as caught:
            await host.create_group(G2, RegisterMachine(2))
        assert caught.value.code is ErrorCode.UNAVAILABLE
    with environment.crash().snapshot() as snapshot:
        assert read(snapshot, 1).value == 5000


async def test_a_group_that_is_not_here_is_not_led():
    async with running_host(MemoryEnvironment()) as host:
        assert await code_of(host.propose(G1, 1)) is ErrorCode.NOT_LEADER
        assert host.status(G1) is None


async def test_create_group_again_waits_for_the_same_group():
    machine = RegisterMachine(1)
    async with running_host(MemoryEnvironment()) as host:
        await asyncio.gather(*[host.create_group(G1, machine) for _ in range(3)])
        await host.create_group(G1, machine)
        assert machine.recovered == 1


async def test_more_commands_than_may_wait_are_refused():
    environment = MemoryEnvironment()
    gate = CommitGate(environment)
    async with running_host(environment, RegisterMachine(1)) as host:
        gate.close()
        futures = [host.propose(G1, 1)]
        await gate.reached()
        most = share(PROPOSALS_WAITING_MAX, 0)
        futures += [host.propose(G1, 1) for _ in range(most - 1)]
        assert await code_of(host.propose(G1, 1)) is ErrorCode.OVERLOADED
        gate.open()
        await asyncio.gather(*futures)
        assert (await host.propose(G1, 1))[0] == most + 1


async def test_more_bytes_than_may_wait_are_refused():
    environment = MemoryEnvironment()
    gate = CommitGate(environment)
    megabyte = b"m" * MIB
    machines = RegisterMachine(1), RegisterMachine(2)
    async with running_host(environment, *machines, log_bytes_kept=MIB) as host:
        gate.close()
        futures = [host.propose(G1, 1)]
        await gate.reached()
        most = share(PROPOSAL_BYTES_WAITING_MAX, 0) // MIB - 1
        futures += [host.propose(G1, 1, megabyte) for _ in range(most)]
        assert await code_of(host.propose(G1, 1, megabyte * 2)) is ErrorCode.OVERLOADED
        assert not host.propose(G1, 1).done(), "a small one still gets in"
        other = host.propose(GroupId(2), 1, megabyte)
        assert not other.done(), "and one of another group"
        gate.open()
        await asyncio.gather(*futures, other)
        assert (await host.propose(G1, 1, megabyte))[0] == most + 3


@pytest.mark.parametrize("wrong_days", [3_000, -400])
async def test_a_new_group_of_a_lone_node_goes_by_the_time_of_the_others_while_its_clock_is_wrong(
    wrong_days: int,
):
    environment, owner, clock = MemoryEnvironment(), EventRecorder(), SimulatedClock()
    async with running_host(environment, RegisterMachine(1), owner=owner, clock=clock) as host:
        await host.propose(G1, 1)
        right_ms = clock.wall_ms()
        clock.step_wall(wrong_days * DAY_MS)
        second = GroupId(2)
        await host.create_group(second, RegisterMachine(2))
        await host.propose(second, 1)
        clock.step_wall(-wrong_days * DAY_MS)
        clock.advance(60_000)
        await host.propose(second, 1)
        status = host.status(second)
        assert status is not None
        assert right_ms < status.now_ms <= clock.wall_ms()


async def test_a_full_storage_refuses_attachments_but_not_what_frees_space():
    environment = MemoryEnvironment(quota_bytes=4 * MIB)
    payload = b"p" * (64 * KIB)
    async with running_host(environment, RegisterMachine(1), log_bytes_kept=256 * KIB) as host:
        group, future = 1, host.propose(G1, 0)
        await future
        while future.exception() is None:
            group += 1
            await host.create_group(GroupId(group), RegisterMachine(group))
            future = host.propose(GroupId(group), 1, payload)
            await asyncio.wait([future])
        assert await code_of(future) is ErrorCode.STORAGE_FULL
        assert await code_of(host.propose(G1, 1, payload)) is ErrorCode.STORAGE_FULL
        assert (await host.propose(G1, 1))[0] == 1
        for full in range(2, group + 1):
            await host.delete_group(GroupId(full))
        assert (await host.propose(G1, 1, payload))[0] == 2


async def test_a_storage_that_fails_ends_every_call_and_tells_the_node():
    environment, owner = MemoryEnvironment(), EventRecorder()
    gate = CommitGate(environment)
    async with running_host(
        environment, RegisterMachine(1), RegisterMachine(2), owner=owner
    ) as host:
        gate.close()
        appended = host.propose(G1, 1)
        await gate.reached()
        waiting = host.propose(G2, 1)
        opening = asyncio.gather(host.create_group(G3, RegisterMachine(3)), return_exceptions=True)
        await asyncio.sleep(0)
        gate.fail(EnvironmentFailed("the disk is gone"))
        assert await code_of(appended) is ErrorCode.OUTCOME_UNKNOWN
        assert await code_of(waiting) is ErrorCode.STORAGE_FAILED
        (refused,) = await opening
        assert isinstance(refused, QueratorError)
        assert refused.code is ErrorCode.STORAGE_FAILED
        assert await code_of(host.propose(G1, 1)) is ErrorCode.STORAGE_FAILED
        assert [str(error) for error in owner.failures] == ["the disk is gone"]
        assert not host.leads(G1)


async def test_the_log_keeps_a_window_of_bytes_and_its_attachments():
    environment = MemoryEnvironment()
    kept = 64 * KIB
    async with running_host(environment, RegisterMachine(1), log_bytes_kept=kept) as host:
        for _ in range(100):
            await host.propose(G1, 1, b"a" * 4 * KIB)
        status = host.status(G1)
        assert status is not None
        assert status.log_bytes <= kept
        assert status.log_bytes > kept - 8 * KIB
        assert status.log_first == status.log_last - 14
        with environment.snapshot() as snapshot:
            rows = [ATTACHMENTS.parts(key)[0] for key, _ in ATTACHMENTS.rows(snapshot, 1)]
        assert rows == list(range(status.log_first, status.log_last + 1))
    async with running_host(environment.crash(), RegisterMachine(1), log_bytes_kept=kept) as host:
        again = host.status(G1)
        assert again is not None
        # The new term's no-op is one more entry, and may displace an old one.
        assert again.log_first - status.log_first in (0, 1)
        assert again.log_last == status.log_last + 1
        assert again.log_bytes <= kept
        assert (await host.propose(G1, 1, b"a" * 4 * KIB))[0] == 101


async def test_deleting_a_group_leaves_none_of_its_rows():
    environment = MemoryEnvironment()
    owner = EventRecorder()
    async with running_host(
        environment, RegisterMachine(1), RegisterMachine(2), owner=owner
    ) as host:
        for _ in range(10):
            await host.propose(G1, 1, b"attached")
            await host.propose(G2, 1, b"attached")
        await host.delete_group(G1)
        assert await code_of(host.propose(G1, 1)) is ErrorCode.NOT_LEADER
        assert (await host.propose(G2, 1))[0] == 11
        assert host.groups() == (G2,)
        with environment.snapshot() as snapshot:
            rows = [key for table in ALL.values() for key, _ in table.rows(snapshot, 1)]
        assert rows == []
    assert owner.leadership[-1] == (G1, False)


async def test_a_group_that_was_closed_is_never_opened_again():
    environment, owner = MemoryEnvironment(), EventRecorder()
    async with running_host(environment, RegisterMachine(1), owner=owner) as host:
        await host.propose(G1, 1, b"attached")
        await host.close_group(G1)
        assert await code_of(host.propose(G1, 1)) is ErrorCode.NOT_LEADER
        await host.close_group(G1)
        await host.close_group(G2)
        assert owner.leadership[-1] == (G1, False)
        environment = environment.crash()
    with environment.snapshot() as snapshot:
        assert stored_groups(snapshot) == {G1}, "nothing is written of one that is not there"
    async with running_host(environment) as host:
        with pytest.raises(QueratorError) as caught:
            await host.create_group(G1, RegisterMachine(1))
        assert caught.value.code is ErrorCode.UNAVAILABLE
        await host.delete_group(G1)
    with environment.snapshot() as snapshot:
        assert stored_groups(snapshot) == set()


async def test_deleting_a_group_goes_on_after_a_crash(monkeypatch):
    monkeypatch.setattr("querator.raft.turn.deletions.DELETE_ROWS_TURN_MAX", 5)
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        for _ in range(10):
            await host.propose(G1, 1, b"attached")
    steps = 0
    while True:
        owner = EventRecorder()
        environment = environment.crash()
        environment.faults = CrashAt("synced", 1)
        async with running_host(environment, owner=owner) as host:
            with pytest.raises(QueratorError):
                await host.delete_group(G1)
        steps += 1
        environment = environment.crash()
        with environment.snapshot() as snapshot:
            rows = [key for table in ALL.values() for key, _ in table.rows(snapshot, 1)]
        if not rows:
            break
        async with running_host(environment) as host:
            with pytest.raises(QueratorError) as caught:
                await host.create_group(G1, RegisterMachine(1))
            assert caught.value.code is ErrorCode.UNAVAILABLE
    assert steps > 3
    async with running_host(environment) as host:
        await host.delete_group(G1)


async def test_what_is_due_is_proposed_when_its_time_comes():
    environment, owner, clock = MemoryEnvironment(), EventRecorder(), SimulatedClock()
    async with running_host(environment, RegisterMachine(1), owner=owner, clock=clock) as host:
        clock.advance(LEASE_GRACE_MS)
        due_ms = clock.wall_ms() + 3_600_000
        await host.propose(G1, f"at {due_ms}")
        clock.advance(3_599_999)
        assert (await host.propose(G1, 1))[0] == 1
        clock.advance(1)
        await owner.until(lambda: owner.effects[-1] == (G1, 1001))
        assert (await host.propose(G1, 1))[0] == 1002


async def test_nothing_due_is_proposed_in_the_first_moments_of_an_office():
    environment, owner, clock = MemoryEnvironment(), EventRecorder(), SimulatedClock()
    machine = RegisterMachine(1)
    async with running_host(environment, machine, owner=owner, clock=clock) as host:
        await host.propose(G1, f"at {clock.wall_ms()}")
        clock.advance(LEASE_GRACE_MS - 1)
        assert (await host.propose(G1, 1))[0] == 1
        clock.advance(1)
        await owner.until(lambda: owner.effects[-1] == (G1, 1001))


async def test_what_need_not_wait_is_proposed_in_the_first_moments_of_an_office():
    environment, owner, clock = MemoryEnvironment(), EventRecorder(), SimulatedClock()
    async with running_host(environment, RegisterMachine(1), owner=owner, clock=clock) as host:
        await host.propose(G1, f"promptly at {clock.wall_ms() + 300}")
        clock.advance(299)
        assert (await host.propose(G1, 1))[0] == 1
        clock.advance(1)
        await owner.until(lambda: owner.effects[-1] == (G1, 1001))


async def test_state_time_goes_on_over_restarts_and_steps_of_the_wall_clock():
    environment, clock = MemoryEnvironment(), SimulatedClock()
    stamps: list[int] = []
    for step_ms in (0, -3_600_000, 0):
        clock.step_wall(step_ms)
        machine = RegisterMachine(1)
        async with running_host(environment, machine, clock=clock) as host:
            await host.propose(G1, 1)
            clock.step_wall(-500_000)
            clock.advance(1_000)
            await host.propose(G1, 1)
        stamps += machine.stamps
        environment = environment.crash()
    assert stamps == sorted(stamps)
    passed = [later - former for former, later in zip(stamps[::2], stamps[1::2], strict=True)]
    assert passed == [900] * 3, "a tenth of the second is held back to come nearer to the wall"


async def test_nothing_is_ever_pickled(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("pickled")

    for home in (pickle, "pysyncobj.pickle.pickle", "pysyncobj.syncobj.pickle"):
        for name in ("dumps", "loads", "dump", "load"):
            if isinstance(home, str):
                monkeypatch.setattr(f"{home}.{name}", refuse)
            else:
                monkeypatch.setattr(home, name, refuse)
    environment, owner = MemoryEnvironment(), EventRecorder()
    for value in (1, 2, 3):
        async with running_host(environment, RegisterMachine(1), owner=owner) as host:
            assert (await host.propose(G1, 1, b"attached"))[0] == value
        environment = environment.crash()
    assert owner.quarantined == []


WORK = [G1, G2, G1, G1, G2]


async def work_until_crash(environment: MemoryEnvironment) -> list[GroupId]:
    """The groups whose add of 1 was acknowledged, in order."""
    acknowledged: list[GroupId] = []
    machines: list[Machine] = [RegisterMachine(1), RegisterMachine(2)]
    async with running_host(environment) as host:
        try:
            for group, machine in zip((G1, G2), machines, strict=True):
                await host.create_group(group, machine)
            for group in WORK:
                await host.propose(group, 1)
                acknowledged.append(group)
        except QueratorError:
            return acknowledged
    return acknowledged
