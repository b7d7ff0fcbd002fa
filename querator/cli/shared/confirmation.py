"""Questions before a command that cannot be undone."""

import sys

import click

from querator.cli.shared.failures import ExitCode
from querator.cli.shared.output import note

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
"""Adds --yes, as the argument `yes`."""


def check_can_ask(*, yes: bool) -> None:
    """Raises UsageError if the command has to ask and there is no terminal."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(
            "Standard input is not a terminal, so the command cannot ask for confirmation: "
            "give --yes."
        )


def confirm(question: str, *, yes: bool) -> None:
    """Asks, unless `yes`. Without a yes it notes that nothing was changed, and ends with exit code
    1."""
    check_can_ask(yes=yes)
    if not yes:
        if not click.confirm(question, err=True):
            note("Nothing was changed.")
            raise click.exceptions.Exit(ExitCode.WRONG)
