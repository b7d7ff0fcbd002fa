"""What durable functions, and programs with them, catch.

DurableError
  NotInExecution      a durable call outside of an execution
  NonDeterminism      the code does not do what its journal says
  CodecError          a value that has no JSON, or JSON that is not of the type
    ValueTooLarge     a value that is over its limit
  ArgumentsChanged    an argument was changed after the call, before the step began
  StepInterrupted     a step that runs at most once has begun, and its end is not known
  RunTooLong         a run has as many records or bytes as it may have
  TooDeep             durable functions call each other too deep
  Undecodable         a journal has bytes that this code cannot decode
  TurnTooLong         the code does not wait for anything
  PromiseRejected     the reason with which a promise was rejected, if it was a text
  ChildRefused        a child was not started
  RunGoesOn           `continue_as_new` was called where a run cannot end
  ExecutionCancelled  an execution has ended because it was cancelled
  ExecutionTerminated an execution was ended from outside
  RemoteError         an exception whose type this program has not registered
Final                 raised in a step: its cause is recorded, without another attempt
Evicted               not an Exception: an execution leaves the memory
NextRun               not an Exception: `continue_as_new` ends the run
Cancelled             not an Exception: a sync durable function is cancelled
"""

from typing import final


class DurableError(Exception):
    """The base of the errors of `querator.durable`."""


class NotInExecution(DurableError):
    """A durable call was made outside of an execution, in a step, or in another thread."""


class NonDeterminism(DurableError):
    """The code does not do what its journal says. Nothing was run. `journal` and `code` are the
    lines of both, if they differ at a place of the journal.
    """

    def __init__(self, text: str, *, journal: str = "", code: str = "") -> None:
        super().__init__(text)
        self.journal = journal
        self.code = code


class CodecError(DurableError):
    """A value cannot be encoded, or bytes do not decode to the annotated type."""


class ValueTooLarge(CodecError):
    """An encoded value is over its limit."""


class ArgumentsChanged(DurableError):
    """An argument of a step was changed after the call, before the attempt began."""


class StepInterrupted(DurableError):
    """A step that runs at most once has begun, and its end is not known."""


class RunTooLong(DurableError):
    """A run has as many records, or as many bytes in them, as it may have."""


class TooDeep(DurableError):
    """Durable functions call each other deeper than the limit."""


class Undecodable(DurableError):
    """A journal has a value that does not decode to the type that the code expects."""


class TurnTooLong(DurableError):
    """After one event, the code continued for too long without waiting for another one."""


class PromiseRejected(DurableError):
    """A promise was rejected with a text."""


class ChildRefused(DurableError):
    """A child was not started. `code` says why: EXECUTION_EXISTS (the id is taken), LIMIT_EXCEEDED
    (too many children, or too deep), QUEUE_FULL.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class RunGoesOn(DurableError):
    """`continue_as_new` was called where a run cannot end: a child has not ended, the execution is
    cancelled, or the call is not in the function of the execution itself.
    """


class ExecutionCancelled(DurableError):
    """An execution has no result, because it has ended by a cancellation."""


class ExecutionTerminated(DurableError):
    """An execution has no result, because it was ended from outside."""


class RemoteError(DurableError):
    """An exception of a type that is neither built in nor registered.

    `type_name` is the name that was recorded, for example "shop.errors.Declined".
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text


class RecordedTraceback(Exception):
    """The cause of a recorded exception: the traceback as text, where it was raised."""


class Final(Exception):
    """`raise Final(error)` in a step records `error`, without another attempt."""

    def __init__(self, error: Exception) -> None:
        if not isinstance(error, Exception):
            raise TypeError(f"Final takes the exception that is recorded, and got {error!r}")
        super().__init__(error)
        self.error = error


@final
class Evicted(BaseException):
    """The execution leaves the memory. All durable calls raise it until the code has ended.

    It is no Exception, so that `except Exception` does not take it for a failure.
    """


@final
class NextRun(BaseException):
    """The run of the execution has ended by `continue_as_new`. It is raised through the function.

    It is no Exception, so that `except Exception` does not take it for a failure.
    """

    def __init__(self, arguments: bytes) -> None:
        super().__init__("the execution continues as its next run")
        self.arguments = arguments


@final
class Cancelled(BaseException):
    """A sync durable function is cancelled: what `asyncio.CancelledError` is for an async one."""
