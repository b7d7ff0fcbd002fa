"""Code blocks of the pages of docs/, and a reader that saves and runs them as the page says.

A block whose title is the name of a file is saved. Addresses of loopback in what the reader copies
become free ports, so that tests beside each other do not collide.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from querator.cli.demo.local_nodes import free_ports

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
READY: Final = "querator ready"
PATIENCE_S: Final = 500

_FENCE: Final = re.compile(r"```\{?\.?(?P<language>\w*)(?P<rest>[^\n]*)$")
_INCLUDE: Final = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)
_ADDRESS: Final = re.compile(r"127\.0\.0\.1:(44[0-9]{2})\b")


class PageBlock(NamedTuple):
    section: str
    language: str
    title: str
    text: str

    @property
    def is_file(self) -> bool:
        return self.title.endswith((".py", ".sh", ".toml"))


def page_blocks(page: Path) -> list[PageBlock]:
    """The code blocks of a page, with the files that they include."""
    found: list[PageBlock] = []
    section, language, title = "", "", ""
    lines: list[str] | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if lines is not None and line == "```":
            text = _INCLUDE.sub(lambda match: (DOCS / match[1]).read_text(), "\n".join(lines))
            found.append(PageBlock(section, language, title, text))
            lines = None
        elif lines is not None:
            lines.append(line)
        elif fence is not None:
            named = re.search(r'title="([^"]*)"', fence["rest"])
            language, title, lines = fence["language"], named[1] if named else "", []
        elif line.startswith("#"):
            section = line.lstrip("# ")
    assert lines is None, f"{page}: a block has no end"
    return found


class PageReader:
    """Runs what a page says, in `home`, with the commands of this environment."""

    def __init__(self, home: Path) -> None:
        self.home = home
        names = [str(port + client) for client in (4470, 4480, 4490) for port in (0, 1, 2)]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "QUERATOR_LISTEN": self.copied("127.0.0.1:4470"),
            "QUERATOR_LISTEN_ADMIN": self.copied("127.0.0.1:4471"),
            "QUERATOR_ADDRESS": self.copied("127.0.0.1:4470"),
        }

    def copied(self, text: str) -> str:
        return _ADDRESS.sub(lambda match: f"127.0.0.1:{self._ports[match[1]]}", text)

    def save(self, block: PageBlock) -> None:
        (self.home / block.title).write_text(self.copied(block.text))

    async def start(self, commands: str) -> "Running":
        text = self.copied(commands)
        for name, value in re.findall(r"^export (\w+)=(\S+)", text, re.MULTILINE):
            self.environment[name] = value
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            text,
            cwd=self.home,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        return Running(process)

    async def run(self, commands: str) -> str:
        """Returns the output of commands that must succeed."""
        running = await self.start(commands)
        try:
            return await running.end()
        finally:
            await running.stop()

    @asynccontextmanager
    async def terminal(self, commands: str, *, ready: int = 1) -> AsyncIterator[None]:
        """Runs commands until the end of the block; begins when `ready` nodes are ready."""
        running = await self.start(commands)
        try:
            await running.until(READY, times=ready)
            yield
        finally:
            await running.stop()


class Running:
    """Commands that run, and their output so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = ""

    async def until(self, words: str, *, times: int = 1) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while self.output.count(words) < times:
                line = await self._process.stdout.readline()
                assert line, f"ended before {words!r}:\n{self.output}"
                self.output += line.decode()

    async def end(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            self.output += (await self._process.stdout.read()).decode()
            code = await self._process.wait()
        assert code == 0, f"exit code {code}:\n{self.output}"
        return self.output

    async def kill(self) -> None:
        """kill -9."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """Ctrl-C, if they run, and kill -9 if that does not end them."""
        self._signal(signal.SIGINT)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._process.communicate()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()
            raise

    def _signal(self, number: signal.Signals) -> None:
        """To the whole session, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
