"""The checker of checkpoints: each of its rules finds what breaks it, and nothing else."""

import pytest

from querator.model.calls import DeadOrigin, LaterAttributes, LeasedRun, LoadedItems
from querator.partition.rows import DeadCause
from tests.simulation.timeline import MS
from tests.simulation.whole.progress import Progress
from tests.simulation.whole.tries import DEAD, QUEUE, Tries

GROUP, DEAD_GROUP = 5, 6
LETTER = DeadOrigin(
    origin_queue=QUEUE, origin_partition=0, origin_seq=1, attempts=3, reason=DeadCause.ATTEMPTS,
    errors=(), produced_at_ms=1_000, died_at_ms=1_000,
)  # fmt: skip


class Known:
    """Item a with sequence 1, and what clients do to it."""

    def __init__(self) -> None:
        self.tries = Tries(max_attempts=3)
        self.tries.stored(50 * MS, GROUP, 1, "a")
        self.progress = Progress(self.tries)

    def saves(
        self,
        lease: int,
        data: bytes,
        revision: int,
        *,
        accepted: bool | None = True,
        group: int = GROUP,
        seq: int = 1,
    ) -> None:
        """`accepted` None: there is no answer."""
        save = self.progress.saving(f"{group:x}.0.{lease:x}", seq, data, revision)
        if accepted:
            self.progress.saved(save)

    def retries(self, lease: int, *, cleared: bool = False, executed: bool | None = True) -> None:
        self.progress.settled(f"{GROUP:x}.0.{lease:x}", 1, cleared=cleared, executed=executed)

    def delivers(
        self,
        lease: int,
        checkpoint: bytes = b"",
        *,
        group: int = GROUP,
        seq: int = 1,
        letter: DeadOrigin | None = None,
    ) -> None:
        later = LaterAttributes(0, letter, (), None, len(checkpoint), checkpoint)
        loaded = LoadedItems(
            first_seq=seq, count=1, ordinals=(), produced_at_ms=0, items=b"", overlays=(later,)
        )
        run = LeasedRun(
            lease_id=f"{group:x}.0.{lease:x}", queue=QUEUE if group == GROUP else DEAD,
            partition=0, attempt=1, deadline_ms=0, remaining_ms=1_000, repeated=False,
            loaded=loaded, priority=0,
        )  # fmt: skip
        self.tries.delivered(0, 0, run, {seq: "a"}, (GROUP,))
        self.progress.delivered(run, {seq: "a"})

    @property
    def found(self) -> list[str]:
        return list(self.progress.judge())


@pytest.fixture
def known() -> Known:
    return Known()


def test_an_item_begins_without_one(known):
    known.delivers(1)
    assert known.found == []
    known.delivers(2, b"half")
    assert known.found == ["a: delivered with checkpoint b'half', has [b'']"]


def test_the_last_one_before_the_lease_counts(known):
    known.saves(1, b"one", 1)
    known.saves(1, b"two", 2)
    known.delivers(2, b"two")
    known.saves(2, b"three", 1)
    known.delivers(3, b"three")
    assert known.found == []
    known.delivers(4, b"two")
    assert known.found == ["a: delivered with checkpoint b'two', has [b'three']"]


def test_the_highest_revision_of_a_lease_counts(known):
    known.saves(1, b"late", 7)
    known.saves(1, b"early", 3)
    known.delivers(2, b"late")
    assert known.found == []
    known.delivers(3, b"early")
    assert known.found == ["a: delivered with checkpoint b'early', has [b'late']"]


@pytest.mark.parametrize("seen", [b"one", b"two", b"three"])
def test_one_without_an_answer_may_be_saved(known, seen):
    known.saves(1, b"one", 1)
    known.saves(1, b"two", 2, accepted=None)
    known.saves(1, b"three", 3, accepted=None)
    known.delivers(2, seen)
    assert known.found == []


def test_one_without_an_answer_does_not_hide_a_loss(known):
    known.saves(1, b"one", 1)
    known.saves(1, b"two", 2, accepted=None)
    known.delivers(2)
    assert known.found == ["a: delivered with checkpoint b'', has [b'one', b'two']"]


def test_a_lease_that_a_retry_has_ended_saves_nothing(known):
    known.saves(1, b"one", 1)
    known.retries(1)
    known.saves(1, b"two", 2, accepted=None)
    known.delivers(2, b"one")
    assert known.found == []
    known.saves(1, b"three", 3)
    assert known.found[0] == "b'three': saved under a lease that had ended"


def test_a_lease_before_a_later_one_saves_nothing(known):
    known.delivers(3)
    known.saves(2, b"late", 9, accepted=None)
    known.saves(3, b"mine", 1)
    known.delivers(4, b"mine")
    assert known.found == []
    known.delivers(5, b"late")
    assert known.found == ["a: delivered with checkpoint b'late', has [b'mine']"]


def test_a_retry_that_was_not_executed_ends_no_lease(known):
    known.retries(1, executed=None)
    known.saves(1, b"one", 1)
    known.delivers(2, b"one")
    assert known.found == []


def test_a_retry_may_clear_it(known):
    known.saves(1, b"one", 1)
    known.retries(1, cleared=True)
    known.delivers(2)
    assert known.found == []
    known.delivers(3, b"one")
    assert known.found == ["a: delivered with checkpoint b'one', has [b'']"]


@pytest.mark.parametrize("seen", [b"", b"one"])
def test_a_retry_without_an_answer_may_have_cleared_it(known, seen):
    known.saves(1, b"one", 1)
    known.retries(1, cleared=True, executed=None)
    known.delivers(2, seen)
    assert known.found == []


def test_a_dead_letter_keeps_it_and_so_does_a_redriven_item(known):
    known.delivers(1)
    known.saves(1, b"one", 1)
    known.delivers(1, b"one", group=DEAD_GROUP, seq=9, letter=LETTER)
    assert known.found == []
    known.saves(1, b"two", 1, group=DEAD_GROUP, seq=9)
    known.delivers(7, b"two", seq=4)
    assert known.found == []
    known.delivers(8, seq=4)
    assert known.found == ["a: delivered with checkpoint b'', has [b'one', b'two']"]
