"""The question before a change that cannot be undone."""

import sys

import click


def check_terminal() -> None:
    """Raises UsageError if there is no terminal at which `confirm` could ask."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            "Standard input is not a terminal, so the command cannot ask for confirmation: give "
            "--yes."
        )


def confirm(question: str) -> None:
    """Asks on standard error. Ends the command unless the answer is yes."""
    click.confirm(question, abort=True, err=True)
