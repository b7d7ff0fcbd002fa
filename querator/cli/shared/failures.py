"""Failures of commands: one line on standard error that names a remedy, and an exit code.

    0    done
    1    done, with a problem: damage, a lost item, refused input lines
    2    the command line is wrong
    3    the server refused the request
    4    no server answers, or it cannot take the request at present; nothing was done
    5    the outcome is unknown: the request may have been executed, or may still be
    130  ended by Ctrl-C
    141  standard output was closed
    143  ended by SIGTERM

`serve` has exit codes of its own: see `querator.cli.serve`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TypeVar

import click

from querator.cli.shared.wording import field_name, in_words
from querator.client import errors
from querator.client.errors import ConnectionFault
from querator.client.transport.rpc_errors import LOCAL_ADDRESSES
from querator.model.errors import ErrorCode, QueratorError


class ExitCode(IntEnum):
    DONE = 0
    WRONG = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    UNKNOWN = 5
    INTERRUPTED = 130
    TERMINATED = 143


class Failure(click.ClickException):
    """Ends the command with this line and exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.WRONG) -> None:
        super().__init__(message)
        # click's own way to set it for one exception, although it is declared for the class.
        self.exit_code = exit_code  # type: ignore[misc]


_ADVICE = {
    ErrorCode.QUEUE_NOT_FOUND: "List the queues with: querator queue list",
    ErrorCode.NAMESPACE_NOT_FOUND: "A namespace begins with its first queue: querator queue create",
    ErrorCode.QUEUE_EXISTS: "Leave these settings out to take the queue as it is, or change them "
    "with: querator queue update",
    ErrorCode.VERSION_CONFLICT: "See: querator queue info",
    ErrorCode.QUEUE_FULL: "Consume items, or raise the limit with: querator queue update",
    ErrorCode.QUEUE_PAUSED: "Let them continue with: querator queue resume",
    ErrorCode.ITEM_TOO_LARGE: "Ask for more with --max-bytes.",
    ErrorCode.OUTCOME_UNKNOWN: "See: querator stats",
}

_WAYS_OUT = {
    ConnectionFault.TLS_REQUIRED: (
        "Give --tls-ca FILE, and --tls-cert and --tls-key if it requires a client certificate."
    ),
    ConnectionFault.NO_TLS: "Leave out --tls, --tls-ca, --tls-cert and --tls-key.",
    ConnectionFault.UNTRUSTED: "Name the authority that has signed it with --tls-ca FILE.",
    ConnectionFault.CERTIFICATE_REQUIRED: "Give --tls-cert FILE and --tls-key FILE.",
    ConnectionFault.CERTIFICATE_REFUSED: "Give another one with --tls-cert and --tls-key.",
}


_IS_IT_UP = "Nothing listens there: is the node up?"
_START = "Start a node with: querator serve --data-dir ./data --new"
_EXPIRED = "certificate has expired"
"""OpenSSL's words."""
_RENEW = "Renew it: put a new certificate and its key into the files of the node, which reads them."
_NOT_YET = "A node that waits for its cluster does not listen yet; its log says for what it waits."


@contextmanager
def explained() -> Iterator[None]:
    """Turns the client's errors, also one inside a group of tasks, into a `Failure`."""
    try:
        yield
    except QueratorError as error:
        raise failure_of(error) from error
    except BaseExceptionGroup as group:
        if (failure := _first(group, Failure)) is not None:
            raise failure from group
        if (known := _first(group, QueratorError)) is not None:
            raise failure_of(known) from group
        raise


_Error = TypeVar("_Error", bound=BaseException)


def _first(group: BaseExceptionGroup[BaseException], kind: type[_Error]) -> _Error | None:
    for error in group.exceptions:
        if isinstance(error, kind):
            return error
        if isinstance(error, BaseExceptionGroup) and (inner := _first(error, kind)) is not None:
            return inner
    return None


def failure_of(error: QueratorError, *, similar: Sequence[str] = ()) -> Failure:
    """The failure of a command by an error. `similar`: names of queues that may have been meant."""
    if isinstance(error, errors.ConnectionFailed):
        return Failure(_no_connection(error), ExitCode.UNAVAILABLE)
    message = in_words(error).rstrip(".")
    if not error.field or not message.startswith((field_name(error), "-")):
        message = f"{message[:1].upper()}{message[1:]}"
    words = f"{message} ({error.code.name})."
    if similar:
        words = f"{words} Did you mean {' or '.join(similar)}?"
    elif advice := _ADVICE.get(error.code):
        words = f"{words} {advice}"
    if isinstance(error, errors.OutcomeUnknown):
        return Failure(words, ExitCode.UNKNOWN)
    if isinstance(error, errors.Unavailable) and not isinstance(error, errors.QueuePaused):
        return Failure(words, ExitCode.UNAVAILABLE)
    return Failure(words, ExitCode.REFUSED)


def _no_connection(error: errors.ConnectionFailed) -> str:
    sentences = ["No server can be reached."] if len(error.faults) > 1 else []
    advices = []
    last = ""
    for one in error.faults:
        sentences.append(one.text)
        if one.kind is ConnectionFault.UNTRUSTED and _EXPIRED in one.text:
            advices.append(_RENEW)
            continue
        if one.kind is not ConnectionFault.REFUSED:
            advices.append(_WAYS_OUT.get(one.kind, ""))
            continue
        if one.address in LOCAL_ADDRESSES:
            # Nothing may follow a command.
            last = _START
        else:
            advices.append(_IS_IT_UP)
        advices.append(_NOT_YET)
    return " ".join(filter(None, (*sentences, *dict.fromkeys(advices), last)))
