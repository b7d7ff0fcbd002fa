"""`make cluster`: the script behind it, and the commands that it prints."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from querator.cli.demo.local_nodes import free_ports

ROOT = Path(__file__).parents[2]
OFFSETS = (0, 1, 2, 10, 11, 12, 20, 21, 22)


def free_base() -> int:
    """The lowest of nine ports, with the distances of the script, that are free."""
    while True:
        (base,) = free_ports(1)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            for offset in OFFSETS:
                held.enter_context(socket.create_server(("127.0.0.1", base + offset)))
            return base


@asynccontextmanager
async def script(home: Path, base: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        str(ROOT / "cluster" / "local" / "run"),
        str(home),
        env={**os.environ, "PORT_BASE": base},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.communicate()


async def shell(command: str, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, f"{command}: {err.decode()}"
    return out.decode()


async def test_the_printed_commands_work(tmp_path: Path):
    base = free_base()
    commands: list[str] = []
    async with script(tmp_path / "data", str(base)) as process:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            async for line in process.stdout:
                if line.startswith(b"  .venv/bin/querator "):
                    commands.append(line.decode().strip())
                if line.startswith(b"Ctrl-C ends them"):
                    break
        assert len(commands) == 4
        address = {"QUERATOR_ADDRESS": f"127.0.0.1:{base}"}
        async with asyncio.timeout(60):
            told = [await shell(command, address) for command in commands]
        assert "All is well" in told[0]
        assert told[-1] == "hello\n"


async def test_a_port_that_is_in_use_leads_to_other_ports(tmp_path: Path):
    base = free_base()
    with socket.create_server(("127.0.0.1", base + 11)):
        async with script(tmp_path / "data", str(base)) as process:
            out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert f"port {base + 11} is in use" in err.decode()
    assert "PORT_BASE=" in err.decode()
    assert not (tmp_path / "data").exists()


async def test_a_base_that_is_no_port(tmp_path: Path):
    for base in ("abc", "0", "65514", "-1"):
        async with script(tmp_path / "data", base) as process:
            _, err = await process.communicate()
        assert process.returncode == 2
        assert err.decode() == f"PORT_BASE is '{base}'; write a number from 1 to 65513\n"
