"""The proto files say what generators in other languages need."""

from google.protobuf.descriptor import FileDescriptor

from querator.v1 import (
    admin_service_pb2,
    cluster_service_pb2,
    errors_pb2,
    items_pb2,
    node_service_pb2,
    queue_service_pb2,
    reader_service_pb2,
    transaction_service_pb2,
)

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        admin_service_pb2,
        cluster_service_pb2,
        errors_pb2,
        items_pb2,
        node_service_pb2,
        queue_service_pb2,
        reader_service_pb2,
        transaction_service_pb2,
    )
)


def test_all_files_are_one_go_package():
    """Then stubs import no other stubs, and may be in any directory of a module."""
    assert {file.GetOptions().go_package for file in FILES} == {"querator/v1;queratorv1"}
