"""Reports and refusals of `querator verify`."""

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.cli.verify import Kind, Problem, _Scan, actions_for
from querator.model.ids import PLACEMENT_GROUP
from querator.model.queues import QueueSettings
from querator.placement.map.commands import CreateQueue
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import PLACEMENT
from tests.unit.partition.partition_log import PartitionLog
from tests.unit.placement.conftest import Group
from tests.unit.service.storage_damage import damage


def test_a_queue_with_a_group_that_was_never_given_out():
    group = Group()
    group.propose(CreateQueue("n", "q", QueueSettings(partitions=2)))
    with group.environment.snapshot() as snapshot:
        assert not [one for one in _Scan(snapshot).problems if one.place == "placement"]
    txn = group.environment.begin()
    head = msgspec.msgpack.decode(PLACEMENT.get(txn, PLACEMENT_GROUP) or b"")
    head[2] -= 1
    PLACEMENT.put(txn, PLACEMENT_GROUP, value=msgspec.msgpack.encode(head))
    txn.commit(sync=True)
    with group.environment.snapshot() as snapshot:
        problems = [one for one in _Scan(snapshot).problems if one.place == "placement"]
    assert [one.sentence for one in problems] == ["q has group 2, which was never assigned"]
    [(kind, action)] = actions_for(problems, "node-1").items()
    assert kind is Kind.PLACEMENT
    assert "querator node replace node-1" in action


def test_a_damaged_payload_is_one_problem_and_no_reason_to_rebuild_the_node():
    environment = MemoryEnvironment()
    log = PartitionLog(environment, group=1)
    log.configure()
    log.produce(3)
    damage(environment, 1)
    with environment.snapshot() as snapshot:
        scan = _Scan(snapshot)
        scan.check(1)
    found = [one for one in scan.problems if one.kind is not Kind.LEFTOVER]
    assert [one.kind for one in found if "checksum" in one.sentence] == [Kind.PAYLOAD]
    assert not [one for one in found if one.kind is Kind.STATE]


def test_every_kind_of_problem_has_an_action():
    problems = [Problem("here", "it is wrong", kind) for kind in (*Kind, Kind.LOG)]
    actions = actions_for(problems, "")
    assert list(actions) == list(Kind)
    assert all("NAME" in actions[kind] for kind in (Kind.FILE, Kind.LOG, Kind.STATE))


def test_a_directory_on_a_read_only_file_system_has_to_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    open_lmdb(tmp_path).close()
    really_open = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return really_open(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        outcome = CliRunner().invoke(querator, ["verify", "--data-dir", str(tmp_path)])
    assert outcome.exit_code == 1
    assert "is on a read-only file system" in outcome.stderr
    assert "Mount it writable, or verify a copy" in outcome.stderr
