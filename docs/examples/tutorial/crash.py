import asyncio
import os
import signal
from datetime import timedelta

from querator import Client


async def main():
    async with Client("127.0.0.1:4470") as client:
        (item,) = await client.lease("mail", wait=timedelta(seconds=5))
        print(f"leased {item.payload.decode()}, attempt {item.attempt}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main())
