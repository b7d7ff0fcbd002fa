"""A program for tests of locks: it holds a lock and writes to a store that compares fencing tokens.

    python -m tests.integration.lock_holder ADDRESSES STORE NAME

It prints "held TOKEN", then waits for lines on its standard input:

    write   writes although nothing was checked, as a program that was paused between the check and
            the write; prints "accepted" or "refused"
    check   prints "held" or "lost"
    end     releases the lock; prints "released" or "lost"
"""

import asyncio
import sqlite3
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from querator import Client, Holding
from querator.errors import LockLost

LEASE = timedelta(seconds=4)


def make_store(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("CREATE TABLE fence (token INTEGER NOT NULL)")
        store.execute("INSERT INTO fence VALUES (0)")
        store.execute("CREATE TABLE written (token INTEGER NOT NULL, writer TEXT NOT NULL)")


def write(path: str | Path, token: int, writer: str) -> bool:
    """Writes, unless the store has seen a higher token. Returns whether it has written."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as store:
        store.execute("BEGIN IMMEDIATE")
        fenced = store.execute("UPDATE fence SET token = ? WHERE token <= ?", (token, token))
        accepted = fenced.rowcount == 1
        if accepted:
            store.execute("INSERT INTO written VALUES (?, ?)", (token, writer))
        store.execute("COMMIT")
    return accepted


def written(path: Path) -> list[tuple[int, str]]:
    """What was accepted, in its order."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as store:
        return store.execute("SELECT token, writer FROM written ORDER BY rowid").fetchall()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def answer(lines: asyncio.StreamReader, holding: Holding, store: str, name: str) -> None:
    while line := (await lines.readline()).decode().strip():
        if line == "write":
            accepted = await asyncio.to_thread(write, store, holding.token, name)
            say("accepted" if accepted else "refused")
        elif line == "check":
            say("held" if holding.held else "lost")
        else:
            try:
                await holding.release()
            except LockLost:
                say("lost")
            else:
                say("released")
            return


async def main(addresses: str, store: str, name: str) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Client(addresses, client_id=name, request_timeout=timedelta(minutes=1)) as client:
        holding = await client.lock("store", lease_timeout=LEASE).acquire()
        say(f"held {holding.token}")
        await answer(lines, holding, store, name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
