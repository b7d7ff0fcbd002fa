"""The result of one seed."""

from dataclasses import dataclass, field


@dataclass
class Verdict:
    """`trace` is the hash of all that happened: the same seed gives the same one."""

    seed: int
    violations: list[str]
    trace: str
    virtual_s: float
    figures: dict[str, int] = field(default_factory=dict)
