"""The judgement of `make events`."""

import pytest

from scripts.bench.events import Line, _whole_lines, found_problems, parsed

ENDS, PRODUCED = {0: 5}, {0: 3}


def lines() -> list[Line]:
    return parsed(
        (
            "0 0:7.2 1 started ",
            "0 0:7.3 2 produced 1+3",
            "0 0:7.4 3 leased 1+3",
            "0 0:7.5 4 completed 1+1,2+2",
        )
    )


def test_all_events_once_and_in_order_are_right():
    assert found_problems(lines(), ENDS, PRODUCED) == []


def test_a_missing_event_is_found():
    found = lines()
    del found[2]
    assert found_problems(found, ENDS, PRODUCED) == ["partition 0: 1 events are missing"]


def test_an_event_that_came_twice_is_found():
    found = lines()
    found.append(found[2])
    problems = found_problems(found, ENDS, PRODUCED)
    assert "partition 0: 1 events came twice" in problems
    assert "partition 0: events are out of order" in problems


@pytest.mark.parametrize("kind", ["produced", "completed"])
def test_an_item_that_is_left_out_or_comes_again_is_found(kind):
    found = lines()
    place = next(n for n, line in enumerate(found) if line[2] == kind)
    partition, position, _, _ = found[place]
    found[place] = (partition, position, kind, ((1, 2), (2, 1)))
    assert found_problems(found, ENDS, PRODUCED) == [
        f"partition 0: 2 items were {kind}, 1 of them again; 3 exist"
    ]


def test_a_line_that_a_killed_follower_has_begun_is_cut_off(tmp_path):
    path = tmp_path / "lines"
    assert _whole_lines(path) == []
    path.write_bytes(b"0 0:7.2 1 started \n0 0:7.3 2 prod")
    assert _whole_lines(path) == ["0 0:7.2 1 started "]
    assert path.read_bytes() == b"0 0:7.2 1 started \n"
