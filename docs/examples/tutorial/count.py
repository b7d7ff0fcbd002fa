import asyncio
from datetime import timedelta

from querator import Client

NODES = ["127.0.0.1:4470", "127.0.0.1:4480", "127.0.0.1:4490"]
COUNT = 20_000


async def produce(client):
    async with client.producer("orders", ordered=False) as producer:
        for first in range(0, COUNT, 100):
            await producer.produce_many(str(first + i) for i in range(100))
            await asyncio.sleep(0.05)
            if first == COUNT // 4:
                print("a quarter is stored: kill a node now", flush=True)


async def consume(client):
    done = set()
    async with client.consumer("orders", idle_timeout=timedelta(seconds=20)) as consumer:

        async def note(item):
            done.add(int(item.payload))
            if len(done) == COUNT:
                consumer.stop()

        await consumer.run(note, concurrency=200)
    return done


async def main():
    async with Client(NODES) as client:
        await client.create_queue("orders", partitions=3)
        _, done = await asyncio.gather(produce(client), consume(client))
        stats = await client.stats("orders")
    print(f"produced {stats.total.produced}, completed {stats.total.completed}")
    print(f"missing {len(set(range(COUNT)) - done)}")


asyncio.run(main())
