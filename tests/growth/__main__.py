"""`python -m tests.growth [--short] [--rate N] [--keep DIR]`: see `make grow`.

The last line is the summary. The exit code is 1 when a count does not balance, when a step does not
come to its end, or when the run takes longer than 8 minutes in all. Then the nodes' directories and
logs are kept.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from tests.growth.books import ERRORS_TOLD
from tests.growth.run import FULL, SHORT, Outcome, grow
from tests.long_runs import Verdict, carry_out, say


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.growth")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rate", type=float, help="flights a second")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    scale = SHORT if asked.short else FULL
    if asked.rate:
        scale = msgspec.structs.replace(scale, rate=asked.rate)
    return carry_out(
        asked.keep,
        "querator-grow-",
        lambda home: grow(home, scale, say),
        lambda outcome: Verdict(bool(outcome.problems), told(outcome), outcome.summary()),
        failed="grow: WRONG: the run failed",
    )


def told(outcome: Outcome) -> list[str]:
    """The counts by rounds, and the problems."""
    lines = [
        f"round {one.number:3}: {one.acknowledged:,} produced, {one.completed.count:,} completed, "
        f"lost {one.lost}, duplicated {one.completed.repeated}, delivered again {one.again}"
        f"{'' if one.balances else '  DOES NOT BALANCE'}"
        for one in outcome.books.rounds
    ]
    lines += [f"WRONG: {problem}" for problem in outcome.problems]
    return lines + outcome.books.errors[:ERRORS_TOLD]


if __name__ == "__main__":
    sys.exit(main())
