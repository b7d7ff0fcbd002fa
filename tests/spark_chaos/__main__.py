"""`python -m tests.spark_chaos [--minutes 10] [--seed N] [--rate N] [--keep DIR]`: see `make
spark-chaos`. 0 minutes: the short form, with each sort of kill once.

The last line is the summary. The exit code is 1 when anything does not balance, or does not come
to its end; then the nodes' directories, the archive, the checkpoints and all logs are kept.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

# Before gRPC is loaded: drivers are started from this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import msgspec

from tests.chaos.run import new_seed
from tests.spark_chaos.run import SHORT, Outcome, Scale, chaos

ERRORS_TOLD = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark_chaos")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, help="items a second, into each of two queues")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    seed = asked.seed or new_seed()
    home = asked.keep or Path(tempfile.mkdtemp(prefix=f"querator-spark-chaos-{seed}-"))
    home.mkdir(parents=True, exist_ok=True)
    say(f"spark-chaos: seed {seed}, {asked.minutes:g} min, in {home}")
    code = 1
    summary = f"spark-chaos: WRONG: seed {seed}: the run failed"
    try:
        scale = Scale(asked.minutes) if asked.minutes else SHORT
        if asked.rate:
            scale = msgspec.structs.replace(scale, rate=asked.rate)
        outcome = asyncio.run(chaos(home, scale, seed, say))
    except Exception:  # noqa: BLE001 - the top: whatever it is, the directories are kept
        say(traceback.format_exc())
    else:
        for line in told(outcome):
            say(line)
        summary = outcome.summary()
        code = 1 if outcome.problems else 0
    if code:
        say(f"kept: {home}; another run: make spark-chaos MINUTES={asked.minutes:g} SEED={seed}")
    elif asked.keep is None:
        shutil.rmtree(home)
    say(summary)
    return code


def told(outcome: Outcome) -> list[str]:
    """What is wrong, and what producers were told."""
    lines = [f"error: {error}" for error in outcome.errors[:ERRORS_TOLD]]
    return lines + [f"WRONG: {sentence}" for sentence in outcome.problems]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
