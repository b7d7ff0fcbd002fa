"""`python -m tests.chaos [--minutes 5] [--seed N] [--keep DIR]`: see `make chaos`.

The last line is the summary. When something is wrong, the nodes' directories, their logs and the
history are kept, and the command that checks the history again is printed. Exit code 1 for
violations and for nodes that did not come to rest, 2 for what the checkers could not decide.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.chaos.run import chaos, new_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    seed = asked.seed or new_seed()
    home = asked.keep or Path(tempfile.mkdtemp(prefix=f"querator-chaos-{seed}-"))
    home.mkdir(parents=True, exist_ok=True)
    say(f"chaos: seed {seed}, {asked.minutes:g} min, in {home}")
    code = 1
    summary = ""
    try:
        run = asyncio.run(chaos(home, minutes=asked.minutes, seed=seed))
    except Exception:  # noqa: BLE001 - the top: whatever it is, the history is kept
        say(traceback.format_exc())
        summary = f"chaos: seed {seed}: the run failed"
    else:
        for line in run.report.lines():
            say(line)
        summary = run.summary()
        code = 1 if run.report.violations else 2 if run.report.undecided else 0
    if code:
        say(f"kept: {home}; check the history again: python -m tests.checkers {home}/history")
        say(f"another run: make chaos MINUTES={asked.minutes:g} SEED={seed}")
    elif asked.keep is None:
        shutil.rmtree(home)
    say(summary)
    return code


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
