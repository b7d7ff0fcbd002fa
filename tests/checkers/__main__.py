"""`python -m tests.checkers FILE [--item QUEUE PARTITION SEQ]`: checks a kept history again, or
prints the operations on one item. Exit code 1 for violations, 2 for what could not be decided.
"""

import argparse
import sys
from pathlib import Path

from tests.checkers.history import History
from tests.checkers.lives import Lives
from tests.checkers.report import check
from tests.checkers.search import STEPS_MAX


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkers")
    parser.add_argument("file", type=Path)
    parser.add_argument("--item", nargs=3, metavar=("QUEUE", "PARTITION", "SEQ"))
    parser.add_argument("--steps-max", type=int, default=STEPS_MAX)
    asked = parser.parse_args()
    history = History.read(asked.file)
    if asked.item is not None:
        queue, partition, seq = asked.item
        show(history, (queue, int(partition), int(seq)))
        return 0
    report = check(history, steps_max=asked.steps_max)
    for line in report.lines():
        sys.stdout.write(f"{line}\n")
    return 1 if report.violations else 2 if report.undecided else 0


def show(history: History, place: tuple[str, int, int]) -> None:
    """Prints every operation that names the item, and other events of that time."""
    lives = Lives(history)
    operations = {}
    for birth in lives.births:
        if place in birth.places.values():
            operations.update({id(op): op for op in birth.tries})
    for delivery in lives.deliveries.get(place, ()):
        tenure = lives.tenures[delivery.lease]
        operations.update({id(op): op for op in tenure.operations})
        operations.update({id(s.operation): s.operation for s in tenure.settles})
        operations.update({id(op): op for op, _ in tenure.extends})
    lines = [(op.begin_s, str(op)) for op in operations.values()]
    if lines:
        first, last = min(lines)[0], max(lines)[0]
        lines += [(at, f"{at:.4f} * {text}") for at, text in history.notes if first <= at <= last]
    for _, line in sorted(lines):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
