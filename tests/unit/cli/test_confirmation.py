"""One rule for all commands that cannot be undone: they ask, and need --yes without a terminal."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.cli.reference import asks, leaves
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

ASKING = {
    "queue purge": ("mail",),
    "queue delete": ("mail",),
    "queue give-up": ("mail",),
    "dead drop": ("mail", "--all"),
    "schedule cancel": ("mail", "--all"),
    "schedule move": ("mail", "--all", "--to", "2030-01-31T12:00:00Z"),
    "schedule run": ("mail", "--all"),
    "recurring delete": ("mail", "digest"),
    "key skip": ("mail", "ann"),
    "execution terminate": ("shop", "order-17"),
    "execution rewind": ("shop", "order-17", "--to", "3"),
    "leases release": ("mail", "1.0.2a"),
    "reader release": ("mail", "lake"),
    "cluster repair-time": ("mail",),
    "node replace": ("node-2",),
    "node remove": ("node-2",),
}
"""The commands that cannot be undone, with arguments for which they ask."""
BY_NAME = {"cancel": "items", "txn abort": "a batch", "node restore-from-copy": "a copy, kept"}
"""Commands that cannot be undone and do not ask, because they name what they are for."""
FOR_EVER = ("for ever", "cannot be restored", "asks for confirmation", "Drop ", "are lost")
"""Words in the help of commands that cannot be undone."""


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        yield cluster


def test_the_commands_that_ask_are_those_that_cannot_be_undone() -> None:
    assert {path for path, command in leaves().items() if asks(command)} == set(ASKING)


def test_no_command_removes_something_for_ever_without_the_rule() -> None:
    removing = {
        path
        for path, command in leaves().items()
        if any(words in (command.help or "") for words in FOR_EVER)
    }
    assert removing <= {*ASKING, *BY_NAME}


@pytest.mark.parametrize("path", ASKING)
def test_without_a_terminal_nothing_is_sent(cluster: ScriptedCluster, path: str) -> None:
    """A request would be refused with another exit code: the cluster answers none."""
    command = [*path.split(), *ASKING[path], "--address", cluster.address]
    outcome = CliRunner().invoke(querator, command)
    assert outcome.exit_code == 2, outcome.output
    assert "Standard input is not a terminal, so the command cannot ask" in outcome.output
    assert "give --yes" in outcome.output


@pytest.mark.parametrize("path", ASKING)
def test_yes_and_dry_run_have_one_meaning(path: str) -> None:
    options = {one.name: one for one in leaves()[path].params if isinstance(one, click.Option)}
    assert options["yes"].help == "Do not ask for confirmation."
    if "dry_run" in options:
        assert (options["dry_run"].help or "").startswith("Only show")
