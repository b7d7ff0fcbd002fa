import asyncio
from datetime import timedelta

from querator import Client


async def send(item):
    letter = item.json()
    print(f"to {letter['to']}, attempt {item.attempt}", flush=True)


async def main():
    async with (
        Client("127.0.0.1:4470") as client,
        client.consumer("mail", idle_timeout=timedelta(seconds=7)) as consumer,
    ):
        await consumer.run(send)


asyncio.run(main())
