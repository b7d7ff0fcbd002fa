"""The back-end interface: every back end keeps these promises."""

import threading
from collections.abc import Mapping
from contextlib import suppress

import pytest

from querator.storage.environment import Environment, EnvironmentFull, ReadTransaction

START, STOP = b"\0", b"\xff"


class Undo(Exception):
    pass


def write(
    environment: Environment, rows: Mapping[bytes, bytes | None], *, sync: bool = True
) -> None:
    txn = environment.begin()
    for key, value in rows.items():
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)
    txn.commit(sync=True)


def keys(txn: ReadTransaction, start: bytes = START, stop: bytes = STOP, **options: bool):
    return [key for key, _ in txn.scan(start, stop, **options)]


def contents(environment: Environment) -> dict[bytes, bytes]:
    with environment.snapshot() as snapshot:
        return dict(snapshot.scan(START, STOP))


def test_an_empty_environment_has_no_rows(environment):
    with environment.snapshot() as snapshot:
        assert snapshot.get(b"a") is None
        assert keys(snapshot) == []
        assert keys(snapshot, reverse=True) == []


def test_a_transaction_reads_its_own_changes(environment):
    write(environment, {b"a": b"1", b"b": b"2", b"c": b"3"})
    txn = environment.begin()
    txn.put(b"b", b"changed")
    txn.put(b"bb", b"added")
    assert txn.delete(b"c")
    assert txn.get(b"a") == b"1"
    assert txn.get(b"b") == b"changed"
    assert txn.get(b"c") is None
    assert list(txn.scan(START, STOP)) == [(b"a", b"1"), (b"b", b"changed"), (b"bb", b"added")]
    txn.abort()
    assert contents(environment) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_delete_says_whether_the_key_was_there(environment):
    write(environment, {b"a": b"1"})
    txn = environment.begin()
    txn.put(b"b", b"2")
    assert txn.delete(b"a")
    assert not txn.delete(b"a")
    assert txn.delete(b"b")
    assert not txn.delete(b"b")
    assert not txn.delete(b"never")
    txn.put(b"a", b"again")
    txn.commit(sync=True)
    assert contents(environment) == {b"a": b"again"}


@pytest.mark.parametrize("pending", [False, True], ids=["committed", "pending"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("start", "stop", "found"),
    [
        (b"b", b"d", [b"b", b"c"]),
        (b"a\0", b"c\0", [b"b", b"c"]),
        (b"", b"b", [b"a"]),
        (b"d", b"\xff\xff", [b"d", b"\xfe"]),
        (b"b", b"b", []),
        (b"d", b"b", []),
        (b"e", b"f", []),
    ],
)
def test_scan_takes_the_start_and_leaves_the_stop(
    environment, start, stop, found, reverse, pending
):
    txn = environment.begin()
    for key in (b"c", b"\xfe", b"a", b"d", b"b"):
        txn.put(key, key * 2)
    if not pending:
        txn.commit(sync=True)
        txn = environment.begin()
    expected = [(key, key * 2) for key in (reversed(found) if reverse else found)]
    assert list(txn.scan(start, stop, reverse=reverse)) == expected
    txn.abort()


def test_a_scan_merges_changes_with_the_rows_beneath(environment):
    write(environment, {bytes([65 + n]): b"old" for n in range(0, 20, 2)})
    txn = environment.begin()
    for n in range(1, 20, 3):
        txn.put(bytes([65 + n]), b"new")
    txn.delete(bytes([65 + 6]))
    evens = set(range(0, 20, 2)) - {6}
    expected = [bytes([65 + n]) for n in sorted(evens | set(range(1, 20, 3)))]
    assert keys(txn) == expected
    assert keys(txn, reverse=True) == expected[::-1]
    txn.abort()


def test_a_scan_that_goes_on_after_a_change_is_a_defect(environment):
    write(environment, {b"a": b"1", b"b": b"2"})
    txn = environment.begin()
    rows = txn.scan(START, STOP)
    next(rows)
    txn.delete(b"b")
    with pytest.raises(AssertionError, match="changed during a scan"):
        next(rows)
    txn.abort()


def test_values_of_every_size_come_back_whole(environment):
    sizes = (0, 1, 2_000, 2_040, 4_080, 4_096, 65_536, 1 << 20)
    rows = {b"size%d" % size: bytes(range(256)) * (size // 256 + 1) for size in sizes}
    rows = {key: value[: int(key[4:])] for key, value in rows.items()}
    write(environment, rows)
    assert contents(environment) == rows


def test_keys_of_the_largest_size_are_kept_and_others_are_a_defect(environment):
    txn = environment.begin()
    txn.put(b"k" * 64, b"v")
    for key in (b"", b"k" * 65):
        with pytest.raises(AssertionError):
            txn.put(key, b"v")
    txn.commit(sync=True)
    assert contents(environment) == {b"k" * 64: b"v"}


def test_a_child_that_ends_is_kept(environment):
    txn = environment.begin()
    txn.put(b"a", b"parent")
    with txn.child() as child:
        child.put(b"a", b"child")
        child.put(b"b", b"child")
        assert child.get(b"a") == b"child"
    assert txn.get(b"a") == b"child"
    txn.commit(sync=True)
    assert contents(environment) == {b"a": b"child", b"b": b"child"}


def test_a_child_that_raises_is_undone(environment):
    write(environment, {b"kept": b"0", b"deleted": b"0"})
    txn = environment.begin()
    txn.put(b"a", b"parent")
    txn.delete(b"deleted")
    with suppress(Undo), txn.child() as child:
        child.put(b"a", b"child")
        child.put(b"b", b"child")
        child.put(b"deleted", b"child")
        child.delete(b"kept")
        assert keys(child) == [b"a", b"b", b"deleted"]
        raise Undo
    assert list(txn.scan(START, STOP)) == [(b"a", b"parent"), (b"kept", b"0")]
    txn.commit(sync=True)
    assert contents(environment) == {b"a": b"parent", b"kept": b"0"}


def test_an_outer_child_undoes_what_an_inner_one_kept(environment):
    txn = environment.begin()
    txn.put(b"a", b"0")
    with suppress(Undo), txn.child() as outer:
        outer.put(b"a", b"1")
        with outer.child() as inner:
            inner.put(b"a", b"2")
            inner.put(b"b", b"2")
        with suppress(Undo), outer.child() as inner:
            inner.delete(b"a")
            inner.delete(b"b")
            raise Undo
        assert list(outer.scan(START, STOP)) == [(b"a", b"2"), (b"b", b"2")]
        raise Undo
    txn.commit(sync=True)
    assert contents(environment) == {b"a": b"0"}


def test_a_childs_error_reaches_the_parent(environment):
    txn = environment.begin()
    with pytest.raises(Undo), txn.child():
        raise Undo
    txn.abort()


def test_a_snapshot_keeps_to_its_state(environment):
    before = {b"row%03d" % n: b"old" for n in range(400)}
    write(environment, before)
    with environment.snapshot() as old:
        rows = old.scan(START, STOP)
        first = [next(rows) for _ in range(3)]
        txn = environment.begin()
        for n in range(0, 400, 2):
            txn.delete(b"row%03d" % n)
        txn.put(b"row001", b"new")
        txn.put(b"row0005", b"new")
        assert dict(old.scan(START, STOP)) == before
        txn.commit(sync=True)
        write(environment, {b"row001": b"newer", b"row003": None})
        assert first + list(rows) == sorted(before.items())
        assert list(old.scan(START, STOP, reverse=True)) == sorted(before.items(), reverse=True)
        assert old.get(b"row001") == b"old"
        assert old.get(b"row0005") is None
        with environment.snapshot() as young:
            assert young.get(b"row001") == b"newer"
            assert young.get(b"row000") is None
            assert len(keys(young)) == 200


def test_snapshots_in_other_threads_see_whole_commits_only(environment):
    """A writer keeps two rows equal. Every reader must find them equal in every snapshot."""
    write(environment, {b"a": b"0", b"z": b"0"})
    stop = threading.Event()
    torn: list[tuple[bytes | None, dict[bytes, bytes]]] = []
    reads = [0, 0]

    def read(reader: int) -> None:
        while not stop.is_set():
            with environment.snapshot() as snapshot:
                rows, again = dict(snapshot.scan(START, STOP)), snapshot.get(b"a")
            reads[reader] += 1
            if rows[b"a"] != rows[b"z"] or again != rows[b"a"]:
                torn.append((again, rows))

    readers = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    for reader in readers:
        reader.start()
    number = 0
    while number < 100 or min(reads) < 20:
        number += 1
        write(environment, {b"a": b"%d" % number, b"z": b"%d" % number})
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_there_is_one_write_transaction(environment):
    txn = environment.begin()
    with pytest.raises(AssertionError):
        environment.begin()
    txn.abort()
    write(environment, {b"a": b"1"})
    assert contents(environment) == {b"a": b"1"}


def test_an_ended_transaction_takes_nothing(environment):
    txn = environment.begin()
    txn.put(b"a", b"1")
    txn.commit(sync=True)
    txn.abort()
    with pytest.raises(AssertionError):
        txn.put(b"b", b"2")
    assert contents(environment) == {b"a": b"1"}


def test_a_synced_commit_is_there_after_reopening(disk):
    environment = disk.open()
    write(environment, {b"a": b"1", b"b": b"2"})
    txn = environment.begin()
    txn.delete(b"a")
    assert contents(disk.open()) == {b"a": b"1", b"b": b"2"}


def test_a_full_quota_refuses_and_loses_nothing(disk):
    quota_bytes = 2 << 20
    environment = disk.open(quota_bytes=quota_bytes)
    kept: dict[bytes, bytes] = {}
    while environment.usage().free_bytes > 40_000:
        row = {b"row%d" % len(kept): bytes(10_000)}
        write(environment, row)
        kept |= row
    with pytest.raises(EnvironmentFull, match="quota"):
        write(environment, {b"small": b"1", b"row0": None, b"large": bytes(40_000)})
    assert contents(environment) == kept
    usage = environment.usage()
    assert usage.used_bytes <= usage.quota_bytes
    assert usage.used_bytes >= sum(map(len, kept.values()))
    assert contents(disk.open(quota_bytes=quota_bytes)) == kept


def test_a_full_environment_can_be_emptied_and_filled_again(disk):
    environment = disk.open(quota_bytes=2 << 20)
    for _ in range(3):
        names: list[bytes] = []
        while environment.usage().open_bytes > 20_000:
            names.append(b"row%d" % len(names))
            write(environment, {names[-1]: bytes(10_000)})
        assert len(names) > 50
        assert environment.usage().free_bytes >= environment.usage().reserve_bytes - 20_000
        for name in names:
            write(environment, {name: None, b"count": b"%d" % len(names)})
        assert contents(environment) == {b"count": b"%d" % len(names)}


def test_usage_follows_what_is_kept(environment):
    empty = environment.usage()
    write(environment, {b"a": bytes(1 << 20)})
    full = environment.usage()
    assert full.used_bytes - empty.used_bytes >= 1 << 20
    assert full.free_bytes <= empty.free_bytes - (1 << 20) + (1 << 16)
    write(environment, {b"a": None})
    assert environment.usage().used_bytes < empty.used_bytes + (1 << 16)


def test_closing_twice_is_harmless(disk):
    environment = disk.open()
    write(environment, {b"a": b"1"})
    environment.close()
    environment.close()
    assert contents(disk.open()) == {b"a": b"1"}
