"""An order with a saga, a retry, an approval and a called durable function."""

import asyncio
from datetime import timedelta

from querator.durable import Retry, current, durable, promise, saga, sleep, step
from querator.local import Local


class Declined(Exception):
    pass


@step(effects=False)
async def price(sku: str) -> int:
    return len(sku)


@step
async def reserve(order: str) -> None:
    print("reserve", order)


@step
async def release(order: str) -> None:
    print("release", order)


@step(retry=Retry(attempts=8, first=timedelta(milliseconds=100), unless=(Declined,)))
async def charge(order: str, total: int) -> str:
    if total > 20:
        raise Declined(f"{total} is too much")
    if current().attempt == 1:
        raise ConnectionError("the bank does not answer")
    print("charge", total, "at attempt", current().attempt)
    return f"receipt of {order}"


@step
async def ask(order: str, token: str) -> None:
    print("ask about", order)
    await tokens.put(token)


@durable
async def pack(order: str) -> str:
    await sleep(0.1)
    return f"parcel of {order}"


@durable
async def checkout(order: str, skus: list[str]) -> str:
    prices = await asyncio.gather(*(price(sku) for sku in skus))
    async with saga() as undo:
        undo.add(release, order)
        await reserve(order)
        receipt = await charge(order, sum(prices))
    approval = promise(bool)
    await ask(order, approval.token)
    async with asyncio.timeout(7 * 86_400):
        approved = await approval
    return f"{receipt}, {await pack(order)}" if approved else "not approved"


tokens: asyncio.Queue[str] = asyncio.Queue()


async def main() -> None:
    async with Local("./shop", [checkout, pack], errors=[Declined]) as local:
        order = await local.start(checkout, "order-17", ["book", "pen"], id="order-17")
        await local.executions.resolve(await tokens.get(), True)
        print(await order.result(timeout=timedelta(minutes=1)))
        try:
            await local.run(checkout, "order-18", ["a very long encyclopedia"], id="order-18")
        except Declined as error:
            print("declined:", error)


if __name__ == "__main__":
    asyncio.run(main())
