import asyncio

from querator.durable import durable, step
from querator.local import Local


@step
async def reserve(order: str) -> str:
    print("reserve", order, flush=True)
    return "shelf 3"


@step
async def charge(order: str) -> int:
    print("charge", order, flush=True)
    await asyncio.sleep(5)  # the bank is slow: time to kill the program
    return 42


@step
async def send(order: str, place: str) -> None:
    print("send", order, "from", place, flush=True)


@durable
async def checkout(order: str) -> str:
    place = await reserve(order)
    euros = await charge(order)
    await send(order, place)
    return f"{order} for {euros} euros"


async def main() -> None:
    async with Local("./shop", [checkout]) as local:
        print(await local.run(checkout, "order-17", id="order-17"))


if __name__ == "__main__":
    asyncio.run(main())
