"""The checker of executions: each of its rules finds what breaks it, and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from querator.model.executions import ExecutionState
from tests.simulation.whole.lives import Begun, Found, Lives

DONE = Found(
    ExecutionState.COMPLETED,
    "COMPLETED 9",
    result=("effect 1", "signal word:e!0", "effect 2", "promise yes"),
    names=("reserve", "act"),
)
FAILED = Found(ExecutionState.FAILED, "FAILED 4", run=2, names=("reserve", "release"))


def a_life(*, trusts_clocks: bool = True) -> Lives:
    lives = Lives(trusts_clocks=trusts_clocks)
    lives.starting("e", ("hear", "asks"))
    lives.started("e", made=True)
    lives.started("e", made=False)
    lives.begins("e", Begun("reserve", "effect 1", (), "key 1"))
    lives.signalled("e", "word:e!0", -1)
    lives.signalled("e", "word:e!0", 3)
    lives.signalled("e", "late:e!1", 2)
    lives.signalled("e", "word:e!2", -1)
    lives.begins("e", Begun("act", "effect 2", ("effect 1", "signal word:e!0"), "key 2"))
    lives.promised("e", "token")
    lives.resolving("e", "no")
    lives.resolving("e", "yes")
    lives.resolved("e", "token", "no", wins=False)
    lives.resolved("e", "token", "yes", wins=True)
    lives.slept("e", 2.5, 2.4)
    lives.published("e", 3, least=0)
    lives.published("e", 2, least=0)
    lives.heard("e", "COMPLETED 9", run=1, changes=0)
    return lives


def judged(lives: Lives, **found: Found) -> list[str]:
    return list(lives.judge(found))


def test_a_sound_life_is_none():
    lives = a_life()
    assert judged(lives, e=DONE) == []
    assert lives.compared == 2


def test_attempts_before_the_recorded_one_are_none():
    lives = a_life()
    lives.begins("e", Begun("act", "effect 3", ("effect 1", "signal word:e!0"), "key 2"))
    result = ("effect 1", "signal word:e!0", "effect 3", "promise yes")
    assert judged(lives, e=replace(DONE, result=result)) == []


def again(lives: Lives) -> None:
    lives.begins("e", Begun("act", "effect 3", ("effect 1", "signal word:e!0"), "key 2"))


@pytest.mark.parametrize(
    ("does", "text"),
    [
        (lambda lives: lives.started("e", made=True), "made 2 times"),
        (lambda lives: lives.heard("e", "FAILED 9", run=1, changes=0), "has heard FAILED 9"),
        (lambda lives: lives.heard("e", "FAILED 9", run=2, changes=0), "run 2 of 1"),
        (lambda lives: lives.begins("f", Begun("act", "effect 3", (), "k")), "never started"),
        (again, "has begun again"),
        (
            lambda lives: lives.begins("e", Begun("act", "effect 4", ("effect 2",), "key 4")),
            "has begun after ('effect 2',)",
        ),
        (lambda lives: lives.resolved("e", "token", "no", wins=True), "resolved one promise"),
        (lambda lives: lives.signalled("e", "word:e!3", 2), "and not the earlier"),
        (lambda lives: lives.published("e", 2, least=lives.published_of("e")), "and 3 before"),
        (lambda lives: lives.slept("e", 2.5, 1.5), "has slept 1.500 s instead of 2.5"),
    ],
)
def test_what_is_seen_and_wrong_is_found(does: Callable[[Lives], None], text: str):
    lives = a_life()
    does(lives)
    assert any(text in one for one in judged(lives, e=DONE)), judged(lives, e=DONE)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (("effect 1", "signal word:e!0", "effect 5"), "effect 5, which it has not begun"),
        ((*DONE.result, "effect 2"), "an effect twice"),
        ((*DONE.result, "signal word:e!0"), "received"),
        ((*DONE.result, "signal word:e!9"), "never sent"),
        ((*DONE.result[:3], "promise maybe"), "which no client has sent"),
        ((*DONE.result[:3], "promise no"), "was said to count"),
    ],
)
def test_a_wrong_result_is_found(result: tuple[str, ...], text: str):
    found = judged(a_life(), e=replace(DONE, result=result))
    assert any(text in one for one in found), found


def late(lives: Lives) -> None:
    lives.begins("e", Begun("act", "effect 4", ("effect 2",), "key 4"))


def test_clocks_that_jump_excuse_late_attempts_only():
    lives = a_life(trusts_clocks=False)
    again(lives)
    late(lives)
    assert judged(lives, e=DONE) == []
    [text] = judged(lives, e=replace(DONE, result=(*DONE.result, "effect 4")))
    assert "effect 4" in text


def test_changed_code_excuses_what_older_code_has_not_recorded():
    lives = a_life()
    lives.has_versions = True
    late(lives)
    assert judged(lives, e=DONE) == []
    again(lives)
    assert "has begun again" in judged(lives, e=DONE)[0]


def test_runs_of_a_rewound_execution_have_ends_of_their_own():
    lives = a_life()
    lives.changing("e", ("wait",))
    changes = lives.asking(["e"])["e"]
    lives.heard("e", "COMPLETED 9", run=1, changes=0)
    assert (lives.open_ids, lives.ended_ids, lives.parts_of("e")) == (["e"], [], ("wait",))
    # What the former run has received is gone.
    assert lives.accepted_words("e") == 0
    lives.heard("e", "FAILED 4", run=2, changes=changes)
    assert (lives.open_ids, lives.ended_ids) == ([], ["e"])
    assert judged(lives, e=FAILED) == []
    lives.heard("e", "FAILED 4", run=1, changes=0)
    assert "run 1 of 2" in judged(lives, e=FAILED)[0]


def test_an_end_that_is_not_there_is_found():
    lives = a_life()
    assert judged(lives) == ["execution e is gone"]
    open_one = Found(ExecutionState.PARKED, "")
    assert "execution e has not ended: PARKED" in judged(a_life(), e=open_one)
    assert "execution e/leaf has not ended: PARKED" in judged(a_life(), **{
        "e": DONE, "e/leaf": open_one,
    })  # fmt: skip


def test_a_failure_without_release_is_found():
    lives = Lives()
    lives.starting("e", ("fails",))
    lives.begins("e", Begun("reserve", "effect 1", (), "key 1"))
    # Its last run has ended before it began to reserve.
    assert judged(lives, e=replace(FAILED, names=())) == []
    lives.begins("e", Begun("reserve", "effect 2", (), "key 2", run=2))
    assert judged(lives, e=FAILED) == []
    [text] = judged(lives, e=replace(FAILED, names=("reserve",)))
    assert "has not released" in text


def test_what_is_open_and_unanswered():
    lives = a_life()
    assert (lives.open_ids, lives.unanswered, lives.unresolved()) == ([], [], [])
    lives.starting("f", ("hear",))
    assert lives.unanswered == ["f"]
    lives.started("f", made=False)
    lives.promised("f", "token")
    assert (lives.open_ids, lives.unresolved()) == (["f"], [("f", "token")])
    lives.signalled("f", "word:f!0", 1)
    lives.signalled("f", "word:f!1", -1)
    assert (lives.signals_of("f"), lives.accepted_words("f")) == (2, 1)


def test_items_of_what_is_not_recorded_and_missing_ones_are_found():
    possible: list[str] = []
    lives = Lives(produced=possible.extend)
    lives.starting("e", ("wait",))
    for token in ("effect 1", "effect 2"):
        lives.produces("e", token, f"item of {token}")
    assert possible == ["item of effect 1", "item of effect 2"]
    executions = {"e": Found(ExecutionState.COMPLETED, "", result=("effect 1",))}
    assert list(lives.judge_items(executions, {"item of effect 1"})) == []
    [missing] = lives.judge_items(executions, ())
    assert "was not produced" in missing
    [extra] = lives.judge_items(executions, {"item of effect 1", "item of effect 2"})
    assert "its effect is not recorded" in extra
    # Of one that was rewound, former runs have produced as well.
    lives.changing("e")
    assert list(lives.judge_items(executions, {"item of effect 2"})) == []
