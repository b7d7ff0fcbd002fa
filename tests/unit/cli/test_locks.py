"""`querator lock`, against a node in memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from querator import SyncClient, SyncNode
from querator.cli import querator


@pytest.fixture(scope="module")
def node() -> Iterator[SyncNode]:
    with SyncNode(memory=True) as node:
        yield node


def invoke(node: SyncNode, *arguments: str) -> Result:
    return CliRunner().invoke(querator, [*arguments[:2], "--address", node.address, *arguments[2:]])


def test_a_command_runs_under_the_lock(node: SyncNode, tmp_path: Path):
    said = tmp_path / "said"
    script = f"echo $QUERATOR_LOCK_TOKEN >> {said}; exit 3"
    for _ in range(2):
        ended = invoke(node, "lock", "run", "a", "--holder", "me", "--", "/bin/sh", "-c", script)
        assert ended.exit_code == 3, ended.output
    first, second = map(int, said.read_text().split())
    assert first < second
    ended = invoke(node, "lock", "run", "a", "--", "/bin/sh", "-c", "kill -9 $$")
    assert ended.exit_code == 128 + 9


def test_holders_are_shown(node: SyncNode):
    ended = invoke(node, "lock", "show", "b")
    assert (ended.exit_code, ended.output) == (0, "b is free.\n")
    with SyncClient(node.address) as client:
        with (
            client.lock("b", holder="me") as lock,
            client.semaphore("b", 3, holder="you"),
            client.election("b", "them"),
        ):
            shown = invoke(node, "lock", "show", "b", "--output", "json")
            found = msgspec.json.decode(shown.output)
            assert (found["holder"], found["token"]) == ("me", lock.token)
            assert found["since"] < found["deadline"]
            table = invoke(node, "lock", "show", "b").output
            assert "holder" in table
            assert str(lock.token) in table
            assert "you" in invoke(node, "lock", "show", "b", "--semaphore").output
            assert "them" in invoke(node, "lock", "show", "b", "--election").output
            ended = invoke(node, "lock", "run", "b", "--wait", "0", "--", "true")
            assert (ended.exit_code, ended.output) == (75, "b was not free in time.\n")
            ended = invoke(node, "lock", "run", "b", "--permits", "4", "--wait", "0", "--", "true")
            assert ended.exit_code == 3
            assert "has 3 permits, and not 4" in ended.output
            ended = invoke(node, "lock", "run", "b", "--permits", "3", "--wait", "0", "--", "true")
            assert ended.exit_code == 0


def test_commands_that_cannot_be_run(node: SyncNode, tmp_path: Path):
    ended = invoke(node, "lock", "run", "c", "--", str(tmp_path / "none"))
    assert ended.exit_code == 127
    assert "No such file" in ended.output
    (tmp_path / "plain").write_text("")
    assert invoke(node, "lock", "run", "c", "--", str(tmp_path / "plain")).exit_code == 126
    assert invoke(node, "lock", "show", "c").output == "c is free.\n"


def test_arguments_that_are_refused(node: SyncNode):
    for arguments, words in (
        (("run", "a/b", "--", "true"), "name"),
        (("run", "a", "--lease-timeout", "1s", "--", "true"), "2s"),
        (("run", "a", "--permits", "1001", "--", "true"), "1000"),
        (("run", "a"), "COMMAND"),
        (("show", "a/b"), "name"),
        (("show", "a", "--semaphore", "--election"), "--semaphore or --election"),
    ):
        ended = invoke(node, "lock", *arguments)
        assert ended.exit_code == 2, ended.output
        assert words in ended.output


def begun(node: SyncNode, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "querator", "lock", "run", *arguments],
        env={"QUERATOR_ADDRESS": node.address, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_ends_when_the_lock_is_lost(node: SyncNode):
    script = "trap '' TERM; echo begun; while true; do sleep 0.1; done"
    options = ("--lease-timeout", "2s", "--kill-after", "100ms")
    with begun(node, "d", *options, "--", "/bin/sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        with SyncClient(node.address) as client:
            client.release_leases("lock.d", *[one.lease_id for one in client.list_leases("lock.d")])
        assert process.wait(timeout=60) == 76
        assert "Lock d is lost" in process.stdout.read()


def test_signals_reach_the_command(node: SyncNode):
    script = "trap 'echo ended; exit 5' TERM; echo begun; while true; do sleep 0.05; done"
    with begun(node, "e", "--", "/bin/sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.wait(timeout=60) == 5
        assert process.stdout.read() == "ended\n"
    assert invoke(node, "lock", "show", "e").output == "e is free.\n"
