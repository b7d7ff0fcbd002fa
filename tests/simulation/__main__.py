"""Runs seeds: `python -m tests.simulation --seeds 100 --start 1`, or `--seed 7` to replay one seed
with a transcript. `--whole` runs seeds of whole nodes. The last line is the summary. The exit
status is 1 if a violation was found.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.verdict import Verdict
from tests.simulation.whole.world import simulate_whole
from tests.simulation.world import simulate

PROGRESS_SEEDS = 500


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    run = simulate_whole if options.whole else simulate
    again = "make sim WHOLE=1" if options.whole else "make sim"
    if options.seed is not None:
        verdict = run(options.seed, tell=say)
        report(verdict, again)
        say(f"trace {verdict.trace}")
        return summary([verdict], 0.0)
    seeds = range(options.start, options.start + options.seeds)
    started = time.perf_counter()
    verdicts = []
    context = get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, logging.disable) as pool:
        for verdict in pool.map(run, seeds, chunksize=4):
            verdicts.append(verdict)
            report(verdict, again)
            if len(verdicts) % PROGRESS_SEEDS == 0:
                say(f"{len(verdicts)} seeds, up to {verdict.seed}")
    return summary(verdicts, time.perf_counter() - started)


def report(verdict: Verdict, again: str) -> None:
    if verdict.violations:
        say(f"seed {verdict.seed}: {len(verdict.violations)} violations")
        for text in verdict.violations[:5]:
            say(f"    {text}")
        say(f"    again: {again} SEED={verdict.seed}")


def summary(verdicts: list[Verdict], seconds: float) -> int:
    figures: Counter[str] = Counter()
    for verdict in verdicts:
        figures.update(verdict.figures)
    say(", ".join(f"{count} {name}" for name, count in figures.items()))
    hours = sum(verdict.virtual_s for verdict in verdicts) / 3600
    bad = sum(bool(verdict.violations) for verdict in verdicts)
    took = f" in {seconds:.0f} s" if seconds else ""
    say(
        f"simulation: {len(verdicts)} seeds, {hours:.2f} virtual hours{took}, "
        f"{bad} seeds with violations"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
