import asyncio
from datetime import timedelta

from querator import Client

LEASE = timedelta(seconds=3)


async def serve(name, leads):
    """A program that is ready to take over. In a real service each runs on its own machine."""
    async with Client("127.0.0.1:4470") as client:
        async with client.election("scheduler", name, lease_timeout=LEASE) as leadership:
            leads.set()
            for tick in (1, 2, 3):
                leadership.check()
                print(f"{name} leads: tick {tick}", flush=True)
                await asyncio.sleep(0.5)


async def main():
    first, second = asyncio.Event(), asyncio.Event()
    async with Client("127.0.0.1:4470") as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve("host-1", first))
        await first.wait()
        leader = await client.election("scheduler").leader()
        print("seen by others:", leader.holder, flush=True)
        tasks.create_task(serve("host-2", second))


asyncio.run(main())
