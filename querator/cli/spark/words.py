"""Messages of the data source and of pipelines in the words of the running command: its options
instead of the data source's options and the fields of settings.
"""

import re
from typing import Final

import click

from querator.cli.shared.parameters import is_given, option_name

_NAMES: Final = {
    "checkpointLocation": "checkpoint",
    "dedupe_key": "dedupe_key",
    "endpoint": "address",
    "every_seconds": "every",
    "format": "kind_of_file",
    "maxItemsPerTrigger": "max_items",
    "minPartitions": "min_tasks",
    "namespace": "namespace",
    "queue": "queue",
    "readerId": "reader_id",
    "reasons": "reason",
    "retryTimeout": "request_timeout",
    "tlsCaFile": "tls_ca",
    "tlsCertFile": "tls_cert",
    "tlsKeyFile": "tls_key",
}
"""Names of the data source and of settings → parameters of the commands."""
_ALWAYS: Final = "|".join(name for name in _NAMES if not name.islower())
"""Names that are no words of English: they are replaced wherever they are."""
_PHRASES: Final = (
    # A phrase with a value is one option of the command.
    (re.compile(r'\.option\("onCheckpointMismatch", "adopt"\)'), "adopt"),
    (re.compile(r"\bonCheckpointMismatch=adopt\b"), "adopt"),
    (
        re.compile(r'\.option\("failOnDataLoss", "false"\)(?:; for a pipeline --skip-released)?'),
        "skip_released",
    ),
    (re.compile(r"\bfailOnDataLoss=false\b"), "skip_released"),
)
_LEFT_OUT: Final = re.compile(r'; \.option\("oversizePolicy", "skip"\) leaves .* their number')
_WHERE: Final = re.compile(r'\.where\("([^"]+)"\)')
_OPTIONS: Final = re.compile(r"\b(?:the )?options ((?:\w+, )*\w+ and \w+)")
_OPTION: Final = re.compile(rf"\boption (\w+)\b|\b({_ALWAYS})\b")
_FIRST: Final = re.compile(r"^(\w+)\b")
_VALUE: Final = re.compile(r"^(\w+)(?= is )")
_BEFORE: Final = re.compile(r"(?<=\bbefore )(\w+)$")
_SETTING: Final = re.compile(r"\b(?:the )?setting (spark\.)")
_READERS: Final = re.compile(r"\boption (mode|multiLine)=")
_EXPRESSION: Final = re.compile(r"(?:^|(?<=; ))column (\w+) = ")
_COLUMN: Final = re.compile(r"(?:^|(?<=; ))column (\w+) (?=is |has )")


def as_typed(words: str) -> str:
    """The message with the names that the user has typed, or could type."""
    context = click.get_current_context(silent=True)
    if context is None:
        return words
    names = {each.name: option_name(each) for each in context.command.params}
    options = {each.name for each in context.command.params if isinstance(each, click.Option)}

    def named(found: re.Match[str]) -> str:
        name = next(filter(None, found.groups()))
        return names.get(_NAMES.get(name, name), found[0])

    def listed(found: re.Match[str]) -> str:
        return re.sub(
            r"\w{4,}", lambda one: names.get(_NAMES.get(one[0], one[0]), one[0]), found[1]
        )

    for phrase, name in _PHRASES:
        if name in names:
            words = phrase.sub(names[name], words)
    words = _LEFT_OUT.sub("", words)
    if "where" in names:
        words = _WHERE.sub(r'--where "\1"', words)
    words = _SETTING.sub(r"--conf \1", words)
    words = _READERS.sub(r"--option \1=", words)
    words = _OPTIONS.sub(listed, words)
    words = _OPTION.sub(named, words)
    words = _EXPRESSION.sub(lambda found: f"{names.get(found[1], found[1])} ", words)

    def column(found: re.Match[str]) -> str:
        return f"{names[found[1]]} " if is_given(context, found[1]) else found[0]

    words, before = _COLUMN.sub(column, words), words
    if words != before:
        return words
    for pattern in (_FIRST, _BEFORE):
        if (found := pattern.search(words)) and _NAMES.get(found[1], found[1]) in options:
            words = pattern.sub(named, words)
    return _VALUE.sub(named, words)


def sentence(words: str) -> str:
    """The words with a capital letter and a full stop."""
    words = words.strip().rstrip(".")
    if words.endswith("?"):
        return _capital(words)
    return f"{_capital(words)}."


def _capital(words: str) -> str:
    # The name of a setting or a column keeps its case.
    begins = words.split(maxsplit=1)[0].isalpha() if words else False
    return f"{words[:1].upper() if begins else words[:1]}{words[1:]}"
