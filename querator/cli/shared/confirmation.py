"""Questions before a command that cannot be undone."""

import sys

import click

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
    """Asks, unless `yes`. Any answer but yes ends the command with exit code 1."""
    check_can_ask(yes=yes)
    if not yes:
        click.confirm(question, abort=True, err=True)
