"""Options that `SyncClient` passes on are those of the async client."""

import inspect
from typing import get_type_hints

import pytest

from querator import Client
from querator.client.options import ConsumerOptions, ProducerOptions, QueueOptions


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("create_queue", QueueOptions),
        ("producer", ProducerOptions),
        ("consumer", ConsumerOptions),
    ],
)
def test_names_and_types_are_the_same(call: str, options: type):
    method = getattr(Client, call)
    types = get_type_hints(method)
    keywords = {
        name: types[name]
        for name, each in inspect.signature(method).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert get_type_hints(options) == keywords
