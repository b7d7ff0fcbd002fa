"""The page `docs/cli.md`, made from the commands themselves.

    python -m querator.cli.reference > docs/cli.md

A test checks that the page is current.
"""

import inspect
import signal
import textwrap
from collections.abc import Iterator

import click

from querator.cli import querator
from querator.cli.shared.failures import ExitCode

_MEANINGS = {
    ExitCode.DONE: "done; for `serve`: stopped by a signal, every accepted request was answered",
    ExitCode.WRONG: "done, and a problem was found: damage, a lost item, refused lines; "
    "for `serve`: it could not start",
    ExitCode.USAGE: "the command line or a setting is wrong",
    ExitCode.REFUSED: "the server refused the request; the message names the error code",
    ExitCode.UNAVAILABLE: "no server answers, or it cannot accept the request at present; "
    "nothing was done",
    ExitCode.UNKNOWN: "the outcome is unknown: the request may have been executed, or may yet be",
    6: "`serve` only: stopped by a failure, of the disk or of Querator itself; what was "
    "acknowledged is on disk",
    ExitCode.INTERRUPTED: "ended by Ctrl-C (`serve`, `consume` and `stats --watch` end with 0)",
    128 + signal.SIGPIPE: "standard output was closed, as by `head`",
    ExitCode.TERMINATED: "ended by SIGTERM (`serve` and `consume` end with 0)",
}
_SHARED = ("address", "namespace", "request_timeout", "output")

_HEAD = """\
# The command line

Generated from the commands by `python -m querator.cli.reference > docs/cli.md`; a test checks it.

Standard output has results and nothing else; progress, notes and errors go to standard error. With
`--output json` a result is one JSON document, and a stream is one document on each line. Field
names carry their units (`lease_timeout_ms`), instants are RFC 3339 in UTC, and both are stable.
Durations are written `250ms`, `30s`, `5m`, `1h30m`, `7d`.

Tables fit the terminal. A narrow table leaves out columns that are empty or 0 in all rows, cuts
payloads and error texts, and at last shows each row as a list; in a pipe nothing is cut. With
`NO_COLOR` in the environment there is no colour and no bold text. Long lists are written while they
are read.

`querator completion bash` (or `zsh`, `fish`) writes a script that completes commands, options and
their values: see [`querator completion`](#querator-completion). A mistyped command or option gets a
suggestion. `querator --version` names the versions of Querator and of the libraries under it.

## Exit codes

| code | meaning |
|---|---|
"""

_SHARED_HEAD = """
## Options that most commands share

"""
_LINE_CHARS = 100


def reference() -> str:
    """The whole page."""
    context = click.Context(querator, info_name="querator", **querator.context_settings)
    shared = next(
        command.params for path, command in _leaves(querator, context) if path == "queue create"
    )
    parts = [_HEAD, *(f"| {int(code)} | {text} |\n" for code, text in _MEANINGS.items())]
    parts.append(_SHARED_HEAD)
    parts += [_item(option) for option in shared if option.name in _SHARED]
    for path, command in _leaves(querator, context):
        parts += _section(path, command, context)
    return "".join(parts)


def _leaves(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for path, leaf in _leaves(command, context):
                yield f"{name} {path}", leaf
        else:
            yield name, command


def _section(path: str, command: click.Command, root: click.Context) -> Iterator[str]:
    # The command keeps the help option that it makes for its first context.
    usage = " ".join(command.collect_usage_pieces(click.Context(command, parent=root)))
    yield f"\n## `querator {path}`\n\n```\nquerator {path} {usage}\n```\n\n"
    yield _prose(inspect.cleandoc(command.help or ""))
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in _SHARED
    ]
    if options:
        yield "\n"
        yield from (_item(option) for option in options)


def _prose(text: str) -> str:
    """Paragraphs of a help text. Paragraphs that click must not fold are examples, and become
    code.
    """
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith("\b\n"):
            paragraphs.append(paragraph)
            continue
        head, *lines = paragraph.removeprefix("\b\n").splitlines()
        code = "\n".join(line.removeprefix("  ") for line in lines)
        paragraphs.append(f"{head}\n\n```console\n{code}\n```")
    return "\n\n".join(paragraphs) + "\n"


def _item(option: click.Parameter) -> str:
    """The option as an item of a list."""
    assert isinstance(option, click.Option)
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    words = option.help or ""
    if isinstance(option.type, click.Choice):
        words += f" One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    if option.required:
        words += " Required."
    elif option.show_default and option.default is not None:
        words += f" Default: `{option.default}`."
    if option.show_envvar and isinstance(option.envvar, str):
        words += f" Environment: `{option.envvar}`."
    return (
        textwrap.fill(
            f"- {names}: {words.strip()}",
            _LINE_CHARS,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


if __name__ == "__main__":
    click.echo(reference(), nl=False)
