"""A program whose types a user checks with `mypy --strict`; it is not run."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import assert_type

import querator
from querator import (
    Client,
    Item,
    LeasedItem,
    Node,
    PeekedItem,
    SyncClient,
    SyncLeasedItem,
    Tls,
    errors,
)
from querator.errors import LeaseLost


async def work(item: LeasedItem) -> None:
    assert_type(item.payload, bytes)
    try:
        await item.complete()
    except LeaseLost as lost:
        assert_type(lost.message, str)
    except errors.OutcomeUnknown:
        await item.retry(delay=timedelta(minutes=1))


def tidy(item: SyncLeasedItem) -> None:
    item.complete()


async def main() -> None:
    async with Node("./data", new=True) as node, node.client() as client:
        assert_type(client, Client)
        info = await client.create_queue("mail", max_attempts=5, dead_queue="mail-dead")
        assert_type(info.created, bool)
        await client.produce("mail", Item(b"hello", kind="greeting"))
        assert_type(client.peek("mail"), AsyncIterator[PeekedItem])
        assert_type(client.schedules.list("mail", kind="greeting"), AsyncIterator[PeekedItem])
        assert_type((await client.schedules.cancel("mail", all_items=True)).changed, int)
        async with client.consumer("mail", prefetch_items=10) as consumer:
            await consumer.run(work)
    with SyncClient("127.0.0.1:4470", tls=Tls.from_files(ca="ca.pem")) as sync:
        assert_type(sync.schedules.list("mail", limit=5), Iterator[PeekedItem])
        assert_type(sync.schedules.move("mail", ["0-1"], to=datetime.now(UTC)).changed, int)
        with sync.consumer("mail") as items:
            items.run(tidy)


assert_type(querator.__version__, str)
asyncio.run(main())
