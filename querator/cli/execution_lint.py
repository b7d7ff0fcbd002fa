"""`querator execution lint`: what of durable functions would not be the same in a replay."""

import click

from querator.cli.durable_worker import loaded_functions
from querator.cli.shared.connection import output_option
from querator.cli.shared.failures import ExitCode
from querator.cli.shared.output import count, write_json_lines
from querator.durable.lint import lint as findings_of


@click.command(short_help="Find what would not be the same in a replay.")
@click.argument("functions", metavar="MODULE[:NAME]")
@output_option
def lint(functions: str, as_json: bool) -> None:
    """Read the source of the durable functions of MODULE, or of those that NAME in it has, and show
    the lines that would not be the same in a replay. Nothing is run, and no server is asked.

    Found are calls that read the clock, draw by chance, use files, the network or threads; reads of
    os.environ; the order of sets; and as_completed of coroutines. Durable functions that they call
    are read, and plain functions of the same package; steps may do all of this.

    A line with the comment `# querator: allow REASON` is left out. The exit code is 1 if something
    is found.

    \b
    Examples:
      querator execution lint shop
      querator execution lint shop.checkout:FUNCTIONS --output json
    """
    loaded = loaded_functions(functions)
    findings = findings_of(loaded)
    if as_json:
        if findings:
            write_json_lines(findings)
    else:
        for finding in findings:
            click.echo(finding)
        read = count(len(loaded), "durable function")
        click.echo(f"{read} read, {count(len(findings), 'finding')}.")
    if findings:
        raise click.exceptions.Exit(ExitCode.WRONG)
