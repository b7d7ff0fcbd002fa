"""Errors of the server in the words of the command line: options by their names, durations in
units.
"""

import re
from datetime import timedelta
from typing import Final

import click

from querator.cli.shared.parameters import format_duration, format_limit, is_given, option_name
from querator.model.errors import QueratorError

_AMOUNT: Final = re.compile(r"(\d+)(?: (.+))?")
_PLACE: Final = re.compile(r"\b(?:settings|filter|items\[\d+\])\.")
_OTHER_NAMES: Final = {
    "due_at": ("to",),
    "enqueue_at": ("delay",),
    "node": ("name",),
    "retry_at": ("delay",),
}
"""Field → further parameters that set it."""


def in_words(error: QueratorError, *, of_option: bool = True, name: str = "") -> str:
    """The message of an error. `of_option`: the field may have its value from an option. `name`:
    the name of the field in the input, if it is another one.
    """
    field = field_name(error)
    option = _given_option(field) if of_option else None
    name = name or (field if option is None else option_name(option))
    message = _PLACE.sub("", error.message)
    if (words := _limit_words(error, message, name, option)) is not None:
        return words
    if not field or not message.startswith(field):
        return message
    return f"{name}{message.removeprefix(field)}"


def field_name(error: QueratorError) -> str:
    """The field at fault without its place in the request: `items[3].kind` is `kind`."""
    return _PLACE.sub("", error.field)


def _given_option(field: str) -> click.Option | None:
    """The option on the command line that sets the field."""
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    names = (field, *_OTHER_NAMES.get(field, ()))
    for option in context.command.params:
        if isinstance(option, click.Option) and option.name in names:
            if is_given(context, option.name):
                return option
    return None


def _limit_words(
    error: QueratorError, message: str, name: str, option: click.Option | None
) -> str | None:
    """The error as a value and its limit, if its message says nothing else."""
    standard = f"{field_name(error)} is {error.value}; the"
    if message not in (f"{standard} {word} is {error.limit}" for word in ("limit", "least")):
        return None
    value, limit = _AMOUNT.fullmatch(error.value), _AMOUNT.fullmatch(error.limit)
    if value is None or limit is None:
        return None
    bound = "at most" if int(value[1]) > int(limit[1]) else "at least"
    unit = value[2] or ""
    if unit != "ms" and not unit.startswith("ms "):
        return f"{name} is {int(value[1]):,} {unit}".rstrip() + f"; {bound} {int(limit[1]):,}"
    duration = timedelta(milliseconds=int(value[1]))
    typed = None if option is None else click.get_current_context().params.get(option.name or "")
    if isinstance(typed, timedelta):
        duration = typed
    elif unit != "ms":
        # An instant that is counted from now: the part below a second says nothing.
        duration = timedelta(seconds=round(duration.total_seconds()))
    ahead = unit[2:] if duration is not typed and name != "delay" else ""
    words = f"{name} is {format_duration(duration)}{ahead}"
    return f"{words}; {bound} {format_limit(timedelta(milliseconds=int(limit[1])))}"
