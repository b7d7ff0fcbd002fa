import asyncio
from datetime import timedelta

from querator import Client


async def main():
    async with Client("127.0.0.1:4470") as client:
        await client.create_queue("hello-dead")
        await client.create_queue("hello", max_attempts=5, dead_queue="hello-dead")
        await client.produce("hello", b"fine", b"busy", b"broken")
        async with client.consumer(
            "hello", prefetch_items=10, idle_timeout=timedelta(seconds=3)
        ) as consumer:
            async for item in consumer:
                if item.payload == b"broken":
                    await item.reject("broken")  # basic.nack(requeue=False)
                elif item.payload == b"busy" and item.attempt == 1:
                    await item.retry(delay=timedelta(seconds=1))  # basic.nack(requeue=True)
                else:
                    await item.complete()  # basic.ack
                    print("done:", item.payload.decode(), flush=True)
        (letter,) = [letter async for letter in client.dead_letters("hello")]
        print(
            "dead:", letter.item.payload.decode(), "because", *letter.dead_letter.errors, flush=True
        )


asyncio.run(main())
