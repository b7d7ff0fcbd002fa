"""`querator schedule`: what is asked for, what is shown, and what is asked before a change."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.client import clock
from querator.model.errors import over_limit
from querator.model.limits import SCHEDULE_AHEAD_MS_MAX
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster, scripted_counts

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
EMPTY_FILTER = pb.ScheduledFilter()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster, clock.replaced(lambda: int(NOW.timestamp()) * 10**9):
        yield cluster


def invoke(cluster: ScriptedCluster, *command: str, **options: Any) -> Result:
    return CliRunner().invoke(
        querator, ["schedule", *command, "--address", cluster.address], **options
    )


class Changes:
    """Answers changes and keeps their requests. `chosen`: number of items of each filter."""

    def __init__(self, cluster: ScriptedCluster, chosen: int, *not_scheduled: str) -> None:
        self.requests: list[pb.RescheduleItemsRequest] = []
        self._chosen = chosen
        self._not_scheduled = not_scheduled
        cluster.answers["RescheduleItems"] = self._answer

    def _answer(self, data: bytes) -> pb.RescheduleItemsResponse:
        request = pb.RescheduleItemsRequest.FromString(data)
        self.requests.append(request)
        changed = len(request.item_ids) - len(self._not_scheduled)
        return pb.RescheduleItemsResponse(
            changed=changed if request.item_ids else self._chosen,
            not_scheduled=self._not_scheduled,
        )

    @property
    def dry_runs(self) -> list[bool]:
        return [request.dry_run for request in self.requests]


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the standard input of commands a terminal."""

    def patch() -> None:
        monkeypatch.setattr("querator.cli.shared.confirmation.sys", _TerminalSys())

    return patch


class _TerminalSys:
    class stdin:
        @staticmethod
        def isatty() -> bool:
            return True


# --- list ----------------------------------------------------------------------------------


def test_a_list_is_asked_for_with_its_range(cluster: ScriptedCluster) -> None:
    requests = []

    def answer(data: bytes) -> pb.ListScheduledItemsResponse:
        requests.append(pb.ListScheduledItemsRequest.FromString(data))
        item = pb.PeekedItem(partition=1, seq=7, state=items_pb2.ITEM_STATE_SCHEDULED)
        item.due_at.FromDatetime(NOW + HOUR)
        item.item.kind = "bill"
        return pb.ListScheduledItemsResponse(items=[item])

    cluster.answers["ListScheduledItems"] = answer
    range_ = ("--from", "+1h", "--until", "2030-01-31T15:00:00+01:00", "--kind", "bill")
    shown = invoke(cluster, "list", "mail", *range_, "--limit", "5", "--stale")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[-1].split() == ["1-7", "2030-01-31T13:00:00Z", "0", "bill"]
    [request] = requests
    assert request.due_from.ToDatetime(UTC) == NOW + HOUR
    assert request.due_until.ToDatetime(UTC) == NOW + 2 * HOUR
    assert (request.queue, request.kind) == ("mail", "bill")
    assert (request.page_size, request.stale) == (5, True)
    lines = invoke(cluster, "list", "mail", "--output", "json").stdout.splitlines()
    assert [msgspec.json.decode(line)["due_at"] for line in lines] == ["2030-01-31T13:00:00Z"]


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "No scheduled items.\n"), (["--kind", "bill"], "No such items.\n")],
)
def test_an_empty_list_says_so(options: list[str], words: str, cluster: ScriptedCluster) -> None:
    cluster.answers["ListScheduledItems"] = pb.ListScheduledItemsResponse()
    shown = invoke(cluster, "list", "mail", *options)
    assert (shown.stdout, shown.stderr, shown.exit_code) == ("", words, 0)


def test_a_list_that_its_limit_ends_says_so(cluster: ScriptedCluster) -> None:
    item = pb.PeekedItem(state=items_pb2.ITEM_STATE_SCHEDULED)
    cluster.answers["ListScheduledItems"] = pb.ListScheduledItemsResponse(items=[item])
    shown = invoke(cluster, "list", "mail", "--limit", "1")
    assert shown.stderr == "The first 1; there may be more: --limit.\n"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("tomorrow", "'tomorrow' is no instant and no duration from now"),
        ("2030-01-31T25:00:00", "'2030-01-31T25:00:00' is no instant and no duration from now"),
        ("+1x", "'+1x' is no instant and no duration from now"),
        ("+9000000d", "'+9000000d' is too far ahead"),
    ],
)
def test_a_malformed_time_is_refused(value: str, words: str, cluster: ScriptedCluster) -> None:
    for command in (["list", "mail", "--from"], ["move", "mail", "0-17", "--to"]):
        refused = invoke(cluster, *command, value)
        assert refused.exit_code == 2
        assert words in refused.stderr
        assert command[-1] in refused.stderr


@pytest.mark.parametrize("until", ["+1h", "+59m"])
def test_a_range_ends_after_its_begin(until: str, cluster: ScriptedCluster) -> None:
    for command in (["list"], ["count"], ["run", "--yes"], ["move", "--to", "+1h", "--yes"]):
        refused = invoke(cluster, *command, "mail", "--from", "+1h", "--until", until)
        assert refused.exit_code == 2
        assert "--until is 2030-01-31T1" in refused.stderr
        assert "it must be after --from, which is 2030-01-31T13:00:00Z." in refused.stderr


# --- count ---------------------------------------------------------------------------------


def counts(cluster: ScriptedCluster, *options: str) -> Any:
    shown = invoke(cluster, "count", "mail", *options, "--output", "json")
    assert shown.exit_code == 0, shown.output
    return msgspec.json.decode(shown.stdout)


@pytest.mark.parametrize(
    "spread",
    [
        timedelta(0),
        timedelta(seconds=7),
        timedelta(minutes=50),
        timedelta(hours=30),
        timedelta(days=100),
        timedelta(days=3_650),
    ],
)
def test_a_picture_has_all_items_in_few_rows(spread: timedelta, cluster: ScriptedCluster) -> None:
    first = NOW + timedelta(minutes=3, milliseconds=17)
    cluster.answers["CountScheduledItems"] = scripted_counts(
        {first + spread * n / 100: n + 1 for n in range(101)} if spread else {first: 5_151}
    )
    found = counts(cluster)
    assert (found["total"], found["before"], found["after"]) == (5_151, 0, 0)
    assert 1 <= len(found["buckets"]) <= 21
    interval = timedelta(milliseconds=found["interval_ms"])
    assert len(found["buckets"]) >= 5 or spread <= 5 * interval
    starts = [datetime.fromisoformat(bucket["starts_at"]) for bucket in found["buckets"]]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert all((start - epoch) % interval == timedelta(0) for start in starts)


def test_a_picture_of_a_range_begins_there(cluster: ScriptedCluster) -> None:
    due = {NOW + n * timedelta(minutes=1): 1 for n in range(120)}
    cluster.answers["CountScheduledItems"] = scripted_counts(due)
    begin = ("--from", "2030-01-31T12:07:30Z")
    found = counts(cluster, *begin, "--until", "+1h")
    assert (found["before"], found["total"], found["after"]) == (8, 52, 60)
    assert found["buckets"][0]["starts_at"] == "2030-01-31T12:07:30Z"
    assert len(found["buckets"]) <= 21
    found = counts(cluster, *begin, "--until", "9999-12-31T00:00:00Z")
    assert (found["before"], found["total"], found["after"]) == (8, 112, 0)
    assert len(found["buckets"]) <= 21
    found = counts(cluster, "--until", "+1h")
    assert (found["before"], found["total"], found["after"]) == (0, 60, 60)


@pytest.mark.parametrize("begin", ["0001-01-01", "2000-01-01", "2010-01-01", "2015-01-01"])
def test_a_picture_of_a_range_that_began_years_ago(begin: str, cluster: ScriptedCluster) -> None:
    due = {NOW + HOUR: 5, NOW + timedelta(days=100): 7}
    cluster.answers["CountScheduledItems"] = scripted_counts(due)
    found = counts(cluster, "--from", begin)
    assert (found["before"], found["total"], found["after"]) == (0, 12, 0)
    found = counts(cluster, "--from", begin, "--until", "+1d")
    assert (found["before"], found["total"], found["after"]) == (0, 5, 7)


def test_a_picture_of_a_rare_kind(cluster: ScriptedCluster) -> None:
    due = {NOW + timedelta(days=300, minutes=n): 1 for n in range(120)}
    cluster.answers["CountScheduledItems"] = scripted_counts(due, first=NOW)
    found = counts(cluster, "--kind", "rare")
    assert (found["before"], found["total"], found["after"]) == (0, 120, 0)
    assert 12 <= len(found["buckets"]) <= 21


def test_a_given_interval_is_one_call(cluster: ScriptedCluster) -> None:
    requests = []
    answer = scripted_counts({NOW + HOUR: 4, NOW + 3 * HOUR: 1})

    def recorded(data: bytes) -> Any:
        requests.append(pb.CountScheduledItemsRequest.FromString(data))
        return answer(data)

    cluster.answers["CountScheduledItems"] = recorded
    found = counts(
        cluster, "--interval", "30m", "--from", "+0", "--until", "+2h", "--kind", "bill", "--stale"
    )
    assert found == {
        "interval_ms": 1_800_000,
        "buckets": [{"starts_at": "2030-01-31T13:00:00Z", "items": 4}],
        "total": 4,
        "before": 0,
        "after": 1,
    }
    [request] = requests
    assert (request.kind, request.stale) == ("bill", True)
    assert request.interval.ToTimedelta() == timedelta(minutes=30)
    assert request.due_from.ToDatetime(UTC) == NOW


def test_a_pipe_gets_a_picture_of_80_columns(cluster: ScriptedCluster) -> None:
    due = {NOW: 1_000, NOW + HOUR: 1, NOW + 3 * HOUR: 500, NOW + 9 * HOUR: 2}
    cluster.answers["CountScheduledItems"] = scripted_counts(due)
    shown = invoke(cluster, "count", "mail", "--interval", "1h", "--until", "+8h")
    head, _, *rows, summary = shown.stdout.splitlines()
    assert head.split() == ["due", "from", "items"]
    assert max(map(len, rows)) == 80
    assert [row.split()[:2] for row in rows] == [
        ["2030-01-31T12:00:00Z", "1,000"],
        ["2030-01-31T13:00:00Z", "1"],
        ["2030-01-31T14:00:00Z", "0"],
        ["2030-01-31T15:00:00Z", "500"],
    ]
    bars = [row[29:] for row in rows]
    assert [len(bar) for bar in bars] == [51, 1, 0, 26]
    assert summary == "1,501 items in rows of 1h. Due before: 0. Due after: 2."


def test_nothing_to_count(cluster: ScriptedCluster) -> None:
    cluster.answers["CountScheduledItems"] = scripted_counts({})
    assert invoke(cluster, "count", "mail").stderr == "No scheduled items.\n"
    cluster.answers["CountScheduledItems"] = scripted_counts({NOW: 2, NOW + 9 * HOUR: 5})
    shown = invoke(cluster, "count", "mail", "--from", "+1h", "--until", "+2h")
    assert (shown.stdout, shown.exit_code) == ("", 0)
    assert shown.stderr == "No items are due then. Before: 2. After: 5.\n"
    assert counts(cluster, "--from", "+1h", "--until", "+2h")["buckets"] == []


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ("999ms", "--interval is 999ms; at least 1s."),
        ("4000d", "--interval is 4000d; at most 10 years."),
        ("soon", "'soon' is not a duration"),
    ],
)
def test_an_interval_out_of_range(interval: str, words: str, cluster: ScriptedCluster) -> None:
    refused = invoke(cluster, "count", "mail", "--interval", interval)
    assert refused.exit_code == 2
    assert words in refused.stderr


# --- changes -------------------------------------------------------------------------------


def test_items_are_changed_by_id_without_a_question(cluster: ScriptedCluster) -> None:
    changes = Changes(cluster, 0)
    moved = invoke(cluster, "move", "mail", "0-17", "1-2", "--to", "+1h30m")
    assert moved.stdout == "2 items moved to 2030-01-31T13:30:00Z.\n"
    assert invoke(cluster, "run", "mail", "0-17").stdout == "1 item made ready.\n"
    assert invoke(cluster, "cancel", "mail", "0-17").stdout == "1 item cancelled.\n"
    assert [list(request.item_ids) for request in changes.requests] == [
        ["0-17", "1-2"],
        ["0-17"],
        ["0-17"],
    ]
    actions = [request.WhichOneof("action") for request in changes.requests]
    assert actions == ["due_at", "run_now", "cancel"]
    assert changes.requests[0].due_at.ToDatetime(UTC) == NOW + timedelta(minutes=90)


def test_a_move_to_a_time_that_has_passed_says_that_the_items_are_ready(
    cluster: ScriptedCluster,
) -> None:
    Changes(cluster, 0)
    moved = invoke(cluster, "move", "mail", "0-17", "--to", "2020-01-01T00:00:00Z")
    assert moved.stdout == (
        "1 item moved to 2020-01-01T00:00:00Z, which has passed: ready at once.\n"
    )


def test_ids_that_are_not_scheduled_are_a_failure(cluster: ScriptedCluster) -> None:
    Changes(cluster, 0, "0-17")
    failed = invoke(cluster, "cancel", "mail", "0-17", "0-18")
    assert (failed.stdout, failed.exit_code) == ("1 item cancelled.\n", 1)
    assert failed.stderr.startswith("Error: Not scheduled, but ready, leased or gone: 0-17. ")
    failed = invoke(cluster, "cancel", "mail", "0-17")
    assert (failed.stdout, failed.exit_code) == ("", 1)
    failed = invoke(cluster, "run", "mail", "0-17", "--output", "json")
    assert msgspec.json.decode(failed.stdout) == {
        "changed": 0,
        "not_scheduled": ["0-17"],
        "dry_run": False,
    }
    assert failed.exit_code == 1
    Changes(cluster, 0, *(f"0-{n}" for n in range(1, 8)))
    failed = invoke(cluster, "run", "mail", *(f"0-{n}" for n in range(1, 8)))
    assert "gone: 0-1, 0-2, 0-3, 0-4, 0-5 …. List" in failed.stderr


@pytest.mark.parametrize(
    ("command", "question", "done"),
    [
        (
            ["move", "mail", "--kind", "bill", "--to", "2031-01-01T00:00:00Z"],
            "Move 12 items of mail to 2031-01-01T00:00:00Z?",
            "12 items moved to 2031-01-01T00:00:00Z.\n",
        ),
        (["run", "mail", "--until", "+10m"], "Run 12 items of mail now?", "12 items made ready.\n"),
        (["cancel", "mail", "--all"], "Cancel 12 items of mail?", "12 items cancelled.\n"),
    ],
    ids=["move", "run", "cancel"],
)
def test_a_filter_asks_before_the_change(
    command: list[str],
    question: str,
    done: str,
    cluster: ScriptedCluster,
    at_a_terminal: Callable[[], None],
) -> None:
    at_a_terminal()
    changes = Changes(cluster, 12)
    agreed = invoke(cluster, *command, input="y\n")
    assert question in agreed.stderr
    assert (agreed.stdout, agreed.exit_code) == (done, 0)
    assert changes.dry_runs == [True, False]
    asked, changed = changes.requests
    assert asked.filter == changed.filter
    assert asked.WhichOneof("action") == changed.WhichOneof("action")
    declined = invoke(cluster, *command, input="n\n")
    assert declined.exit_code == 1
    assert changes.dry_runs[2:] == [True]


def test_items_are_moved_by_a_time(
    cluster: ScriptedCluster, at_a_terminal: Callable[[], None]
) -> None:
    """Each due time becomes a call with its own instant."""
    at_a_terminal()
    changes = Changes(cluster, 3)
    items = []
    for seq, hours in ((1, 1), (2, 1), (3, 2)):
        item = pb.PeekedItem(partition=0, seq=seq, state=items_pb2.ITEM_STATE_SCHEDULED)
        item.due_at.FromDatetime(NOW + hours * HOUR)
        items.append(item)
    cluster.answers["ListScheduledItems"] = pb.ListScheduledItemsResponse(items=items)
    shown = invoke(cluster, "move", "mail", "--until", "+3h", "--by", "30m", input="y\n")
    assert "Move 3 items of mail by 30m?" in shown.stderr
    assert (shown.stdout, shown.exit_code) == ("3 items moved by 30m.\n", 0)
    asked, *moved = changes.requests
    assert asked.dry_run
    assert [(list(one.item_ids), one.due_at.ToDatetime(UTC)) for one in moved] == [
        (["0-1", "0-2"], NOW + 1.5 * HOUR),
        (["0-3"], NOW + 2.5 * HOUR),
    ]
    changes.requests.clear()
    named = invoke(cluster, "move", "mail", "0-2", "0-9", "--by", "1h")
    assert (named.stdout, named.exit_code) == ("1 item moved by 1h.\n", 1)
    assert "Not scheduled, but ready, leased or gone: 0-9" in named.stderr
    [request] = changes.requests
    assert (list(request.item_ids), request.due_at.ToDatetime(UTC)) == (["0-2"], NOW + 2 * HOUR)


def test_a_filter_that_chooses_nothing_asks_nothing(
    cluster: ScriptedCluster, at_a_terminal: Callable[[], None]
) -> None:
    at_a_terminal()
    changes = Changes(cluster, 0)
    assert invoke(cluster, "cancel", "mail", "--all").stdout == "0 items cancelled.\n"
    assert changes.dry_runs == [True]


@pytest.mark.parametrize("command", ["run", "cancel"])
def test_a_filter_needs_yes_without_a_terminal(command: str, cluster: ScriptedCluster) -> None:
    changes = Changes(cluster, 12)
    refused = invoke(cluster, command, "mail", "--all")
    assert refused.exit_code == 2
    assert "give --yes." in refused.stderr
    assert changes.requests == []
    assert invoke(cluster, command, "mail", "--all", "--yes").exit_code == 0
    assert changes.dry_runs == [False]
    assert changes.requests[0].HasField("filter")
    assert changes.requests[0].filter == EMPTY_FILTER


def test_a_dry_run_changes_nothing(cluster: ScriptedCluster) -> None:
    changes = Changes(cluster, 12)
    for command, words in (
        (("move", "mail", "--to", "+1h"), "12 items would be moved.\n"),
        (("run", "mail"), "12 items would be made ready.\n"),
        (("cancel", "mail"), "12 items would be cancelled.\n"),
    ):
        shown = invoke(cluster, *command, "--from", "+1h", "--dry-run", "--yes")
        assert (shown.stdout, shown.exit_code) == (words, 0)
    assert changes.dry_runs == [True] * 3
    assert changes.requests[0].filter.due_from.ToDatetime(UTC) == NOW + HOUR


@pytest.mark.parametrize(
    "choice",
    [[], ["0-17", "--all"], ["0-17", "--kind", "bill"], ["--all", "--from", "+1h"], ["--kind", ""]],
)
def test_one_way_to_choose_items_is_needed(choice: list[str], cluster: ScriptedCluster) -> None:
    for command in (["move", "--to", "+1h"], ["run"], ["cancel"]):
        refused = invoke(cluster, *command, "mail", *choice, "--yes")
        assert refused.exit_code == 2
        assert "Name the items" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cancel", "mail", "0-17", "--dry-run"], "--dry-run is for items that options choose"),
        (["cancel", "mail", "seventeen"], "'seventeen' is not an item id"),
        (
            ["move", "mail", "0-17"],
            "Give the new due time by --to, or how much",
        ),
        (["move", "mail", "0-17", "--to", "+1h", "--by", "1h"], "Give the new due time by --to"),
        (["move", "mail", "0-17", "--by", "0s"], "0s"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], words: str, cluster: ScriptedCluster) -> None:
    refused = invoke(cluster, *arguments)
    assert refused.exit_code == 2
    assert words in refused.stderr


def test_a_refused_time_is_named_as_it_was_typed(cluster: ScriptedCluster) -> None:
    cluster.answers["RescheduleItems"] = over_limit(
        "due_at", value=SCHEDULE_AHEAD_MS_MAX + 86_400_000, limit=SCHEDULE_AHEAD_MS_MAX,
        unit="ms ahead",
    )  # fmt: skip
    refused = invoke(cluster, "move", "mail", "0-17", "--to", "+3651d")
    assert refused.exit_code == 3
    assert refused.stderr.startswith("Error: --to is ")
    assert "ahead; at most 10 years (LIMIT_EXCEEDED)." in refused.stderr


def test_the_counts_of_a_queue_have_the_cancelled_items(cluster: ScriptedCluster) -> None:
    total = pb.PartitionStats(produced=5, cancelled=3)
    cluster.answers["GetQueueStats"] = pb.GetQueueStatsResponse(
        queue=pb.Queue(name="mail"), total=total, partitions=[total], durable=True
    )
    command = ["stats", "mail", "--address", cluster.address]
    head, _, row = CliRunner().invoke(querator, command).stdout.split("\n\n")[1].splitlines()
    assert dict(zip(head.split(), row.split(), strict=True))["cancelled"] == "3"
    (line,) = CliRunner().invoke(querator, [*command, "--output", "json"]).stdout.splitlines()
    assert msgspec.json.decode(line)["total"]["cancelled"] == 3
