"""How results of items are shown: what consumers have returned, and why others have none."""

from collections.abc import Iterable

import click

from querator.cli.shared.failures import ExitCode
from querator.cli.shared.output import note, write_json
from querator.cli.shared.views import result_view
from querator.client.errors import NoResult, ResultTimeout
from querator.client.replies import ItemResult


def write_results(results: Iterable[ItemResult], *, as_json: bool) -> None:
    """Writes a line for each result, and why an item has none. Then exits with 1, if one has
    none.
    """
    wrong = False
    for result in results:
        if as_json:
            write_json(result_view(result))
            wrong = wrong or result.outcome != "completed"
            continue
        try:
            click.echo(result.value())
        except (NoResult, ResultTimeout) as error:
            text = str(error)
            note(f"{text[:1].upper()}{text[1:]}.")
            wrong = True
    if wrong:
        raise click.exceptions.Exit(ExitCode.WRONG)
