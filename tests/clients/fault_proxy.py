"""A TCP proxy on loopback that fails as networks do: it cuts connections, swallows bytes in flight
in one direction or both, delays them, and limits their rate.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

_CHUNK = 64 * 1024
_CHUNKS_MAX = 64
"""Chunks in flight in one direction of one connection; beyond this the sender is not read."""


class Way:
    """One direction of all connections of a proxy."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        """Delay of the bytes that are read from now on."""
        self.bytes_per_s = 0.0
        """Rate of each connection; 0: unlimited."""
        self._open = asyncio.Event()
        self._open.set()

    def block(self) -> None:
        """Bytes that are sent wait, and are lost with their connection."""
        self._open.clear()

    def unblock(self) -> None:
        self._open.set()

    @property
    def blocked(self) -> bool:
        return not self._open.is_set()

    def heal(self) -> None:
        """Ends all faults of the direction."""
        self.delay_s = self.bytes_per_s = 0.0
        self.unblock()

    async def forward(self, chunks: "asyncio.Queue[_Chunk]", writer: asyncio.StreamWriter) -> None:
        """Forwards until the chunk without data. Raises OSError when the connection is cut."""
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await chunks.get()
            await asyncio.sleep(due_s - loop.time())
            await self._open.wait()
            if not data:
                writer.write_eof()
                return
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)
                await self._open.wait()
            writer.write(data)
            await writer.drain()


_Chunk = tuple[float, bytes]
"""(not before, data)."""


class FaultProxy:
    """Forwards to `target` (host:port). Its own `address` stays the same whatever happens."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.connections = 0
        self.forth = Way()
        """From the connecting side to the target."""
        self.back = Way()
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
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
            proxy.heal()
            server.close()
            proxy.cut()
            await server.wait_closed()
            await asyncio.gather(*proxy._serving, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection; bytes in flight are lost."""
        for writer in list(self._open):
            writer.transport.abort()

    def heal(self) -> None:
        """From now on everything gets through, at once. Bytes that were held back are sent."""
        self.forth.heal()
        self.back.heal()

    def hold_answers(self) -> None:
        """Requests still arrive; answers wait, and are lost with the connection."""
        self.back.block()

    def resume_answers(self) -> None:
        self.back.unblock()

    def cut_after(self, sent_bytes: int) -> None:
        """Cuts after the clients have sent `sent_bytes` more, wherever that is in a message."""
        self._cut_after = sent_bytes

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        # Owned: `to` awaits it.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        with suppress(OSError):
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
            both = {writer, upstream_writer}
            self._open |= both
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._carry(self.forth, reader, upstream_writer, both))
                    tasks.create_task(self._carry(self.back, upstream_reader, writer, both))
            finally:
                self._open -= both
                upstream_writer.transport.abort()
        writer.transport.abort()

    async def _carry(
        self,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
    ) -> None:
        """Carries one direction of one connection, to its end. A cut ends both sides in `both`."""
        chunks: asyncio.Queue[_Chunk] = asyncio.Queue(_CHUNKS_MAX)
        try:
            async with asyncio.TaskGroup() as tasks:
                forwarding = tasks.create_task(way.forward(chunks, writer))
                await self._read(way, reader, chunks)
                await forwarding
        except* OSError:
            for end in both:
                end.transport.abort()

    async def _read(
        self, way: Way, reader: asyncio.StreamReader, chunks: "asyncio.Queue[_Chunk]"
    ) -> None:
        loop = asyncio.get_running_loop()
        data = b" "
        while data:
            data = await reader.read(_CHUNK)
            if way is self.forth and self._cut_after is not None:
                self._cut_after -= len(data)
                if self._cut_after <= 0:
                    self._cut_after = None
                    self.cut()
                    raise ConnectionAbortedError
            await chunks.put((loop.time() + way.delay_s, data))
