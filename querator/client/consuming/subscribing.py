"""The first frame of a lease stream: the consumer's options, and the number of the stream.

A consumer has an id and numbers its streams. When a stream breaks, the next one names the leases of
earlier streams that the consumer keeps. The node releases the other leases, because their items did
not arrive.
"""

from collections.abc import Collection

import uuid_utils

from querator.model import limits
from querator.v1 import queue_service_pb2


class Subscribing:
    """First frames of one consumer. `subscribe` has the fields that all its streams share."""

    def __init__(self, subscribe: queue_service_pb2.Subscribe) -> None:
        self._subscribe = subscribe
        self._consumer_id = uuid_utils.uuid7().hex[-16:]

    def frame(self, number: int, held: Collection[str]) -> bytes:
        """Returns the frame that opens stream `number` (the first is 1). `held`: leases of earlier
        streams that have items or unconfirmed settles here.
        """
        # With too many leases to name, no consumer id is sent: then the node releases none.
        named = len(held) <= limits.STREAM_LEASES_MAX
        subscribe = self._subscribe
        subscribe.consumer_id = self._consumer_id if named else ""
        subscribe.stream_number = number if named else 0
        subscribe.held_lease_ids[:] = sorted(held) if named else ()
        return queue_service_pb2.LeaseStreamRequest(subscribe=subscribe).SerializeToString()
