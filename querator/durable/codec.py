"""Values and exceptions as bytes of a journal, and back.

Values are JSON by msgspec, decoded to the annotated type. A pydantic model is taken by its methods
`model_dump` and `model_validate`. Nothing is imported because its name came out of a journal: an
exception is raised as its own type if that is built in, or registered with the codec; else it is a
`RemoteError` that says the name.

A result is decoded before the code gets it, also when it has just been made. So the code gets the
same value live and in each replay.
"""

import builtins
import dataclasses
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from querator.durable import errors as durable_errors
from querator.durable.errors import CodecError, RecordedTraceback, RemoteError, ValueTooLarge
from querator.model.limits import (
    ERROR_CHARS_MAX,
    EXECUTION_TRACEBACK_CHARS_MAX,
    EXECUTION_VALUE_BYTES_MAX,
)

_CAUSES_DEEP_MAX: Final = 5
"""Groups of exceptions within each other; deeper ones are recorded by their text."""
_PLACES_MAX: Final = 100
"""How deep the place of a value is looked for."""


class RecordedError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception in a journal."""

    type: str
    text: str = ""
    args: tuple[Any, ...] | None = None
    data: dict[str, Any] = {}
    traceback: str = ""
    errors: tuple["RecordedError", ...] = ()
    """Those of an ExceptionGroup."""


class Codec:
    """JSON of values and exceptions. `errors` are types of exceptions that are raised as themselves
    when they are read from a journal.
    """

    def __init__(
        self,
        errors: Iterable[type[Exception]] = (),
        *,
        value_bytes_max: int = EXECUTION_VALUE_BYTES_MAX,
    ) -> None:
        self._errors = dict(_KNOWN)
        self._value_bytes_max = value_bytes_max
        for kind in errors:
            if not _is_exception(kind):
                raise TypeError(f"errors has {kind!r}; it must have types of exceptions")
            self._errors[_type_name(kind)] = kind

    def encode(self, value: object, name: str = "result") -> bytes:
        """Raises CodecError, which names the part of the value, and ValueTooLarge."""
        try:
            data = _ENCODER.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _cannot_encode(value, name, error) from error
        if b"null" in data and (place := _place_of_nan(value, name, _PLACES_MAX)):
            raise CodecError(f"{place} is not a finite number, which JSON cannot say")
        if len(data) > self._value_bytes_max:
            raise ValueTooLarge(
                f"{name} has {len(data)} bytes as JSON, and at most {self._value_bytes_max}"
            )
        return data

    def decode(self, data: bytes, kind: Any, name: str = "result", of: str = "") -> Any:
        """Raises CodecError for bytes that do not decode to the type; `name` and `of` are for its
        text.
        """
        try:
            return _decoder(kind)(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise CodecError(f"{name}{of} is not of the type {_words(kind)}: {error}") from error

    def encode_error(self, error: BaseException) -> bytes:
        """Does not raise: what cannot be encoded of an exception is left out."""
        return msgspec.json.encode(_record_error(error, _CAUSES_DEEP_MAX))

    def decode_error(self, data: bytes) -> Exception:
        """The exception to raise. Raises CodecError for bytes that are not of an exception."""
        try:
            recorded = msgspec.json.decode(data, type=RecordedError)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CodecError(f"an exception cannot be read from the journal: {error}") from error
        return self._rebuild(recorded)

    def _rebuild(self, recorded: RecordedError) -> Exception:
        error = self._own_type(recorded)
        if error is None:
            error = RemoteError(recorded.type, recorded.text)
        if recorded.traceback:
            error.__cause__ = RecordedTraceback(f"\n{recorded.traceback}")
        return error

    def _own_type(self, recorded: RecordedError) -> Exception | None:
        kind = self._errors.get(recorded.type)
        if kind is None or recorded.args is None:
            return None
        args = recorded.args
        if issubclass(kind, ExceptionGroup):
            args = (recorded.text, [self._rebuild(each) for each in recorded.errors])
        try:
            # As for a copy: `__init__` of a type of the program may have other parameters.
            error = kind.__new__(kind, *args)
            if kind.__module__ == "builtins":
                error.__init__(*args)  # type: ignore[misc]
            error.args = args
            error.__dict__.update(recorded.data)
        except Exception:  # noqa: BLE001 - the type may do anything, and the name is left.
            return None
        return error


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def _record_error(error: BaseException, deep: int) -> RecordedError:
    kind = type(error)
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - the code of the exception may do anything.
        text = f"<its text raised {type(broken).__name__}>"
    causes: tuple[RecordedError, ...] = ()
    args: tuple[Any, ...] | None = None
    if isinstance(error, ExceptionGroup) and kind is ExceptionGroup:
        text = error.message
        if deep:
            args = ()
            causes = tuple(_record_error(each, deep - 1) for each in error.exceptions)
    elif _has_json(error.args):
        args = error.args
    data = {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("__") and _has_json(value)
    }
    trace = "".join(traceback.format_tb(error.__traceback__))
    return RecordedError(
        type=_type_name(kind), text=_clean(text[:ERROR_CHARS_MAX]), args=args, data=data,
        traceback=_clean(trace[-EXECUTION_TRACEBACK_CHARS_MAX:]), errors=causes,
    )  # fmt: skip


def _clean(text: str) -> str:
    """Without lone surrogates, which UTF-8 cannot say."""
    return text.encode("utf-8", "replace").decode()


def _has_json(value: object) -> bool:
    """Whether plain JSON says the value, and gives it back equal, and it is small."""
    try:
        data = msgspec.json.encode(value)
        back = msgspec.json.decode(data)
        return len(data) <= EXECUTION_TRACEBACK_CHARS_MAX and (
            tuple(back) == value if isinstance(value, tuple) else bool(back == value)
        )
    except Exception:  # noqa: BLE001 - the value is anything, also its comparison.
        return False


def _type_name(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _known() -> Mapping[str, type[Exception]]:
    """The exceptions that are built in, but those by which iterators and coroutines end."""
    kinds = [
        kind
        for module in (builtins, durable_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    ends = (StopIteration, StopAsyncIteration, durable_errors.Final)
    return {_type_name(kind): kind for kind in kinds if not issubclass(kind, ends)}


_KNOWN: Final = _known()


# --- values --------------------------------------------------------------------------------------


def _encode_other(value: Any) -> Any:
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__name__} has no JSON")
    return dump(value, mode="json")


def _decode_other(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"a {_words(kind)} cannot be made from JSON")
    return validate(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_encode_other)


@lru_cache(maxsize=4_096)
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind, dec_hook=_decode_other).decode


def _words(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _cannot_encode(value: object, name: str, error: Exception) -> CodecError:
    place, inner = name, value
    for _ in range(_PLACES_MAX):
        for part, child in _parts(inner):
            if not _is_encodable(child):
                place, inner = place + part, child
                break
        else:
            break
    if isinstance(error, RecursionError):
        return CodecError(f"{name} holds itself, or is too deep for JSON")
    if inspect.iscoroutine(inner):
        return CodecError(f"{place} is a coroutine: an await is missing")
    return CodecError(f"{place} is a {type(inner).__name__}, which has no JSON: {error}")


def _is_encodable(value: object) -> bool:
    try:
        _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _place_of_nan(value: object, place: str, deep: int) -> str:
    if isinstance(value, float):
        return "" if math.isfinite(value) else place
    if not deep:
        return ""
    for part, child in _parts(value):
        if found := _place_of_nan(child, place + part, deep - 1):
            return found
    return ""


def _parts(value: object) -> Iterable[tuple[str, object]]:
    """The parts of a value that JSON has, each with its place in the value."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{nth}]", child) for nth, child in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif dataclasses.is_dataclass(value):
        yield from (
            (f".{each.name}", getattr(value, each.name, None)) for each in dataclasses.fields(value)
        )
    elif hasattr(type(value), "model_dump"):
        yield from ((f".{name}", child) for name, child in vars(value).items())
