"""`python -m tests.stalls [--times 5] [--kind KIND …] [--rate N] [--keep DIR]`: see `make stalls`.

Prints a table. The exit code is 1 when an acknowledged item was lost or doubled, or a client saw an
error. A missed goal is reported in the table.
"""

import argparse
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.long_runs import Verdict, carry_out, say
from tests.stalls.run import GOALS_S, Result, as_markdown, stalls

KINDS = [*GOALS_S, "slow links", "flapping"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stalls")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--rate", type=float, default=200, help="items per second")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()

    def run(home: Path) -> Coroutine[Any, Any, Result]:
        return stalls(home, asked.kind or KINDS, asked.times, asked.rate, say)

    def judge(result: Result) -> Verdict:
        lines = [as_markdown(result), *(f"WRONG: {problem}" for problem in result.problems)]
        summary = f"stalls: {len(result.stalls)} faults, {len(result.problems)} problems"
        return Verdict(bool(result.problems), [*lines, *result.errors[:20]], summary)

    return carry_out(asked.keep, "querator-stalls-", run, judge, failed="stalls: the run failed")


if __name__ == "__main__":
    sys.exit(main())
