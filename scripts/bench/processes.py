"""CPU time of processes, by kind: nodes, Python, the JVM."""

import os
from pathlib import Path

import msgspec

from scripts.bench.servers import CLOCK_TICKS


class Spent(msgspec.Struct, frozen=True):
    """CPU seconds of the nodes, of Python (this process, and Spark's workers) and of the JVM."""

    node: float = 0.0
    python: float = 0.0
    jvm: float = 0.0

    def since(self, before: "Spent") -> "Spent":
        return Spent(self.node - before.node, self.python - before.python, self.jvm - before.jvm)


def spent() -> Spent:
    """CPU seconds of this process and all below it, including those that have ended."""
    children, seconds = _processes()
    node = python = jvm = 0.0
    found = [os.getpid()]
    while found:
        pid = found.pop()
        own, of_ended = seconds.get(pid, (0.0, 0.0))
        below = children.get(pid, [])
        command = _command(pid)
        if b"serve" in command:
            node += own + of_ended
            continue
        found += below
        if Path(os.fsdecode(command[0] if command else b"")).name == "java":
            jvm += own
            python += of_ended
        else:
            python += own + of_ended
    return Spent(node, python, jvm)


def _processes() -> tuple[dict[int, list[int]], dict[int, tuple[float, float]]]:
    """Children of each process, and the seconds of itself and of its children that have ended."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, tuple[float, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except OSError:
            # The process has ended.
            continue
        fields = tail.split()
        pid = int(head.split()[0])
        children.setdefault(int(fields[1]), []).append(pid)
        user, system, user_ended, system_ended = (int(each) / CLOCK_TICKS for each in fields[11:15])
        seconds[pid] = user + system, user_ended + system_ended
    return children, seconds


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
