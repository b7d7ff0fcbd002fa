"""Properties of the in-memory back end only: crash to the last sync, and faults at named points."""

import pytest

from querator.storage.environment import Environment, EnvironmentFailed, EnvironmentFull
from querator.storage.memory_environment import MemoryEnvironment


def write(environment: Environment, key: bytes, value: bytes = b"v", *, sync: bool = True) -> None:
    txn = environment.begin()
    txn.put(key, value)
    txn.commit(sync=sync)


def keys(environment: Environment) -> list[bytes]:
    with environment.snapshot() as snapshot:
        return [key for key, _ in snapshot.scan(b"\0", b"\xff")]


def raise_at(point: str, error: Exception):
    def fault(reached: str) -> None:
        if reached == point:
            raise error

    return fault


class PowerLoss(Exception):
    pass


def test_it_says_that_it_is_not_durable():
    assert not MemoryEnvironment().durable


def test_a_crash_goes_back_to_the_last_synced_commit():
    environment = MemoryEnvironment()
    write(environment, b"a", b"synced")
    write(environment, b"b")
    write(environment, b"a", b"not synced", sync=False)
    txn = environment.begin()
    txn.delete(b"b")
    txn.put(b"c", b"v")
    txn.commit(sync=False)
    txn = environment.begin()
    txn.put(b"open", b"v")
    after = environment.crash()
    with after.snapshot() as snapshot:
        assert list(snapshot.scan(b"\0", b"\xff")) == [(b"a", b"synced"), (b"b", b"v")]
    same = MemoryEnvironment()
    write(same, b"a", b"synced")
    write(same, b"b")
    assert after.usage() == same.usage()


def test_a_sync_keeps_the_unsynced_commits_before_it():
    environment = MemoryEnvironment()
    write(environment, b"a", sync=False)
    write(environment, b"b", sync=True)
    write(environment, b"c", sync=False)
    assert keys(environment.crash()) == [b"a", b"b"]


def test_an_environment_is_dead_after_its_crash():
    environment = MemoryEnvironment()
    txn = environment.begin()
    txn.put(b"a", b"v")
    environment.crash()
    with pytest.raises(AssertionError):
        environment.begin()
    with pytest.raises(AssertionError):
        txn.commit(sync=True)


def test_a_crash_may_follow_a_crash():
    environment = MemoryEnvironment()
    write(environment, b"a")
    environment = environment.crash()
    write(environment, b"b", sync=False)
    environment = environment.crash().crash()
    assert keys(environment) == [b"a"]


def test_a_full_disk_leaves_the_environment_usable():
    environment = MemoryEnvironment()
    write(environment, b"a")
    environment.faults = raise_at("commit", EnvironmentFull("the disk is full"))
    with pytest.raises(EnvironmentFull):
        write(environment, b"b")
    environment.faults = None
    write(environment, b"c")
    assert keys(environment) == [b"a", b"c"]


def test_a_refused_put_ends_its_transaction():
    environment = MemoryEnvironment(faults=raise_at("put", EnvironmentFull("the disk is full")))
    txn = environment.begin()
    with pytest.raises(EnvironmentFull):
        txn.put(b"a", b"v")
    with pytest.raises(AssertionError):
        txn.commit(sync=True)
    environment.faults = None
    write(environment, b"b")
    assert keys(environment) == [b"b"]


@pytest.mark.parametrize("point", ["commit", "sync"])
def test_a_failed_commit_is_never_tried_again(point):
    environment = MemoryEnvironment()
    write(environment, b"a")
    environment.faults = raise_at(point, EnvironmentFailed("input/output error"))
    with pytest.raises(EnvironmentFailed):
        write(environment, b"b")
    environment.faults = None
    with pytest.raises(EnvironmentFailed, match="earlier commit failed"):
        environment.begin()
    assert keys(environment) == [b"a"]
    assert keys(environment.crash()) == [b"a"]


@pytest.mark.parametrize(("point", "kept"), [("sync", [b"a"]), ("synced", [b"a", b"b"])])
def test_a_crash_in_a_sync_keeps_the_version_before_or_the_one_in_flight(point, kept):
    environment = MemoryEnvironment()
    write(environment, b"a")
    environment.faults = raise_at(point, PowerLoss())
    with pytest.raises(PowerLoss):
        write(environment, b"b")
    assert keys(environment.crash()) == kept


def test_a_short_workload_can_be_crashed_at_each_of_its_commit_points():
    """Every third commit syncs. A crash at a commit leaves what the earlier syncs kept."""

    def work(environment: MemoryEnvironment) -> None:
        for n in range(10):
            write(environment, b"%02d" % n, sync=n % 3 == 2)

    whole = MemoryEnvironment()
    work(whole)
    assert whole.commit_points == 10
    for crash_at in range(1, whole.commit_points + 1):
        environment = MemoryEnvironment()

        def fault(point: str, environment=environment, crash_at=crash_at) -> None:
            if point == "commit" and environment.commit_points == crash_at:
                raise PowerLoss

        environment.faults = fault
        with pytest.raises(PowerLoss):
            work(environment)
        durable = (crash_at - 1) // 3 * 3
        assert keys(environment.crash()) == [b"%02d" % n for n in range(durable)]
