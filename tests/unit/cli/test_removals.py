"""`queue purge`, `cancel`, and `dead drop|redrive`: what is asked for, shown, and asked."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

from querator.cli import querator
from querator.client import clock
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.unit.cli.test_schedules import _TerminalSys

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
NO_TERMINAL = "Standard input is not a terminal"


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster, clock.replaced(lambda: int(NOW.timestamp()) * 10**9):
        yield cluster


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.cli.shared.confirmation.sys", _TerminalSys())


def invoke(cluster: ScriptedCluster, *command: str, **options: Any) -> Result:
    return CliRunner().invoke(querator, [*command, "--address", cluster.address], **options)


class Asked:
    """Answers a method and keeps its requests."""

    def __init__(self, cluster: ScriptedCluster, method: str, *answers: Message) -> None:
        self.requests: list[Any] = []
        self._kind = getattr(pb, f"{method}Request")
        self._answers = list(answers)
        cluster.answers[method] = self._answer

    def _answer(self, data: bytes) -> Message:
        self.requests.append(self._kind.FromString(data))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @property
    def dry_runs(self) -> list[bool]:
        return [request.dry_run for request in self.requests]


# --- purge ------------------------------------------------------------------------------------


def test_a_purge_shows_what_it_removes_and_asks(cluster: ScriptedCluster, terminal: None) -> None:
    asked = Asked(cluster, "PurgeQueue", pb.PurgeQueueResponse(removed=1_204, leased=5))
    shown = invoke(cluster, "queue", "purge", "mail", input="y\n")
    assert shown.exit_code == 0, shown.output
    assert "Remove 1,204 items of mail for ever? [y/N]" in shown.stderr
    assert shown.stdout == "1,204 items removed from mail.\n"
    assert "Not touched: 5 leased.\n" in shown.stderr
    assert asked.dry_runs == [True, False]


def test_a_purge_that_is_not_wanted_changes_nothing(
    cluster: ScriptedCluster, terminal: None
) -> None:
    asked = Asked(cluster, "PurgeQueue", pb.PurgeQueueResponse(removed=3))
    shown = invoke(cluster, "queue", "purge", "mail", input="n\n")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "Nothing was changed." in shown.stderr
    assert asked.dry_runs == [True]


def test_a_purge_of_an_empty_queue_asks_nothing(cluster: ScriptedCluster, terminal: None) -> None:
    asked = Asked(cluster, "PurgeQueue", pb.PurgeQueueResponse(reserved=2, moving=1))
    shown = invoke(cluster, "queue", "purge", "mail")
    assert (shown.exit_code, shown.stdout) == (0, "0 items removed from mail.\n")
    stays = "Not touched: 2 in batches of readers, 1 on the way to another queue.\n"
    assert shown.stderr == stays
    assert asked.dry_runs == [True]


def test_a_purge_without_a_terminal_needs_yes(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "PurgeQueue", pb.PurgeQueueResponse(removed=3))
    shown = invoke(cluster, "queue", "purge", "mail")
    assert (shown.exit_code, asked.requests) == (2, [])
    assert NO_TERMINAL in shown.output
    assert invoke(cluster, "queue", "purge", "mail", "--yes").exit_code == 0
    assert asked.dry_runs == [False]
    assert invoke(cluster, "queue", "purge", "mail", "--dry-run").stdout == (
        "3 items would be removed from mail.\n"
    )


def test_a_long_purge_is_continued_and_added_up(cluster: ScriptedCluster) -> None:
    asked = Asked(
        cluster,
        "PurgeQueue",
        pb.PurgeQueueResponse(removed=100, leased=9, next_page_token="more"),
        pb.PurgeQueueResponse(removed=20, leased=7, scheduled=4),
    )
    options = ("--keep-scheduled", "--yes", "--output", "json")
    shown = invoke(cluster, "queue", "purge", "mail", *options)
    assert msgspec.json.decode(shown.stdout) == {
        "removed": 120, "leased": 7, "reserved": 0, "moving": 0, "scheduled": 4, "dry_run": False,
    }  # fmt: skip
    assert [request.page_token for request in asked.requests] == ["", "more"]
    assert all(request.keep_scheduled for request in asked.requests)


# --- cancel -----------------------------------------------------------------------------------


def test_items_are_cancelled(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "CancelItems", pb.CancelItemsResponse(cancelled=2))
    assert invoke(cluster, "cancel", "mail", "0-17", "0-18").stdout == "2 items cancelled.\n"
    [request] = asked.requests
    assert (request.queue, list(request.item_ids)) == ("mail", ["0-17", "0-18"])
    answer = pb.CancelItemsResponse(cancelled=1, not_waiting=["0-18"])
    cluster.answers["CancelItems"] = answer
    shown = invoke(cluster, "cancel", "mail", "0-17", "0-18")
    assert (shown.exit_code, shown.stdout) == (1, "1 item cancelled.\n")
    assert "Not waiting, but leased or gone: 0-18" in shown.stderr
    shown = invoke(cluster, "cancel", "mail", "0-17", "--output", "json")
    assert msgspec.json.decode(shown.stdout) == {"cancelled": 1, "not_waiting": ["0-18"]}


# --- dead letters -----------------------------------------------------------------------------


def test_letters_that_are_named_are_dropped_without_a_question(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "DropDeadLetters", pb.DropDeadLettersResponse(dropped=1))
    shown = invoke(cluster, "dead", "drop", "mail", "0-17")
    assert (shown.exit_code, shown.stdout) == (0, "1 dead letter of mail dropped.\n")
    assert not asked.requests[0].HasField("filter")
    shown = invoke(cluster, "dead", "drop", "mail", "0-17", "0-18")
    assert shown.exit_code == 1
    assert "1 of 2 items are no dead letters of mail" in shown.stderr


def test_letters_that_options_choose_are_dropped_after_a_question(
    cluster: ScriptedCluster, terminal: None
) -> None:
    asked = Asked(cluster, "DropDeadLetters", pb.DropDeadLettersResponse(dropped=3))
    options = ("--reason", "expired", "--reason", "rejected", "--older-than", "2h",
               "--newer-than", "1d")  # fmt: skip
    shown = invoke(cluster, "dead", "drop", "mail", *options, input="y\n")
    assert "Drop 3 dead letters of mail for ever? [y/N]" in shown.stderr
    assert shown.stdout == "3 dead letters of mail dropped.\n"
    assert asked.dry_runs == [True, False]
    chosen = asked.requests[1].filter
    assert list(chosen.reasons) == [
        items_pb2.DEAD_REASON_EXPIRED, items_pb2.DEAD_REASON_REJECTED,
    ]  # fmt: skip
    assert chosen.died_from.ToDatetime(UTC) == NOW - timedelta(days=1)
    assert chosen.died_until.ToDatetime(UTC) == NOW - timedelta(hours=2)
    shown = invoke(cluster, "dead", "drop", "mail", "--all", input="n\n")
    assert shown.exit_code == 1
    assert "Nothing was changed." in shown.stderr
    assert asked.dry_runs == [True, False, True]


def test_a_drop_of_all_letters_needs_yes_or_a_terminal(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "DropDeadLetters", pb.DropDeadLettersResponse(dropped=3))
    shown = invoke(cluster, "dead", "drop", "mail", "--all")
    assert (shown.exit_code, asked.requests) == (2, [])
    assert NO_TERMINAL in shown.output
    shown = invoke(cluster, "dead", "drop", "mail", "--all", "--yes", "--output", "json")
    assert msgspec.json.decode(shown.stdout) == {"dropped": 3, "dry_run": False}
    assert asked.requests[0].HasField("filter")
    shown = invoke(cluster, "dead", "drop", "mail", "--all", "--dry-run")
    assert shown.stdout == "3 dead letters of mail would be dropped.\n"
    assert asked.dry_runs == [False, True]


def test_a_redrive_asks_nothing_and_can_be_tried(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "RedriveDeadLetters", pb.RedriveDeadLettersResponse(redriven=3))
    shown = invoke(cluster, "dead", "redrive", "mail", "--reason", "attempts", "--dry-run")
    assert shown.stdout == "3 dead letters would go back to mail.\n"
    assert asked.requests[0].dry_run
    assert list(asked.requests[0].filter.reasons) == [items_pb2.DEAD_REASON_ATTEMPTS]
    assert invoke(cluster, "dead", "redrive", "mail", "--all").exit_code == 0
    assert not asked.requests[1].HasField("filter")


@pytest.mark.parametrize("command", ["drop", "redrive"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "Name the items (see `querator dead list`), or choose them by --reason"),
        (("0-1", "--all"), "Name the items"),
        (("--all", "--reason", "expired"), "Name the items"),
        (("0-1", "--dry-run"), "--dry-run is for letters that options choose"),
        (("--reason", "boredom"), "'boredom' is not one of 'attempts', 'expired', 'rejected'"),
        (("--older-than", "soon"), "soon"),
        (
            ("--older-than", "2h", "--newer-than", "1h"),
            "--newer-than is 1h; it must be longer than --older-than, which is 2h.",
        ),
    ],
)
def test_choices_that_are_refused(
    command: str, options: tuple[str, ...], words: str, cluster: ScriptedCluster
) -> None:
    shown = invoke(cluster, "dead", command, "mail", *options)
    assert shown.exit_code == 2
    assert words in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("word", "hint"),
    [("purge", "queue purge"), ("clear", "queue purge"), ("drop", "dead drop")],
)
def test_words_of_other_systems_lead_to_the_command(
    word: str, hint: str, cluster: ScriptedCluster
) -> None:
    shown = invoke(cluster, word, "mail")
    assert shown.exit_code == 2
    assert f"Did you mean '{hint}'?" in shown.output
