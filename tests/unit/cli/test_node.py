"""`querator node remove` and `replace` ask before they change anything."""

import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.v1 import cluster_service_pb2 as pb
from tests.unit.cli.scripted_cluster import ScriptedCluster, Terminal, scripted_cluster


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        cluster.answers = {
            "GetClusterStatus": pb.GetClusterStatusResponse(
                cluster_id="c",
                node="a",
                nodes=[
                    pb.ClusterNode(name="a", client_address=cluster.address, state="active"),
                    pb.ClusterNode(name="b", state="active"),
                ],
                groups=[
                    partition(0, "", "ab"),
                    partition(1, "mail", "ab"),
                    partition(2, "once", "b"),
                ],
            ),
            "RemoveNode": pb.RemoveNodeResponse(node=pb.ClusterNode(name="b"), partitions=2),
            "ReplaceNode": pb.ReplaceNodeResponse(node=pb.ClusterNode(name="b"), partitions=2),
        }
        yield cluster


def partition(group: int, queue: str, nodes: str) -> pb.ClusterGroup:
    replicas = [
        pb.ClusterReplica(id=number, node=name, voter=True)
        for number, name in enumerate(nodes, start=1)
    ]
    return pb.ClusterGroup(group=group, queue=queue, leads=True, leader="a", target=replicas)


def asked(
    command: str,
    answer: str,
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str = "b",
) -> int:
    """Runs the command on a terminal on which `answer` is typed. Returns the exit code."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Terminal(answer))
        arguments = ["node", command, name, "--address", cluster.address]
        return querator.main(arguments, prog_name="querator", standalone_mode=False) or 0


@pytest.mark.parametrize("command", ["remove", "replace"])
def test_a_refusal_changes_nothing(
    command: str,
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del cluster.answers["RemoveNode"], cluster.answers["ReplaceNode"]
    assert asked(command, "n\n", cluster, monkeypatch) == 1
    said = capsys.readouterr().err
    assert "Node b " in said
    assert said.endswith("Nothing was changed.\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a", "Node a is up and has replicas of 1 partition. First: querator node drain a"),
        ("c", "The cluster has no node c."),
    ],
)
def test_a_removal_that_would_be_refused_is_not_promised(
    name: str, words: str, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cluster.answers["RemoveNode"]
    with pytest.raises(click.ClickException, match=words):
        asked("remove", "y\n", cluster, monkeypatch, name=name)


def test_what_a_removal_moves_and_loses(
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked("remove", "y\n", cluster, monkeypatch)
    said = capsys.readouterr().err
    assert "Node b is down, and has replicas of 2 partitions." in said
    assert "No other node has a replica of once/0: their items are lost" in said
    assert "querator node readmit b" in said
    assert "Remove node b for ever? [y/N]" in said
    assert "Node b is removed when its replicas of 2 partitions have been rebuilt" in said


def test_what_a_replacement_rebuilds(
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked("replace", "y\n", cluster, monkeypatch)
    said = capsys.readouterr().err
    assert "Node b gets the replicas of 2 partitions again" in said
    assert "No other node has a replica of once/0" in said
    assert "Has node b lost its data, and is it to be rebuilt? [y/N]" in said
    assert "2 partitions will be rebuilt" in said


@pytest.mark.parametrize("command", ["remove", "replace"])
def test_without_a_terminal_the_command_needs_yes(command: str, cluster: ScriptedCluster) -> None:
    arguments = ["node", command, "b", "--address", cluster.address]
    refused = CliRunner().invoke(querator, arguments)
    assert refused.exit_code == 2
    assert "is not a terminal, so the command cannot ask for confirmation: give --yes." in (
        refused.output
    )
    del cluster.answers["GetClusterStatus"]
    assert CliRunner().invoke(querator, [*arguments, "--yes"]).exit_code == 0
