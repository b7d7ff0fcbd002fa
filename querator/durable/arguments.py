"""The arguments of an execution as bytes, and back, by the annotations of its function."""

import inspect
from typing import Any

import msgspec

from querator.durable.codec import Codec
from querator.durable.errors import CodecError
from querator.durable.functions import Durable


def encode_arguments(
    function: Durable[..., Any], codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """Raises TypeError for arguments that the function does not take, and CodecError."""
    try:
        bound = function.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.name}: {error}") from None
    for name, value in bound.arguments.items():
        codec.encode(value, name)
    return codec.encode((bound.args, bound.kwargs), "the arguments")


def decode_arguments(
    function: Durable[..., Any], codec: Codec, data: bytes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Raises CodecError for bytes that are no arguments of the function as it is."""
    try:
        args, kwargs = msgspec.json.decode(
            data, type=tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]
        )
        bound = function.signature.bind(*args, **kwargs)
    except (msgspec.MsgspecError, TypeError) as error:
        raise CodecError(f"the arguments do not fit {function.name}: {error}") from error
    for name, value in bound.arguments.items():
        kind = function.hints.get(name, Any)
        shape = function.signature.parameters[name].kind
        if shape is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(codec.decode(each, kind, name) for each in value)
        elif shape is inspect.Parameter.VAR_KEYWORD:
            bound.arguments[name] = {
                key: codec.decode(each, kind, key) for key, each in value.items()
            }
        else:
            bound.arguments[name] = codec.decode(value, kind, name)
    return bound.args, bound.kwargs
