"""`python -m tests.soak [--minutes 60] [--seed N] [--output DIR] [--keep DIR]`: see `make soak`.

Writes soak.md and soak.png. The exit code is 1 when a checker finds something, when the nodes do
not come to rest, or when the steady node has grown without a reason; then the nodes' directories,
their logs and the last history are kept.
"""

import argparse
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.chaos.run import new_seed
from tests.long_runs import Verdict, carry_out, say
from tests.soak.report import as_markdown, draw
from tests.soak.run import Soak, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("build/soak"))
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    seed = asked.seed or new_seed()
    asked.output.mkdir(parents=True, exist_ok=True)

    def run(home: Path) -> Coroutine[Any, Any, Soak]:
        say(f"soak: seed {seed}, {asked.minutes:g} min, in {home}")
        return soak(home, minutes=asked.minutes, seed=seed, say=say)

    def judge(found: Soak) -> Verdict:
        text = as_markdown(found)
        (asked.output / "soak.md").write_text(text)
        draw(found, asked.output)
        code = 1 if found.wrong else 2 if found.undecided else 0
        return Verdict(code, [text], f"soak: {asked.output}/soak.md, {len(found.wrong)} wrong")

    return carry_out(
        asked.keep,
        f"querator-soak-{seed}-",
        run,
        judge,
        failed=f"soak: seed {seed}: the run failed",
        kept=lambda home: [f"the last history: python -m tests.checkers {home}/history"],
    )


if __name__ == "__main__":
    sys.exit(main())
