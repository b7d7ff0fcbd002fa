"""The requests on their way to the raft thread, and what ends its wait."""

import os
from collections.abc import Iterator

import pytest

from querator.model.ids import GroupId
from querator.raft.requests import Inbox, Read

SOON_S = 30


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def request() -> Read:
    return Read(GroupId(1), None)  # type: ignore[arg-type]


def test_the_wait_tells_whether_a_descriptor_is_readable(pipe: tuple[int, int]):
    inbox = Inbox(pipe[0])
    assert not inbox.wait(0.001)
    inbox.wake()
    assert not inbox.wait(SOON_S)
    os.write(pipe[1], b"x")
    assert inbox.wait(SOON_S)
    inbox.wake()
    assert inbox.wait(SOON_S)
    inbox.close()


def test_without_a_wait_a_descriptor_may_be_readable(pipe: tuple[int, int]):
    inbox = Inbox(pipe[0])
    assert inbox.wait(0)
    inbox.put(request())
    assert inbox.wait(SOON_S)
    assert len(inbox.take_all(10)) == 1
    inbox.close()
