"""A TCP proxy on loopback that fails as networks do: it cuts connections, and swallows answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

_CHUNK = 64 * 1024


class FaultProxy:
    """Forwards to `target` (host:port). Its own `address` stays the same whatever happens."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._cut_after: int | None = None

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str) -> AsyncIterator[Self]:
        proxy = cls(target)
        server = await asyncio.start_server(proxy._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        proxy.address = f"{host}:{port}"
        try:
            yield proxy
        finally:
            proxy.resume_answers()
            server.close()
            proxy.cut()
            await server.wait_closed()

    def cut(self) -> None:
        """Resets every connection; what was on its way is lost."""
        for writer in list(self._open):
            writer.transport.abort()

    def hold_answers(self) -> None:
        """Requests still arrive; answers wait, and are lost with the connection."""
        self._answers.clear()

    def resume_answers(self) -> None:
        self._answers.set()

    def cut_after(self, sent_bytes: int) -> None:
        """Cuts when the clients have sent so many bytes more: in the middle of whatever it is."""
        self._cut_after = sent_bytes

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = self.target.rpartition(":")
        with suppress(OSError):
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
            self._open |= {writer, upstream_writer}
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, upstream_writer, answers=False))
                tasks.create_task(self._forward(upstream_reader, writer, answers=True))
            self._open -= {writer, upstream_writer}
        writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if answers:
                    await self._answers.wait()
                elif self._cut_after is not None:
                    self._cut_after -= len(data)
                    if self._cut_after <= 0:
                        self._cut_after = None
                        self.cut()
                        return
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            # The other direction was cut.
            writer.transport.abort()
