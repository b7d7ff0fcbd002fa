"""The first frame of a lease stream: what the consumer wants, and which of its streams this is.

A consumer has a name of its own and numbers its streams. When one breaks, the next one says which
leases from those before it keeps; the node has the others released, for their items did not come.
"""

from collections.abc import Collection

import uuid_utils

from querator.model import limits
from querator.v1 import queue_service_pb2


class Subscribing:
    """Of one consumer; `subscribe` is all that its streams have in common."""

    def __init__(self, subscribe: queue_service_pb2.Subscribe) -> None:
        self._subscribe = subscribe
        self._consumer_id = uuid_utils.uuid7().hex[-16:]

    def frame(self, number: int, held: Collection[str]) -> bytes:
        """Opens stream `number`, from 1 on. `held`: leases from earlier streams that have items
        here, or settles that are not confirmed.
        """
        # With more than can be said nothing is released, for what is held must not be.
        named = len(held) <= limits.STREAM_LEASES_MAX
        subscribe = self._subscribe
        subscribe.consumer_id = self._consumer_id if named else ""
        subscribe.stream_number = number if named else 0
        subscribe.held_lease_ids[:] = sorted(held) if named else ()
        return queue_service_pb2.LeaseStreamRequest(subscribe=subscribe).SerializeToString()
