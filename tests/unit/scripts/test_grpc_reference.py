"""The list of gRPC calls and messages has everything that clients may use."""

import re

import pytest
from google.protobuf.descriptor import FileDescriptor

from querator.v1 import (
    admin_service_pb2,
    cluster_service_pb2,
    errors_pb2,
    execution_service_pb2,
    items_pb2,
    queue_service_pb2,
    reader_service_pb2,
    recurrences_pb2,
    transaction_service_pb2,
)
from scripts.docs import GRPC_PAGE

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        admin_service_pb2,
        cluster_service_pb2,
        errors_pb2,
        execution_service_pb2,
        items_pb2,
        queue_service_pb2,
        reader_service_pb2,
        recurrences_pb2,
        transaction_service_pb2,
    )
)
PAGE = GRPC_PAGE.read_text(encoding="utf-8")
SECTIONS = {
    section.partition("\n")[0]: section for section in re.split(r"^#{3,4} ", PAGE, flags=re.M)[1:]
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_all_is_listed(file: FileDescriptor) -> None:
    for service in file.services_by_name.values():
        for method in service.methods:
            assert f"- `{method.name}`: " in SECTIONS[service.name]
    messages = [*file.message_types_by_name.values()]
    for message in messages:
        messages += [each for each in message.nested_types if not each.GetOptions().map_entry]
        for field in message.fields:
            assert (
                f"- `{field.name}` = {field.number}: "
                in SECTIONS[message.full_name.removeprefix("querator.v1.")]
            )
    for enum in file.enum_types_by_name.values():
        for value in enum.values:
            assert f"- `{value.name}` = {value.number}. " in SECTIONS[enum.name]


def test_each_type_is_a_link_to_its_heading() -> None:
    targets = set(re.findall(r"\]\(#(\w+)\)", PAGE))
    assert targets
    assert targets <= {name.lower().replace(".", "") for name in SECTIONS}


def test_no_line_is_a_list_by_accident() -> None:
    assert re.findall(r"^ +(?:\d+\.|[-*+]) .*$", PAGE, flags=re.M) == []


def test_calls_between_nodes_are_not_listed() -> None:
    assert "NodeService" not in PAGE
