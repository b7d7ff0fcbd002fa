"""Sizes in bytes, as people write them."""

import re
from decimal import Decimal
from typing import Final

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.ASCII | re.IGNORECASE)
_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}


def parse_size(text: str) -> int:
    """Bytes of `1073741824`, `1GiB`, `1.5 GiB` or `10GB` (10^10). Raises ValueError with a
    sentence.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    size = Decimal(match[1]) * factor if match and factor else None
    if size is None or size != int(size):
        raise ValueError(f"{text!r} is not a size; write a number of bytes, or for example 10GiB")
    return int(size)
