"""Mended defects, put back: each patch beside this file takes one mend out.

A patch begins with header lines, which `git apply` ignores:

    Finding: what docs/verification.md calls it
    Mended-by: the commit
    Simulator: whole, or core
    Needs: seeds without any of these (of their profile, or faults) are passed over; they count
    Test: the test in tests/ that fails with the patch, as well

`python -m tests.simulation.defects` (`make mutants`) applies each patch to a copy of the project,
and searches for the first seed that finds it. Some mutants of `tests.simulation` are searched for
likewise. A patch that does not fit the code is an error.
"""

import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
COPIED = ("querator", "tests", "scripts", "pyproject.toml")


class DoesNotApply(Exception):
    """The patch does not fit the code."""


class Defect(msgspec.Struct, frozen=True):
    """`mutant` is a function of `tests.simulation.mutants` or of `whole.mutants`. Empty: the patch
    of this name.
    """

    name: str
    finding: str
    simulator: str
    mended_by: str = ""
    test: str = ""
    needs: str = ""
    mutant: str = ""


MUTANTS = (
    Defect("an answer is swallowed", "service package", "whole", mutant="swallows_answers"),
    Defect("a waiter is not woken", "service package", "whole", mutant="lets_waiters_sleep"),
    Defect("a grant is dropped", "service package", "whole", mutant="drops_grants"),
    Defect("a stale route is kept", "service package", "whole", mutant="keeps_stale_routes"),
    Defect("a mover skips", "service package", "whole", needs="winding", mutant="skips_what_moves"),
    Defect(
        "the least urgent is leased first", "priorities", "whole", needs="ranked",
        mutant="leases_the_least_urgent_first",
    ),
    Defect(
        "what is urgent is overlooked", "priorities", "whole", needs="ranked",
        mutant="overlooks_what_is_urgent",
    ),
    Defect(
        "a retry forgets the priority", "priorities", "whole", needs="ranked",
        mutant="forgets_priorities_of_retries",
    ),
    Defect(
        "a ready item keeps its priority", "priorities", "whole", needs="ranked",
        mutant="keeps_priorities_of_ready_items",
    ),
    Defect(
        "a dead letter forgets its priority", "priorities", "whole", needs="ranked",
        mutant="forgets_priorities_of_dead_letters",
    ),
    Defect(
        "what is purged stays", "removals", "whole", needs="sweeping",
        mutant="keeps_what_is_purged",
    ),
    Defect(
        "a purge has no end", "removals", "whole", needs="sweeping",
        mutant="purges_without_an_end",
    ),
    Defect(
        "a filter chooses all letters", "removals", "whole", needs="sweeping",
        mutant="chooses_any_dead_letter",
    ),
    Defect(
        "a target that died is waited for", "removal", "whole", needs="removing",
        mutant="never_gives_up_targets",
    ),
    Defect(
        "a node that leaves learns no map", "removal", "whole", needs="removing",
        mutant="forgets_leaving_nodes",
    ),
    Defect(
        "a configuration that is taken back stays", "21", "core", needs="members",
        mutant="keeps_a_configuration_that_is_taken_back",
    ),
    Defect(
        "the configuration before counts", "21", "core", needs="members",
        mutant="counts_by_the_configuration_before",
    ),
)  # fmt: skip


def patches() -> list[Defect]:
    """All patches, in the order of the findings."""
    found = []
    for path in HERE.glob("*.patch"):
        told = {}
        for line in path.read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(": ")
            told[name] = value
        found.append(
            Defect(
                name=path.stem,
                finding=told["Finding"],
                simulator=told["Simulator"],
                mended_by=told["Mended-by"],
                test=told["Test"],
                needs=told.get("Needs", ""),
            )
        )
    return sorted(found, key=lambda one: (one.finding[0].isalpha(), one.finding, one.name))


def copy_to(directory: Path, only: Collection[str] = COPIED) -> None:
    """Copies what a seed needs of the project."""
    for name in only:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(
                source, directory / name, ignore=shutil.ignore_patterns("__pycache__", "data")
            )
        else:
            shutil.copy(source, directory / name)


def apply(defect: Defect, directory: Path, *, reverse: bool = False) -> list[Path]:
    """Puts the defect into the copy, or takes it out again. Returns the changed files. Raises
    DoesNotApply.
    """
    patch = HERE / f"{defect.name}.patch"
    done = subprocess.run(
        ["git", "apply", "-C1", *(["--reverse"] if reverse else []), patch],
        cwd=directory, capture_output=True, text=True, check=False,
        env={"GIT_CEILING_DIRECTORIES": str(directory.parent), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    if done.returncode:
        raise DoesNotApply(f"{patch.name} does not fit the code: {done.stderr.strip()}")
    lines = patch.read_text().splitlines()
    return [directory / line.removeprefix("+++ b/") for line in lines if line.startswith("+++ ")]
