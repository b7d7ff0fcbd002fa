"""The page `docs/cli.md`, made from the commands themselves.

    python -m querator.cli.reference > docs/cli.md

A test checks that the page is current.
"""

import inspect
import signal
import textwrap
from collections import Counter
from collections.abc import Iterator, Set

import click

from querator.cli import querator
from querator.cli.shared.failures import ExitCode
from querator.cli.shared.parameters import WholeNumber

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
    7: "`serve` only: the node was removed from its cluster; no start on its data will succeed",
    ExitCode.INTERRUPTED: "ended by Ctrl-C (`serve`, `consume`, `worker` and `stats --watch` end "
    "with 0)",
    128 + signal.SIGPIPE: "standard output was closed, as by `head`",
    ExitCode.TERMINATED: "ended by SIGTERM (`serve`, `consume` and `worker` end with 0)",
}
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

## Commands that ask

A command that removes something for ever, or does what cannot be undone, shows what it will do and
asks for confirmation. This is one rule for all of them:

- `--yes` answers the question. The command does not ask.
- If standard input is not a terminal, `--yes` is required. Without it the command ends with exit
  code 2, before it sends a request.
- Any other answer than yes changes nothing. The exit code is 1.
- `--dry-run`, where a command has it, only shows what would be done. It never asks.
- Items and batches that are named one by one are not asked about: `cancel`, `complete`,
  `txn abort`, and `dead drop` and `schedule` with item ids.

{asking}

## Exit codes

| code | meaning |
|---|---|
"""

_SHARED_BY_MIN = 3
"""An option of this many commands is explained once, in a section of its own."""
_SECTIONS = (("queue create", "most commands"), ("spark copy", "the commands of querator spark"))
"""Commands with all the options that several commands share, and whose options they are."""
_LINE_CHARS = 100


def reference() -> str:
    """The whole page."""
    context = _context()
    commands = leaves()
    times = Counter(_item(option) for command in commands.values() for option in _options(command))
    above: set[str] = set()
    asking = ", ".join(f"`{path}`" for path, command in commands.items() if asks(command))
    head = _HEAD.replace("{asking}\n", _filled(f"The commands that ask: {asking}."))
    parts = [head, *(f"| {int(code)} | {text} |\n" for code, text in _MEANINGS.items())]
    for path, whose in _SECTIONS:
        items = [_item(option) for option in _options(commands[path])]
        shared = [item for item in items if times[item] >= _SHARED_BY_MIN and item not in above]
        parts += [f"\n## Options that {whose} share\n\n", *shared]
        above.update(shared)
    for path, command in commands.items():
        parts += _section(path, command, context, above)
    return "".join(parts)


def leaves() -> dict[str, click.Command]:
    """All commands that are no groups, by what is typed after `querator`."""
    return dict(_leaves(querator, _context()))


def _context() -> click.Context:
    return click.Context(querator, info_name="querator", **querator.context_settings)


def asks(command: click.Command) -> bool:
    """Whether the command asks for confirmation."""
    return any(option.name == "yes" for option in _options(command))


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


def _leaves(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for path, leaf in _leaves(command, context):
                yield f"{name} {path}", leaf
        else:
            yield name, command


def _section(
    path: str, command: click.Command, root: click.Context, above: Set[str]
) -> Iterator[str]:
    # The command keeps the help option that it makes for its first context.
    usage = " ".join(command.collect_usage_pieces(click.Context(command, parent=root)))
    yield f"\n## `querator {path}`\n\n```\nquerator {path} {usage}\n```\n\n"
    yield _prose(inspect.cleandoc(command.help or ""))
    items = {option: _item(option) for option in _options(command)}
    if own := [item for item in items.values() if item not in above]:
        yield "\n"
        yield from own
    if shared := [_name(option) for option, item in items.items() if item in above]:
        yield "\n" + _filled(f"Shared options: {', '.join(shared)}.")


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


def _name(option: click.Option) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _item(option: click.Option) -> str:
    """The option as an item of a list: its name, the kind of its value, its help, its default."""
    value = ""
    words = option.help or ""
    if isinstance(option.type, click.Choice):
        words += f" One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    elif not option.is_flag:
        value = f" {option.metavar or option.type.name.upper()}"
    if isinstance(option.type, WholeNumber):
        words += f" {option.type.range_words.capitalize()}."
    if option.required:
        words += " Required."
    elif option.show_default and option.default is not None:
        words += f" Default: {_default(option)}."
    if option.show_envvar and isinstance(option.envvar, str):
        words += f" Environment: `{option.envvar}`."
    name = _name(option)
    return _filled(f"- {name[:-1]}{value}`: {words.strip()}", indent="  ")


def _default(option: click.Option) -> str:
    if option.is_flag:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    values = option.default if isinstance(option.default, tuple) else (option.default,)
    return ", ".join(f"`{value}`" for value in values)


def _filled(text: str, *, indent: str = "") -> str:
    lines = textwrap.fill(
        text,
        _LINE_CHARS,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{lines}\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
