"""The search compared with brute force, on tiny histories of registers and queues."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkers.search import Call, Model, Verdict, search

Action = tuple[str, int]
State = tuple[int, ...]


def register(state: State, action: Action) -> State | None:
    """The state after the action. None: the answer is impossible in this state."""
    verb, value = action
    if verb == "write":
        return (value,)
    return state if state == (value,) else None


def queue(state: State, action: Action) -> State | None:
    verb, value = action
    if verb == "write":
        return (*state, value)
    if not state:
        return state if value == 0 else None
    return state[1:] if state[0] == value else None


class Replay:
    """A model made of a pure function of state and action."""

    def __init__(self, step: "object", state: State) -> None:
        self._step = step
        self._state = state

    def moves(self, action: Action, _latest: float) -> Iterator[bool]:
        before = self._state
        after = self._step(before, action)  # type: ignore[operator]
        if after is not None:
            self._state = after
            yield True
            self._state = before

    def key(self) -> Hashable:
        return self._state


def brute_force(calls: Sequence[Call[Action]], step: "object", state: State) -> bool:
    """Tries every subset of the optional calls, in every order that time allows."""
    numbers = range(len(calls))
    for order in permutations([*numbers, -1]):
        # Calls behind the mark (-1) are left out.
        chosen = order[: order.index(-1)]
        left = set(numbers) - set(chosen)
        if any(not calls[n].optional for n in left):
            continue
        if any(
            calls[later].end < calls[earlier].begin
            for place, earlier in enumerate(chosen)
            for later in chosen[place + 1 :]
        ):
            continue
        now: State | None = state
        for n in chosen:
            now = step(now, calls[n].action)  # type: ignore[operator]
            if now is None:
                break
        if now is not None:
            return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Call[Action]]:
    calls = []
    for _ in range(draw(st.integers(1, 5))):
        begin = draw(st.integers(0, 8))
        optional = draw(st.booleans()) and draw(st.booleans())
        verb = draw(st.sampled_from(["write", "read"]))
        value = draw(st.integers(0, 2))
        end = float("inf") if optional else begin + draw(st.integers(0, 4))
        calls.append(Call(begin, end, (verb, value), optional=optional))
    return calls


@settings(max_examples=400)
@given(histories(), st.sampled_from([register, queue]))
def test_the_search_decides_as_brute_force_does(calls: list[Call[Action]], step: object) -> None:
    start = (0,) if step is register else ()
    model: Model[Action] = Replay(step, start)
    answer = search(calls, model)
    expected = brute_force(calls, step, start)
    assert (answer.verdict is Verdict.LINEARIZABLE) == expected
    assert answer.verdict is not Verdict.UNDECIDED


def test_the_order_found_is_a_witness() -> None:
    calls = [Call(0, 9, ("read", 2)), Call(1, 2, ("write", 1)), Call(1, 3, ("write", 2))]
    answer = search(calls, Replay(register, (0,)))
    assert answer.verdict is Verdict.LINEARIZABLE
    state: State | None = (0,)
    for n in answer.order:
        assert state is not None
        state = register(state, calls[n].action)
    assert state is not None
    assert sorted(answer.order) == [0, 1, 2]


def test_a_stale_read_is_no_register() -> None:
    calls = [Call(0, 1, ("write", 1)), Call(2, 3, ("write", 2)), Call(4, 5, ("read", 1))]
    answer = search(calls, Replay(register, (0,)))
    assert answer.verdict is Verdict.VIOLATION
    assert (answer.placed, answer.stuck) == (2, [2])


def test_what_is_over_the_budget_is_undecided() -> None:
    calls = [Call(0, 9, ("write", n)) for n in range(8)]
    calls.append(Call(10, 11, ("read", 9)))
    answer = search(calls, Replay(queue, ()), steps_max=100)
    assert answer.verdict is Verdict.UNDECIDED
    assert search(calls, Replay(register, ())).verdict is Verdict.VIOLATION


def test_nothing_is_linearizable() -> None:
    assert search([], Replay(queue, ())).verdict is Verdict.LINEARIZABLE
