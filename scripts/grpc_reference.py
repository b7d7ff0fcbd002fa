"""The list of all gRPC calls and messages, from the files and comments of proto/querator/v1.

The compiler of the protocol gives the comments with the descriptors. Calls between nodes
(`node_service.proto`) are no interface for clients, and are left out.
"""

import re
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

import grpc_tools  # type: ignore[import-untyped]
from google.protobuf import descriptor_pb2 as pb
from grpc_tools import protoc

PROTO: Final = Path(__file__).resolve().parent.parent / "proto"
PACKAGE: Final = "querator.v1"
FILES: Final = (
    "queue_service",
    "transaction_service",
    "reader_service",
    "admin_service",
    "recurrences",
    "cluster_service",
    "execution_service",
    "items",
    "errors",
)
_WIDTH: Final = 100
_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in pb.FieldDescriptorProto.Type.items()
}
_REPEATED: Final = pb.FieldDescriptorProto.LABEL_REPEATED
# Numbers of fields in descriptor.proto, of which the paths of comments are made.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _METHODS, _VALUES = 2, 2, 2
_NESTED = 3


class _File:
    """One file with its comments."""

    def __init__(self, proto: pb.FileDescriptorProto) -> None:
        self.proto = proto
        self._comments = {
            tuple(place.path): place.leading_comments or place.trailing_comments
            for place in proto.source_code_info.location
        }

    def comment(self, *path: int) -> str:
        """The comment as one paragraph. Raises KeyError when there is none."""
        text = " ".join(self._comments[path].split())
        # A name in capitals or with angle brackets must not become a tag of HTML.
        return text.replace("<", "&lt;")


def markdown() -> str:
    """Returns the list. Raises RuntimeError when the files do not compile."""
    found = {proto.name: _File(proto) for proto in _compiled().file}
    parts: list[str] = []
    for name in FILES:
        file = found[f"querator/v1/{name}.proto"]
        for number, service in enumerate(file.proto.service):
            parts += _service(file, number, service)
        if not file.proto.service:
            parts.append(f"### {name}.proto")
            parts.append(_wrapped(f"Messages that the services share: `{file.proto.name}`."))
        for number, message in enumerate(file.proto.message_type):
            parts += _message(file, message, (_MESSAGES, number), message.name)
        for number, enum in enumerate(file.proto.enum_type):
            parts += _enum(file, number, enum)
    return "\n\n".join(parts) + "\n"


def _compiled() -> pb.FileDescriptorSet:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        names = [f"querator/v1/{name}.proto" for name in FILES]
        known = files(grpc_tools) / "_proto"
        arguments = [
            "protoc", f"-I{PROTO}", f"-I{known}", "--include_source_info",
            f"--descriptor_set_out={out}", *names,
        ]  # fmt: skip
        if protoc.main(arguments):
            raise RuntimeError("proto/querator/v1 does not compile")
        return pb.FileDescriptorSet.FromString(out.read_bytes())


def _service(file: _File, number: int, service: pb.ServiceDescriptorProto) -> Iterator[str]:
    yield f"### {service.name}"
    yield _wrapped(file.comment(_SERVICES, number))
    calls = []
    for position, method in enumerate(service.method):
        takes = _stream(client_streaming=method.client_streaming) + _type_link(method.input_type)
        gives = _stream(client_streaming=method.server_streaming) + _type_link(method.output_type)
        comment = file.comment(_SERVICES, number, _METHODS, position)
        calls.append(_item(f"`{method.name}`: {takes} → {gives}. {comment}"))
    yield "\n".join(calls)


def _stream(*, client_streaming: bool) -> str:
    return "stream of " if client_streaming else ""


def _message(
    file: _File, message: pb.DescriptorProto, path: tuple[int, ...], name: str
) -> Iterator[str]:
    """A message, and those that are declared in it. `path`: of its comment."""
    yield f"#### {name}"
    yield _wrapped(file.comment(*path))
    maps = {
        f".{PACKAGE}.{name}.{one.name}": one for one in message.nested_type if one.options.map_entry
    }
    assert not message.enum_type, "enums are not nested"
    fields = []
    for position, field in enumerate(message.field):
        kind = _kind(field, maps.get(field.type_name))
        if field.proto3_optional:
            kind = f"optional {kind}"
        elif field.HasField("oneof_index"):
            kind = f"{kind}, one of `{message.oneof_decl[field.oneof_index].name}`"
        comment = file.comment(*path, _FIELDS, position)
        fields.append(_item(f"`{field.name}` = {field.number}: {kind}. {comment}"))
    if fields:
        yield "\n".join(fields)
    for number, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(file, nested, (*path, _NESTED, number), f"{name}.{nested.name}")


def _kind(field: pb.FieldDescriptorProto, map_entry: pb.DescriptorProto | None) -> str:
    if map_entry is not None:
        key, value = (_kind(one, None) for one in map_entry.field)
        return f"map of {key} to {value}"
    name = _type_link(field.type_name) if field.type_name else _TYPES[field.type]
    return f"repeated {name}" if field.label == _REPEATED else name


def _enum(file: _File, number: int, enum: pb.EnumDescriptorProto) -> Iterator[str]:
    yield f"#### {enum.name}"
    yield _wrapped(file.comment(_ENUMS, number))
    yield "\n".join(
        _item(f"`{value.name}` = {value.number}. {file.comment(_ENUMS, number, _VALUES, position)}")
        for position, value in enumerate(enum.value)
    )


def _type_link(full_name: str) -> str:
    """`.querator.v1.Item` as a link to its heading; others by their names."""
    own = re.fullmatch(rf"\.{re.escape(PACKAGE)}\.([\w.]+)", full_name)
    if own is None:
        return f"`{full_name[1:]}`"
    return f"[{own[1]}](#{own[1].lower().replace('.', '')})"


def _item(text: str) -> str:
    return _wrapped(text, first="- ", others="  ")


def _wrapped(text: str, *, first: str = "", others: str = "") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
