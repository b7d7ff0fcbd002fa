"""Options that `SyncClient` passes on are those of the async client."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from querator import Client
from querator.client import Recurrences, ScheduledItems
from querator.client.admin import LetterOptions
from querator.client.options import (
    ChangeOptions,
    ConsumerOptions,
    CountOptions,
    ListOptions,
    ProducerOptions,
    QueueOptions,
    RecurrenceOptions,
)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Client.create_queue, QueueOptions),
        (Client.producer, ProducerOptions),
        (Client.consumer, ConsumerOptions),
        (Client.redrive, LetterOptions),
        (Client.drop_dead_letters, LetterOptions),
        (Recurrences.create, RecurrenceOptions),
        (ScheduledItems.list, ListOptions),
        (ScheduledItems.count, CountOptions),
        (ScheduledItems.run_now, ChangeOptions),
        (ScheduledItems.cancel, ChangeOptions),
    ],
)
def test_names_and_types_are_the_same(method: Callable[..., Any], options: type):
    types = get_type_hints(method)
    keywords = {
        name: types[name]
        for name, each in inspect.signature(method).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    # `SyncClient.create_queue` names it itself: the other options are also those of `update_queue`.
    keywords.pop("if_exists", None)
    assert get_type_hints(options) == keywords
