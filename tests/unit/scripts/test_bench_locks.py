"""The judgement of `make locks`, on histories that are right and wrong."""

from scripts.bench.locks import (
    Kind,
    Sure,
    at_once,
    found_problems,
    given_twice,
    out_of_order,
)


def held(kind: Kind, token: int, worker: str, *times: float) -> list[Sure]:
    return [Sure(kind, token, worker, at) for at in times]


def test_holders_one_after_the_other_are_one_at_once():
    notes = held("lock", 1, "a", 0, 1, 2) + held("lock", 2, "b", 2.5, 3)
    assert at_once(notes) == 1
    assert at_once(notes + held("lock", 3, "c", 1.5, 2.7)) == 2
    # Sure only from the first to the last note.
    assert at_once(notes + held("lock", 3, "c", 2.2, 2.3)) == 1
    assert at_once([]) == 0


def test_writes_after_a_higher_token_are_counted():
    assert out_of_order([]) == 0
    assert out_of_order([1, 1, 2, 5]) == 0
    assert out_of_order([1, 3, 2, 3, 1]) == 2


def test_a_token_belongs_to_one_worker():
    notes = held("lock", 1, "a", 0, 1) + held("permit", 1, "b", 0)
    assert given_twice(notes) == 0
    assert given_twice(notes + held("lock", 1, "b", 5)) == 1


def test_each_broken_promise_is_named():
    right = held("lock", 1, "a", 0, 1) + held("lock", 2, "b", 2)
    right += [note for token in (1, 2, 3) for note in held("permit", token, "a", 0, 9)]
    assert found_problems(right, [1, 1, 2], 2) == []
    assert (
        "2 workers held the lock" in found_problems([*right, *held("lock", 3, "a", 0, 1)], [], 2)[0]
    )
    assert (
        "4 workers held one of 3"
        in found_problems([*right, *held("permit", 4, "b", 1, 2)], [], 2)[0]
    )
    assert "1 writes were accepted after" in found_problems(right, [2, 1], 2)[0]
    assert (
        "1 fencing tokens were given"
        in found_problems([*right, *held("lock", 2, "a", 2)], [], 2)[0]
    )
    assert "only 2 workers" in found_problems(right, [], 3)[0]
