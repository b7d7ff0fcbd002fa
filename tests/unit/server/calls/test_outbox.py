"""The outbox: frames that wait to be written to one stream."""

import asyncio
from functools import partial

from querator.server.calls.outbox import Outbox


async def test_a_delivery_is_made_when_it_is_written_and_not_before():
    outbox, written = Outbox(), list[bytes]()
    writes, may_write = asyncio.Event(), asyncio.Event()
    left: list[bytes | None] = [b"second", None, b"fourth"]

    async def write(frame: bytes) -> None:
        written.append(frame)
        writes.set()
        await may_write.wait()

    outbox.deliver(5, lambda: b"first")
    for place in range(3):
        outbox.deliver(6, partial(left.__getitem__, place))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(outbox.write_all(write))
        await writes.wait()
        left[0] = b"later"
        may_write.set()
        outbox.close()
    assert written == [b"first", b"later", b"fourth"]
    assert outbox.has_room_for_delivery()
