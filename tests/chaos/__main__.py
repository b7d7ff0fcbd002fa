"""`python -m tests.chaos [--minutes 5] [--seed N] [--keep DIR]`: see `make chaos`.

The last line is the summary. When a check fails, the nodes' directories, their logs and the history
are kept, and the command that checks the history again is printed. Exit code 1 for violations and
for nodes that did not come to rest, 2 for what the checkers could not decide.
"""

import argparse
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.chaos.run import Run, chaos, new_seed
from tests.long_runs import Verdict, carry_out, say


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    seed = asked.seed or new_seed()

    def run(home: Path) -> Coroutine[Any, Any, Run]:
        say(f"chaos: seed {seed}, {asked.minutes:g} min, in {home}")
        return chaos(home, minutes=asked.minutes, seed=seed)

    def judge(run: Run) -> Verdict:
        code = 1 if run.report.violations else 2 if run.report.undecided else 0
        return Verdict(code, run.report.lines(), run.summary())

    return carry_out(
        asked.keep,
        f"querator-chaos-{seed}-",
        run,
        judge,
        failed=f"chaos: seed {seed}: the run failed",
        kept=lambda home: [
            f"check the history again: python -m tests.checkers {home}/history",
            f"another run: make chaos MINUTES={asked.minutes:g} SEED={seed}",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
