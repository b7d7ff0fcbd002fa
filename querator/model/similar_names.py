"""Names of queues that are similar to a missing one."""

import difflib
from collections.abc import Sequence
from typing import Final

NAMES_MAX: Final = 1_000
"""Most names of a namespace among which similar ones are looked for."""
_SIMILAR_MAX: Final = 3


def similar_names(name: str, names: Sequence[str]) -> list[str]:
    """Names that may have been meant, the most similar first."""
    return difflib.get_close_matches(name, names, n=_SIMILAR_MAX)
