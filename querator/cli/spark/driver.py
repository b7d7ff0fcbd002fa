"""A Spark program as a child process, which may be killed and is started again."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from querator.cli.shared.failures import Failure
from querator.cli.shared.output import note

STARTS_MAX = 5
"""On a very busy machine Spark programs fail now and then: Spark waits 10 s for a worker."""
_LINES_SHOWN = 10
_OURS = re.compile(r"^querator(?:\.\w+)+: (.+)$", re.MULTILINE)
"""The end of a traceback of an error of Querator. Lines of Spark and of its workers, which lose
their connections when the driver ends, may follow.
"""
_LINE_BYTES = 1024 * 1024
_WORKER = b"pyspark.worker"
"""Part of the command line of the processes that run an executor's tasks."""


class SparkDriver:
    """`run` starts the program again until it succeeds; the program continues at its last
    position.
    """

    def __init__(self, command: Sequence[str], log: Path, hear: Callable[[bytes], None]) -> None:
        """`hear` gets each line of the program's standard output; standard error goes to `log`."""
        self._command = list(command)
        self._log = log
        self._hear = hear
        self._process: asyncio.subprocess.Process | None = None
        self._told = False
        self._begins = 0
        """Where the log of this start begins."""

    async def run(self) -> None:
        """Runs the program. Raises Failure when it fails too often, or before its first message. No
        process is left behind.
        """
        for start in range(1, STARTS_MAX + 1):
            code = await self._run_once()
            if code == 0:
                return
            how = "was killed" if code == -signal.SIGKILL else f"ended with exit code {code}"
            if start == STARTS_MAX or not self._told:
                raise Failure(f"The driver {how}; see {self._log}. It said:\n{self._last_words()}")
            note(f"The driver {how}. It is started again, and continues where it was.")

    def _last_words(self) -> str:
        """The last error of Querator; without one the last lines."""
        said = self._log.read_bytes()[self._begins :].decode(errors="replace")
        ours = _OURS.findall(said)
        return ours[-1] if ours else "\n".join(said.splitlines()[-_LINES_SHOWN:])

    async def _run_once(self) -> int:
        with self._log.open("ab") as log:
            self._begins = log.tell()
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # A Ctrl-C reaches only this process, and Java is killed with its driver.
                start_new_session=True,
                limit=_LINE_BYTES,
            )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._told = True
                self._hear(line)
            return await process.wait()
        finally:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Sends SIGKILL to the program, to Java, which may briefly survive the program, and to all
        workers.
        """
        process = self._process
        if process is None:
            return
        workers = [pid for pid, _ in _below(process.pid)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in workers:
            # Processes that fork workers have left the group.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_worker(self) -> int:
        """Sends SIGKILL to a process in which a task may run; returns its pid, or 0 if there is
        none.
        """
        process = self._process
        if process is None or process.returncode is not None:
            return 0
        workers = [pid for pid, command in _below(process.pid) if _WORKER in command]
        # The first one forks the others.
        for pid in reversed(workers[1:]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return pid
        return 0


def _below(pid: int) -> list[tuple[int, bytes]]:
    """Descendants of a process, parents first, with their command lines; none if the system has no
    /proc.
    """
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, tail = stat.read_text().rpartition(")")
            parents.setdefault(int(tail.split()[1]), []).append(int(head.split()[0]))
    found: list[tuple[int, bytes]] = []
    left = [pid]
    while left:
        for child in sorted(parents.get(left.pop(0), ())):
            left.append(child)
            with contextlib.suppress(OSError):
                found.append((child, Path(f"/proc/{child}/cmdline").read_bytes()))
    return found
