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
                await asyncio.sleep(0.1)


async def main():
    async with asyncio.TaskGroup() as tasks:
        first, second = asyncio.Event(), asyncio.Event()
        tasks.create_task(serve("host-1", first))
        await first.wait()
        tasks.create_task(serve("host-2", second))
        async with Client("127.0.0.1:4470") as client:
            leader = await client.election("scheduler").leader()
            print("seen by others:", leader.holder, flush=True)


asyncio.run(main())
