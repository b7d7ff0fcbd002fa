"""Commands that change the placement map, and the values that answer them.

The life of a queue as the commands drive it; what is absent is refused or changes nothing:

    state      command           next       who proposes it
    (none)     CreateQueue       CREATING   a client
    CREATING   QueueConfigured   ACTIVE     reconcile, when all partitions have their settings
    CREATING   UpdateQueue       CREATING   a client
    ACTIVE     UpdateQueue       ACTIVE     a client
    CREATING   DeleteQueue       DELETING   a client
    ACTIVE     DeleteQueue       DELETING   a client
    DELETING   QueueGone         (none)     reconcile, when all data of its groups is gone
"""

import msgspec

from querator.model.ids import QueueId
from querator.model.queues import Queue, QueueSettings


class CreateQueue(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Repeats with the same settings are answered with the queue that is there."""

    namespace: str
    name: str
    settings: QueueSettings


class UpdateQueue(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Sets the fields of `QueueSettings` that `mask` names. `expected_version` 0: not checked."""

    namespace: str
    name: str
    settings: QueueSettings
    mask: tuple[str, ...]
    expected_version: int = 0


class DeleteQueue(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Cannot be undone once applied. Repeats are answered alike until the queue is gone."""

    namespace: str
    name: str


class QueueConfigured(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All partitions of the queue exist and have the settings of `settings_version`."""

    queue_id: QueueId
    settings_version: int


class QueueGone(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """All groups of a DELETING queue and their data are gone; its name is free again."""

    queue_id: QueueId


Command = CreateQueue | UpdateQueue | DeleteQueue | QueueConfigured | QueueGone


class QueueCreated(msgspec.Struct, frozen=True):
    """`created` False: a queue with these settings was there."""

    queue: Queue
    created: bool


class QueueUpdated(msgspec.Struct, frozen=True):
    """The queue with its new settings, which its partitions may not have yet."""

    queue: Queue
