"""The process of a Spark program: its output is read, it is restarted after its death, and no
process of it remains.
"""

import asyncio
import sys
from pathlib import Path

import pytest

from querator.cli.shared.failures import Failure
from querator.cli.spark.driver import STARTS_MAX, SparkDriver

COUNTS = """
import pathlib, subprocess, sys, time
starts = pathlib.Path(sys.argv[1], "starts")
starts.open("a").write("x")
number = len(starts.read_text())
"""
"""Code that computes `number`, the number of this start, from 1."""
WAITS_ONCE = f"{COUNTS}print(f'start {{number}}', flush=True)\nif number == 1: time.sleep(600)\n"
FORKS = f"""{COUNTS}
sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", "pyspark.worker"]
workers = [subprocess.Popen(sleep, stdout=subprocess.PIPE) for _ in range(2)]
for worker in workers:
    worker.stdout.readline()
print(*(worker.pid for worker in workers), flush=True)
ended = workers[1].wait()
workers[0].kill()
workers[0].wait()
print(ended, flush=True)
"""
"""A program that prints the process ids of its workers when both run: a process that has just
started has no command line for a moment.
"""


class Run:
    """A driver of a program, and its output lines. `on_line` is called after each line."""

    def __init__(self, home: Path, program: str) -> None:
        self.lines: list[str] = []
        self.log = home / "log"
        self.driver = SparkDriver([sys.executable, "-c", program, str(home)], self.log, self.hear)

    def hear(self, line: bytes) -> None:
        self.lines.append(line.decode().strip())
        self.on_line()

    def on_line(self) -> None:
        pass


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_program_that_is_killed_is_started_again(tmp_path: Path):
    class Killing(Run):
        def on_line(self) -> None:
            if len(self.lines) == 1:
                self.driver.kill()

    run = Killing(tmp_path, WAITS_ONCE)
    await run.driver.run()
    assert run.lines == ["start 1", "start 2"]


async def test_a_killed_worker_is_one_that_runs_tasks(tmp_path: Path):
    class Killing(Run):
        killed = 0

        def on_line(self) -> None:
            if len(self.lines) == 1:
                self.killed = self.driver.kill_worker()

    run = Killing(tmp_path, FORKS)
    await run.driver.run()
    assert run.killed == int(run.lines[0].split()[1])
    assert run.lines[1:] == ["-9"]
    assert run.driver.kill_worker() == 0


async def test_a_killed_program_leaves_no_worker(tmp_path: Path):
    class Killing(Run):
        def on_line(self) -> None:
            self.driver.kill()

    run = Killing(tmp_path, FORKS)
    with pytest.raises(Failure, match="The driver was killed"):
        await run.driver.run()
    assert len(run.lines) == STARTS_MAX
    # A killed process may take a moment to end.
    while any(is_running(int(pid)) for line in run.lines for pid in line.split()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_program_that_fails_at_once_is_not_tried_again(tmp_path: Path):
    run = Run(tmp_path, f"{COUNTS}sys.exit('there is no Java')")
    with pytest.raises(Failure) as caught:
        await run.driver.run()
    said = str(caught.value)
    assert said.startswith(f"The driver ended with exit code 1; see {run.log}. It said:")
    assert said.endswith("there is no Java")
    assert (tmp_path / "starts").read_text() == "x"


async def test_of_a_log_the_last_error_of_querator_is_shown(tmp_path: Path):
    log = """
Traceback (most recent call last):
  File "driver.py", line 1, in main
querator.spark.pipelines.failures.PipelineFailed: file in.csv cannot be read
Exception in thread Thread-7:
BrokenPipeError: [Errno 32] Broken pipe
"""
    run = Run(tmp_path, f"{COUNTS}sys.exit({log!r})")
    with pytest.raises(Failure) as caught:
        await run.driver.run()
    assert str(caught.value).endswith("It said:\nfile in.csv cannot be read")


async def test_an_error_of_an_earlier_start_is_not_shown(tmp_path: Path):
    program = f"""{COUNTS}print(flush=True)
sys.exit("querator.spark.rpc.Unreachable: first" if number == 1 else "no memory")
"""
    run = Run(tmp_path, program)
    with pytest.raises(Failure) as caught:
        await run.driver.run()
    assert str(caught.value).endswith("It said:\nno memory")
