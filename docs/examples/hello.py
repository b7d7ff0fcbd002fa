import asyncio

from querator import Client


async def main():
    async with Client("127.0.0.1:4470") as client:
        await client.create_queue("mail")
        await client.produce("mail", b"hello")  # returns when it is on disk
        async with client.consumer("mail") as consumer:
            async for item in consumer:
                print(item.payload)
                await item.complete()
                break


asyncio.run(main())
