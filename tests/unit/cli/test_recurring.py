"""`querator recurring`: what is asked for, and what is shown."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.client import clock
from querator.v1 import items_pb2
from querator.v1 import recurrences_pb2 as pb
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

untyped: Any = pb
"""Times are given as Python's."""
NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
FIRED = {"fired": 3, "skipped": 2, "missed": 1}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster, clock.replaced(lambda: int(NOW.timestamp()) * 10**9):
        yield cluster


def invoke(cluster: ScriptedCluster, *command: str) -> Result:
    return CliRunner().invoke(querator, ["recurring", *command, "--address", cluster.address])


def recurrence(**changes: Any) -> pb.Recurrence:
    spec = untyped.RecurrenceSpec(
        cron="0 9 * * 1-5",
        time_zone="Europe/Berlin",
        missed=pb.MISSED_RUNS_ALL,
        missed_max=7,
        missed_after=timedelta(minutes=1),
        jitter=timedelta(0),
        overlap=pb.RUN_OVERLAP_SKIP,
        item=items_pb2.Item(payload=b"for {{due_at}}", kind="digest"),
    )
    values: dict[str, Any] = {
        "name": "digest", "spec": spec, "revision": 4, "created_at": NOW, "next_due_at": NOW,
        "next_fire_at": NOW + timedelta(milliseconds=1_500), "last_item_id": "0-9",
        "last_due_at": NOW, "last_fired_at": NOW, **FIRED,
    }  # fmt: skip
    return pb.Recurrence(**(values | changes))


def test_create_sends_the_schedule_the_policies_and_the_item(cluster: ScriptedCluster) -> None:
    asked: list[pb.CreateRecurrenceRequest] = []

    def answer(data: bytes) -> pb.CreateRecurrenceResponse:
        asked.append(pb.CreateRecurrenceRequest.FromString(data))
        return pb.CreateRecurrenceResponse(recurrence=recurrence(), created=len(asked) == 1)

    cluster.answers["CreateRecurrence"] = answer
    command = (
        "create", "mail", "digest", "x", "--interval", "90m", "--phase", "10m", "--jitter", "5s",
        "--missed", "all", "--missed-max", "7", "--missed-after", "2m", "--overlap", "skip",
        "--kind", "k", "--attribute", "a=1", "--priority", "-3", "--max-attempts", "2",
        "--key", "anna", "--group", "eu.de",
    )  # fmt: skip
    for words in ("Created digest.\n", "digest exists already.\n"):
        shown = invoke(cluster, *command)
        assert (shown.exit_code, shown.stderr) == (0, words), shown.output
    [one, _] = asked
    assert (one.queue, one.name) == ("mail", "digest")
    item = items_pb2.Item(payload=b"x", kind="k", attributes={"a": "1"}, priority=-3,
                          max_attempts=2, key="anna", group="eu.de")  # fmt: skip
    assert one.spec == untyped.RecurrenceSpec(
        interval=timedelta(minutes=90),
        phase=timedelta(minutes=10),
        jitter=timedelta(seconds=5),
        missed=pb.MISSED_RUNS_ALL,
        missed_max=7,
        missed_after=timedelta(minutes=2),
        overlap=pb.RUN_OVERLAP_SKIP,
        item=item,
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("create", "q", "r", "x"), "Give --cron or --interval."),
        (("create", "q", "r", "--cron", "@daily"), "Give PAYLOAD or --file."),
        (("create", "q", "r", "x", "--cron", "@daily", "--interval", "1m"), "not both"),
        (("create", "q", "r", "x", "--interval", "10ms"), "--interval is 10ms; at least 1s."),
        (("create", "q", "r", "x", "--interval", "400d"), "--interval is 400d; at most 366d."),
        (("create", "q", "r", "x", "--interval", "1m", "--jitter", "2d"), "at most 24h"),
        (("create", "q", "r", "x", "--cron", "@daily", "--missed-max", "0"), "from 1 to 1000"),
        (("update", "q", "r"), "Give at least one thing to change."),
        (("update", "q", "r", "--kind", "k"), "need PAYLOAD or --file"),
        (("next",), "Give QUEUE and NAME, one EXPRESSION, or --interval."),
        (("next", "q", "r", "--timezone", "UTC"), "are not for a recurrence"),
        (("next", "@daily", "--interval", "1m"), "Give QUEUE and NAME"),
        (("next", "@daily", "--phase", "1m"), "--phase needs --interval."),
        (("next", "--interval", "1m", "--timezone", "UTC"), "--timezone needs EXPRESSION."),
        (("next", "* * *"), "EXPRESSION has 3 fields"),
        (("next", "0 0 31 2 *"), "EXPRESSION never fires"),
        (("next", "@daily", "--timezone", "Mars/Phobos"), "--timezone is not a time zone"),
        (("next", "@daily", "--count", "101"), "from 1 to 100"),
        (("delete", "q", "r"), "Standard input is not a terminal"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_request(
    cluster: ScriptedCluster, command: tuple[str, ...], words: str
) -> None:
    shown = invoke(cluster, *command)
    assert shown.exit_code == 2
    assert words in shown.stderr


def test_a_list_has_a_row_for_each(cluster: ScriptedCluster) -> None:
    every = recurrence(name="sweep", paused=True)
    every.spec.ClearField("cron")
    every.spec.interval.FromTimedelta(timedelta(minutes=5))
    lost = recurrence(name="lost", error="time_zone is not known")
    cluster.answers["ListRecurrences"] = lambda _: pb.ListRecurrencesResponse(
        recurrences=[recurrence(), every, lost]
    )
    shown = invoke(cluster, "list", "mail")
    rows = [line.split("  ") for line in shown.stdout.splitlines()]
    assert [row[0] for row in rows[2:]] == ["digest", "sweep", "lost"]
    assert "0 9 * * 1-5 Europe/Berlin  2030-01-31T12:00:00Z      3        2       1" in shown.stdout
    assert "every 5m" in shown.stdout
    assert "paused" in shown.stdout
    assert "not known" in shown.stdout
    lines = invoke(cluster, "list", "mail", "--output", "json").stdout.splitlines()
    assert [msgspec.json.decode(line)["name"] for line in lines] == ["digest", "sweep", "lost"]


def test_no_recurrences_are_said(cluster: ScriptedCluster) -> None:
    cluster.answers["ListRecurrences"] = lambda _: pb.ListRecurrencesResponse()
    assert invoke(cluster, "list", "mail").stderr == "No recurrences.\n"


def test_one_recurrence_is_shown_in_full(cluster: ScriptedCluster) -> None:
    cluster.answers["GetRecurrence"] = lambda _: pb.GetRecurrenceResponse(recurrence=recurrence())
    text = invoke(cluster, "show", "mail", "digest").stdout
    for words in ("all, at most 7", "2030-01-31T12:00:01.500Z", "0-9", "for {{due_at}}"):
        assert words in text
    view = msgspec.json.decode(invoke(cluster, "show", "mail", "digest", "--output", "json").stdout)
    assert (view["cron"], view["interval_ms"], view["payload"]) == (
        "0 9 * * 1-5", None, "for {{due_at}}",
    )  # fmt: skip
    assert view["next_due_at"] == "2030-01-31T12:00:00Z"


def test_pause_resume_and_delete_name_the_recurrence(cluster: ScriptedCluster) -> None:
    asked: list[tuple[str, bool]] = []

    def pause(data: bytes) -> pb.PauseRecurrenceResponse:
        request = pb.PauseRecurrenceRequest.FromString(data)
        asked.append((request.name, request.resume))
        return pb.PauseRecurrenceResponse(recurrence=recurrence(paused=not request.resume))

    cluster.answers["PauseRecurrence"] = pause
    cluster.answers["DeleteRecurrence"] = lambda _: pb.DeleteRecurrenceResponse()
    assert "paused" in invoke(cluster, "pause", "mail", "digest").stdout
    assert "paused" not in invoke(cluster, "resume", "mail", "digest").stdout
    assert asked == [("digest", False), ("digest", True)]
    shown = invoke(cluster, "delete", "mail", "digest", "--yes")
    assert (shown.exit_code, shown.stderr) == (0, "Deleted digest.\n")


def test_an_update_masks_what_is_given(cluster: ScriptedCluster) -> None:
    asked: list[pb.UpdateRecurrenceRequest] = []

    def answer(data: bytes) -> pb.UpdateRecurrenceResponse:
        asked.append(pb.UpdateRecurrenceRequest.FromString(data))
        return pb.UpdateRecurrenceResponse(recurrence=recurrence())

    cluster.answers["UpdateRecurrence"] = answer
    for options in (("--jitter", "5s"), ("--cron", "@daily"), ("--interval", "1m"), ("y",)):
        assert invoke(cluster, "update", "mail", "digest", *options).exit_code == 0
    assert [list(one.update_mask.paths) for one in asked] == [
        ["jitter"],
        ["cron", "interval", "phase"],
        ["cron", "interval", "phase", "time_zone"],
        ["item"],
    ]


def test_coming_times_of_an_expression_need_no_server() -> None:
    command = ["recurring", "next", "30 2 * * *", "--timezone", "Europe/Berlin", "--count", "2",
               "--after", "2026-03-28T12:00:00Z", "--address", "127.0.0.1:1"]  # fmt: skip
    shown = CliRunner().invoke(querator, command)
    assert shown.stdout.splitlines()[2:] == [
        "2026-03-29T01:00:00Z  2026-03-29T01:00:00Z",
        "2026-03-30T00:30:00Z  2026-03-30T00:30:00Z",
    ]
    command = ["recurring", "next", "--interval", "90m", "--phase", "0", "--count", "1",
               "--after", "2026-03-28T12:00:00Z", "--output", "json"]  # fmt: skip
    line = msgspec.json.decode(CliRunner().invoke(querator, command).stdout)
    assert line == {"due_at": "2026-03-28T13:30:00Z", "fire_at": "2026-03-28T13:30:00Z"}


def test_where_the_library_is_missing_the_server_is_asked(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querator.cli.recurring.find_spec", lambda _: None)
    asked: list[pb.GetRecurrenceTimesRequest] = []

    def answer(data: bytes) -> pb.GetRecurrenceTimesResponse:
        asked.append(pb.GetRecurrenceTimesRequest.FromString(data))
        return pb.GetRecurrenceTimesResponse(
            times=[untyped.RecurrenceTime(due_at=NOW, fire_at=NOW)]
        )

    cluster.answers["GetRecurrenceTimes"] = answer
    assert "2030-01-31T12:00:00Z" in invoke(cluster, "next", "@daily", "--count", "1").stdout
    assert "2030-01-31T12:00:00Z" in invoke(cluster, "next", "mail", "digest").stdout
    assert [(one.spec.cron, one.name, one.count) for one in asked] == [
        ("@daily", "", 1), ("", "digest", 10),
    ]  # fmt: skip
