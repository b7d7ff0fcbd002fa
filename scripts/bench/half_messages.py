"""A node's memory under clients that send half of a message each.

    python -m scripts.bench.half_messages [CONNECTIONS] [KIB]

Starts a node in memory on loopback, opens the connections, and on each begins a Produce whose
message is announced with 8 MiB. It sends KIB of that, as far as the windows allow, and stops. Shows
the resident memory of the node before and at its highest, how many connections the node took, and
how many bytes it accepted. HTTP/2 is written by hand (RFC 9113, RFC 7541), because a client library
would not stop in the middle.
"""

import asyncio
import signal
import struct
import sys
import time
from pathlib import Path

import msgspec

PATH = b"/querator.v1.QueueService/Produce"
MESSAGE_BYTES = 8 * 1024 * 1024
FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535
SECONDS_MAX = 60.0
STILL_S = 5
"""After this long without a sent byte, the node has ended the connections that it will end."""
CONNECT_AT_ONCE_MAX = 64


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def headers() -> bytes:
    """A block of literal fields without indexing."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PATH),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    return b"".join(
        b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value
        for name, value in fields
    )


class Half:
    """One connection with half of a message. `sent` counts the bytes of the message."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0
        self.refused = False
        self._connection = self._stream = WINDOW_BYTES

    async def run(self, port: int, room: asyncio.Semaphore) -> None:
        """Runs until it is cancelled, or the node ends the connection."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with room:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
                writer.write(frame(1, 0x4, 1, headers()))
                self._send(writer, b"\x00" + struct.pack(">I", MESSAGE_BYTES))
                await self._step(reader, writer)
            while True:
                await self._step(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            self.refused = True
        finally:
            if writer is not None:
                writer.close()

    async def _step(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
        if kind == 4 and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:
                    self._stream += value - WINDOW_BYTES
            writer.write(frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            writer.write(frame(6, 1, 0, payload))
        elif kind == 8:
            more = int.from_bytes(payload, "big")
            if stream:
                self._stream += more
            else:
                self._connection += more
        elif kind in (3, 7):
            raise ConnectionResetError
        while (left := min(self.size - self.sent, self._stream, self._connection)) > 0:
            self._send(writer, bytes(min(left, FRAME_BYTES)))
        await writer.drain()

    def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(frame(0, 0, 1, data))
        self.sent += len(data)
        self._stream -= len(data)
        self._connection -= len(data)


def resident_mib(pid: int, name: str) -> float:
    """Resident memory by its name in /proc: VmRSS at present, VmHWM at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("a process has resident memory")


async def started() -> tuple[asyncio.subprocess.Process, int]:
    """A node in memory, and its port."""
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "serve", "--memory", "--new",
        "--listen", "127.0.0.1:0", "--listen-admin", "127.0.0.1:0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert node.stdout is not None
    async for line in node.stdout:
        text = line.decode()
        if "grpc.listening" in text:
            return node, int(msgspec.json.decode(text)["address"].rpartition(":")[2])
    raise RuntimeError("the node did not start")


async def measured(connections: int, size: int) -> dict[str, float]:
    node, port = await started()
    try:
        before_mib = resident_mib(node.pid, "VmRSS")
        room = asyncio.Semaphore(CONNECT_AT_ONCE_MAX)
        halves = [Half(size) for _ in range(connections)]
        sent, still = -1, 0
        until_s = time.monotonic() + SECONDS_MAX
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(half.run(port, room)) for half in halves]
            while time.monotonic() < until_s:
                await asyncio.sleep(1.0)
                now = sum(half.sent for half in halves)
                still = still + 1 if now == sent else 0
                if still == STILL_S:
                    break
                sent = now
            for task in tasks:
                task.cancel()
        return {
            "connections": connections,
            "taken": sum(not half.refused for half in halves),
            "accepted_mib": sum(half.sent for half in halves if not half.refused) / 2**20,
            "before_mib": before_mib,
            "highest_mib": resident_mib(node.pid, "VmHWM"),
        }
    finally:
        node.send_signal(signal.SIGTERM)
        await node.wait()


def main() -> None:
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    kib = int(sys.argv[2]) if len(sys.argv) > 2 else 512
    for name, value in asyncio.run(measured(connections, kib * 1024)).items():
        print(f"{name:14} {value:8.0f}")


if __name__ == "__main__":
    main()
