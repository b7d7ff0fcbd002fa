"""Searches for the first seed that finds each defect: `python -m tests.simulation.defects [NAME
...] [--seeds 300] [--start 1]`. `--tests` checks that each defect's own test fails instead. The
table is printed row by row. The exit status is 1 when something was not found.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tests.simulation.defects import MUTANTS, Defect, apply, copy_to, patches
from tests.simulation.defects.trial import Found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.defects")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--tests", action="store_true")
    options = parser.parse_args()
    defects = [*patches(), *([] if options.tests else MUTANTS)]
    if options.names:
        defects = [one for one in defects if one.name in options.names]
    missed = 0
    columns = ("its test", "what it says") if options.tests else ("seeds", "what the verdict says")
    say(f"| finding | mended by | put back | simulator | {columns[0]} | {columns[1]} |")
    say("|---|---|---|---|---|---|")
    for defect in defects:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="defect-") as directory:
            copy = Path(directory)
            copy_to(copy)
            if not defect.mutant:
                apply(defect, copy)
            if options.tests:
                found, words = fails(defect, copy)
            else:
                found, words = look_for(defect, copy, options.start, options.seeds)
        missed += not found
        say(
            f"| {defect.finding} | {defect.mended_by} | {defect.name} | {defect.simulator} "
            f"| {found or 'not found'} | {words} |"
        )
        sys.stderr.write(f"{defect.name}: {time.perf_counter() - begun:.0f} s\n")
    say(f"mutants: {len(defects)}, {missed} not found")
    return 1 if missed else 0


def look_for(defect: Defect, copy: Path, start: int, seeds: int) -> tuple[str, str]:
    """Number of seeds needed (empty: more than there are), and what the last one reports."""
    command = [
        sys.executable, "-m", "tests.simulation.defects.trial",
        defect.simulator, str(start), str(seeds), defect.needs, defect.mutant,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, check=True)
    found = msgspec.json.decode(done.stdout, type=Found)
    if not found.seed:
        return "", f"nothing in {found.run} seeds"
    return str(found.run), found.violations[0].replace("|", "/")[:160]


def fails(defect: Defect, copy: Path) -> tuple[str, str]:
    """Whether the defect's own test fails in the copy."""
    path = copy / "tests" / defect.test.partition("::")[0]
    if not path.exists():
        return "", f"{defect.test} is not there"
    command = [sys.executable, "-m", "pytest", "-q", "-x", f"tests/{defect.test}"]
    done = subprocess.run(
        command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:]
    return ("fails" if done.returncode == 1 else ""), f"{defect.test}: {' '.join(last)}"


if __name__ == "__main__":
    sys.exit(main())
