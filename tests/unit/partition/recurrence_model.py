"""The rules of recurrences with intervals, written again due time by due time. The model shares no
code with the machine and with the planning of the leader, and has no commands, spans or indexes.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Spec(NamedTuple):
    """`phase` None: due times are whole intervals after the creation. `kept`: how many of the
    missed due times run. `tag` is the payload of the template.
    """

    interval: int
    phase: int | None
    kept: int
    missed_after: int
    skips: bool
    tag: int

    @property
    def schedule(self) -> tuple[int, int | None]:
        return self.interval, self.phase


@dataclass
class Recurrence:
    spec: Spec
    created: int
    decided: int
    """All due times up to this instant are decided."""
    revision: int = 1
    paused: bool = False
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    last_due: int = 0
    last: str = ""
    """The payload of the last item."""

    def due_times(self, upto: int) -> list[int]:
        interval = self.spec.interval
        phase = self.created if self.spec.phase is None else self.spec.phase
        first = self.decided + 1 + (phase - self.decided - 1) % interval
        return list(range(first, upto + 1, interval))


@dataclass
class RecurrenceModel:
    now: int
    live: dict[str, Recurrence] = field(default_factory=dict)
    """In the order of their creation."""
    items: dict[str, str] = field(default_factory=dict)
    """The states of items that are not finished, by payload."""
    fired: int = 0
    skipped: int = 0
    missed: int = 0

    def create(self, name: str, spec: Spec) -> bool | None:
        """Whether it is made; None: another one has the name."""
        found = self.live.get(name)
        if found is not None:
            return False if found.spec == spec else None
        self.live[name] = Recurrence(spec, self.now, self.now)
        return True

    def update(self, name: str, spec: Spec, revision: int) -> bool | None:
        """Whether it is changed; None: refused."""
        found = self.live.get(name)
        if found is None:
            return None
        if revision != found.revision:
            return False if (revision + 1, spec) == (found.revision, found.spec) else None
        if spec == found.spec:
            return False
        if spec.schedule != found.spec.schedule:
            found.decided = self.now
        found.spec = spec
        found.revision += 1
        return True

    def pause(self, name: str, *, paused: bool) -> bool | None:
        found = self.live.get(name)
        if found is None:
            return None
        if found.paused == paused:
            return False
        found.paused, found.decided = paused, self.now
        found.revision += 1
        return True

    def delete(self, name: str) -> bool | None:
        return None if self.live.pop(name, None) is None else True

    def decide(self, name: str, now: int) -> None:
        """What a leader decides that sees this time."""
        one = self.live[name]
        if one.paused:
            return
        due = one.due_times(now)
        missed = [at for at in due if at < now - one.spec.missed_after]
        kept = missed[len(missed) - one.spec.kept :] if one.spec.kept < len(missed) else missed
        one.missed += len(missed) - len(kept)
        self.missed += len(missed) - len(kept)
        for at in (*kept, *due[len(missed) :]):
            if one.spec.skips and one.last in self.items:
                one.skipped += 1
                self.skipped += 1
                continue
            one.fired += 1
            self.fired += 1
            one.last, one.last_due = f"{one.spec.tag}/{name}/{one.fired}/{at}", at
            self.items[one.last] = "ready"
        one.decided = now

    def next_due(self, name: str) -> int:
        """Of one that has been decided, and is not paused."""
        one = self.live[name]
        return one.due_times(one.decided + one.spec.interval)[0]
