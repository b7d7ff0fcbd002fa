import asyncio
import json
from collections.abc import Callable
from datetime import timedelta

from querator import Client, Item

TASKS: dict[str, Callable] = {}


def task(function: Callable) -> Callable:
    TASKS[function.__name__] = function
    return function


@task
def add(x: int, y: int) -> None:
    print(f"{x} + {y} = {x + y}", flush=True)


def call(name: str, **arguments: object) -> Item:
    return Item(json.dumps(arguments), kind=name)


async def work(item) -> None:
    function = TASKS[item.kind]
    await asyncio.to_thread(function, **json.loads(item.payload))


async def main() -> None:
    async with Client("127.0.0.1:4470") as client:
        await client.create_queue("tasks")
        later = Item(json.dumps({"x": 3, "y": 4}), kind="add", delay=timedelta(seconds=1))
        await client.produce("tasks", call("add", x=1, y=2), later)
        async with client.consumer("tasks", idle_timeout=timedelta(seconds=3)) as consumer:
            await consumer.run(work)


asyncio.run(main())
