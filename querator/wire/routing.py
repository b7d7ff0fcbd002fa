"""Requests and answers of GetRouting: the nodes of the cluster and the leaders of a queue."""

from querator.model.calls import Routing
from querator.model.ids import check_name
from querator.v1 import queue_service_pb2
from querator.wire import field_checks
from querator.wire.queues import QueueName


def parse_get_routing(data: bytes) -> QueueName:
    """The queue; its name is empty when only the nodes are requested."""
    message = field_checks.parse_message(queue_service_pb2.GetRoutingRequest, data)
    namespace = field_checks.check_namespace(message.namespace)
    name = check_name(message.queue, field="queue") if message.queue else ""
    return QueueName(namespace, name)


def encode_routing(routing: Routing) -> bytes:
    return queue_service_pb2.GetRoutingResponse(
        epoch=routing.epoch,
        node=routing.node,
        nodes=[
            queue_service_pb2.RoutingNode(name=name, client_address=address)
            for name, address in routing.nodes
        ],
        leaders=routing.leaders,
    ).SerializeToString()
