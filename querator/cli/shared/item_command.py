"""A shell command for one item: the payload on standard input, other fields in the environment."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from querator.client import LeasedItem
from querator.model.limits import ERROR_CHARS_MAX

_READ_BYTES = 64 * 1024
_ERROR_TAIL_BYTES = 4 * ERROR_CHARS_MAX
_LAST_LINES = 5
KILL_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command. `error` is the last part of its standard error."""

    exit_code: int
    error: str


def environment(item: LeasedItem, queue: str) -> dict[str, str]:
    """This process's environment, and QUERATOR_… for the item. A NUL cannot be passed and becomes
    U+FFFD.
    """
    own: Mapping[str, str] = {
        "QUERATOR_QUEUE": queue,
        "QUERATOR_ITEM_ID": str(item.id),
        "QUERATOR_LEASE_ID": item.lease_id,
        "QUERATOR_ATTEMPT": str(item.attempt),
        "QUERATOR_KIND": item.kind,
        "QUERATOR_ENCODING": item.encoding,
        "QUERATOR_REFERENCE": item.reference,
        "QUERATOR_KEY": item.key,
        "QUERATOR_GROUP": item.group,
        "QUERATOR_ATTRIBUTES": msgspec.json.encode(dict(item.attributes)).decode(),
    }
    return {**os.environ, **{name: text.replace("\0", "�") for name, text in own.items()}}


async def run_command(command: str, item: LeasedItem, queue: str) -> Ended:
    """Runs `command` in the shell, in a session of its own: a Ctrl-C at the terminal reaches only
    this process, and all processes of the command end with it. A cancellation first ends the
    command.
    """
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        command,
        env=environment(item, queue),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    said = bytearray()
    try:
        async with asyncio.TaskGroup() as tasks:
            giving = tasks.create_task(_give(process, item.payload))
            listening = tasks.create_task(_listen(process, said))
            exit_code = await process.wait()
            _signal(process, signal.SIGTERM)
            # Processes that the command has left may hold its pipes open.
            await asyncio.wait({giving, listening}, timeout=KILL_SECONDS)
            giving.cancel()
            listening.cancel()
    finally:
        await _end(process)
    return Ended(exit_code, _last_words(said) or _how(exit_code))


async def _give(process: asyncio.subprocess.Process, payload: bytes) -> None:
    """Writes the payload. A command need not read its input."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(payload)
        await process.stdin.drain()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.close()
        await process.stdin.wait_closed()


async def _listen(process: asyncio.subprocess.Process, tail: bytearray) -> None:
    """Forwards standard error and keeps its end in `tail`."""
    assert process.stderr is not None
    while piece := await process.stderr.read(_READ_BYTES):
        sys.stderr.buffer.write(piece)
        sys.stderr.buffer.flush()
        tail += piece
        del tail[:-_ERROR_TAIL_BYTES]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the remaining processes of the command's session."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
        except TimeoutError:
            pass
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signals the command and all processes that it started, if they still run."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _last_words(said: bytearray) -> str:
    lines = said.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return "\n".join(lines)[-ERROR_CHARS_MAX:]


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
