import asyncio

from querator.durable import durable, saga, step
from querator.local import Local


class Declined(Exception):
    pass


@step
async def book(what: str) -> None:
    print("book", what)


@step
async def cancel(what: str) -> None:
    print("cancel", what)


@step
async def pay(euros: int) -> None:
    if euros > 500:
        raise Declined(f"{euros} euros are too much")
    print("pay", euros)


@durable
async def trip(euros: int) -> str:
    async with saga() as undo:
        for what in ("flight", "hotel"):
            undo.add(cancel, what)
            await book(what)
        await pay(euros)
    return "have a good trip"


async def main() -> None:
    async with Local("./trips", [trip], errors=[Declined]) as local:
        print(await local.run(trip, 300, id="rome"))
        try:
            await local.run(trip, 900, id="tokyo")
        except Declined as error:
            print("no trip:", error)


if __name__ == "__main__":
    asyncio.run(main())
