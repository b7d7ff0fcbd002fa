"""Refused lines of an input, on standard error: each reason once, with its count at the end."""

from typing import Final

from querator.cli.shared.output import count, note

REASONS_SHOWN_MAX: Final = 20


class RefusedLines:
    """Notes the first line of each reason at once, and the number of further ones at `close`."""

    def __init__(self) -> None:
        self.total = 0
        self._further: dict[str, int] = {}
        """Reason → number of lines after the first one."""
        self._others = 0

    def add(self, place: str, reason: str) -> None:
        """`place`: the line, for the message."""
        self.total += 1
        if reason in self._further:
            self._further[reason] += 1
        elif len(self._further) < REASONS_SHOWN_MAX:
            self._further[reason] = 0
            note(f"{place}: {reason}")
        else:
            if not self._others:
                note("Lines that are refused for further reasons are only counted.")
            self._others += 1

    def close(self) -> None:
        for reason, further in self._further.items():
            if further:
                note(f"{count(further, 'further line')}: {reason}")
