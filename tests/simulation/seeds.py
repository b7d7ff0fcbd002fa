"""Seeds that have found something. They are kept in `seeds.txt` beside the world that they belong
to.
"""

from pathlib import Path


def known(directory: Path) -> list[int]:
    lines = (directory / "seeds.txt").read_text().splitlines()
    found = {int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")}
    return sorted(found)
