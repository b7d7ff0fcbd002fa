"""`python -m tests.spark_chaos [--minutes 10] [--seed N] [--rate N] [--keep DIR]`: see `make
spark-chaos`. 0 minutes: the short form, with each kind of kill once.

The last line is the summary. The exit code is 1 when a count does not balance, or the run does not
come to its end; then the nodes' directories, the archive, the checkpoints and all logs are kept.
"""

import argparse
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

# Before gRPC is loaded: drivers are started from this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import msgspec

from tests.chaos.run import new_seed
from tests.long_runs import Verdict, carry_out, say
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
    name = f"spark-chaos: seed {seed}"
    scale = Scale(asked.minutes) if asked.minutes else SHORT
    if asked.rate:
        scale = msgspec.structs.replace(scale, rate=asked.rate)

    def run(home: Path) -> Coroutine[Any, Any, Outcome]:
        say(f"{name}, {asked.minutes:g} min, in {home}")
        return chaos(home, scale, seed, say)

    return carry_out(
        asked.keep,
        f"querator-spark-chaos-{seed}-",
        run,
        lambda outcome: Verdict(bool(outcome.problems), told(outcome), outcome.summary()),
        failed=f"spark-chaos: WRONG: seed {seed}: the run failed",
        kept=lambda _: [f"another run: make spark-chaos MINUTES={asked.minutes:g} SEED={seed}"],
    )


def told(outcome: Outcome) -> list[str]:
    """The problems, and the errors that producers received."""
    lines = [f"error: {error}" for error in outcome.errors[:ERRORS_TOLD]]
    return lines + [f"WRONG: {sentence}" for sentence in outcome.problems]


if __name__ == "__main__":
    sys.exit(main())
