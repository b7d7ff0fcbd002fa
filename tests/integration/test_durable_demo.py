"""`make durable-demo` with fewer flights: workers and a node are killed, and the counts balance."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from querator.cli.demo.flights import find_flights
from scripts.durable_demo.flights import UNKNOWN, choose_flights

FLIGHTS = 300


def demo(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.durable_demo", *options],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(180)
def test_executions_balance_with_the_flights(tmp_path: Path):
    done = demo(tmp_path, "--flights", str(FLIGHTS), "--month", "2")
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    line = msgspec.json.decode(last)
    found = line["balance"]
    flights = choose_flights(find_flights(), month=2, count=FLIGHTS)
    cancelled = [one for one in flights if not one.has_departed]
    diverted = sum(one.has_departed and one.arrival == UNKNOWN for one in flights)
    assert line["flights"] == FLIGHTS
    assert found["landed"] == FLIGHTS - len(cancelled) - diverted
    assert found["diverted"] == diverted
    assert found["cancelled"] == found["compensated"] == len(cancelled) > 0
    assert found["charged_cents"] == sum(one.cents for one in flights)
    assert found["refunded_cents"] == sum(one.cents for one in cancelled)
    assert found["steps"] == 4 * FLIGHTS + len(cancelled)
    assert found["lost"] == found["run_again"] == found["early"] == 0
    assert line["killed_workers"] == 3
    assert line["killed_node"] in ("node-1", "node-2", "node-3")
    assert done.stderr.count("kill -9") == 4
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--flights", "0"), "--flights is 0; it must be from 1 to 336776"),
        (("--flights", "336777"), "--flights is 336777; it must be from 1 to 336776"),
        (("--month", "13"), "argument --month: invalid choice: 13"),
        (("--day-ms", "0"), "--day-ms is 0; it must be from 1 to 86400000"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, options: tuple[str, ...], message: str):
    done = demo(tmp_path, *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_flights_are_spread_over_the_year():
    flights = choose_flights(find_flights(), month=None, count=24)
    assert [one.row for one in flights] == [number * 336_776 // 24 for number in range(24)]
    assert len({one.date[:7] for one in flights}) == 12
    assert all(1 <= one.days_ahead <= 60 for one in flights)


def test_a_month_is_what_the_data_say():
    flights = choose_flights(find_flights(), month=2, count=None)
    assert len(flights) == 24_951
    assert {one.date[:7] for one in flights} == {"2013-02"}
    assert sum(not one.has_departed for one in flights) == 1_261


@pytest.mark.parametrize("count", [0, 24_952])
def test_more_flights_than_there_are_do_not_exist(count: int):
    with pytest.raises(ValueError, match=f"flights is {count}; it must be from 1 to 24951"):
        choose_flights(find_flights(), month=2, count=count)
