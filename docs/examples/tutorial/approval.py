import asyncio
from pathlib import Path

from querator.durable import call, durable, promise
from querator.local import Local


def ask(what: str, token: str) -> None:
    Path("token.txt").write_text(token)  # stands for a mail with a link
    print(f"may I? {what}", flush=True)


@durable
async def purchase(what: str) -> str:
    approval = promise(bool)
    await call(ask, what, approval.token)
    async with asyncio.timeout(7 * 86_400):
        approved = await approval
    return f"{what}: {'bought' if approved else 'refused'}"


async def main() -> None:
    async with Local("./purchases", [purchase], listen="127.0.0.1:4470") as local:
        print(await local.run(purchase, "a piano", id="piano"))


if __name__ == "__main__":
    asyncio.run(main())
