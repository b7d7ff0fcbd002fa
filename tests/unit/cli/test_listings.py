"""Commands whose output is long or refused: pieces that come early, closed pipes, colours."""

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from click.testing import CliRunner
from google.protobuf.message import Message

from querator.cli import querator
from querator.client import clock
from querator.model.errors import QueratorError, over_limit
from querator.v1 import admin_service_pb2, cluster_service_pb2, items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, on_terminal, scripted_cluster

BOLD = "\x1b[1m"
PAGES = 3
PAGE_ITEMS = 1_000


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        yield cluster


def page(request: bytes) -> admin_service_pb2.PeekItemsResponse:
    """One of `PAGES` pages, each as large as a page may be."""
    token = admin_service_pb2.PeekItemsRequest.FromString(request).page_token or "0"
    first = int(token) * PAGE_ITEMS
    items = [
        admin_service_pb2.PeekedItem(
            seq=seq,
            state=items_pb2.ITEM_STATE_READY,
            item=items_pb2.Item(payload=b"payload %d" % seq),
        )
        for seq in range(first, first + PAGE_ITEMS)
    ]
    after = int(token) + 1
    return admin_service_pb2.PeekItemsResponse(
        items=items, next_page_token=str(after) if after < PAGES else ""
    )


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_page_is_written_before_the_next_one_is_asked_for(
    form: str, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    lines_at_requests: list[int] = []

    def answer(request: bytes) -> admin_service_pb2.PeekItemsResponse:
        lines_at_requests.append(written.getvalue().count(b"\n"))
        return page(request)

    cluster.answers["PeekItems"] = answer
    command = ["peek", "mail", "--limit", "3000", "--output", form, "--address", cluster.address]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8"))
        assert not querator.main(command, prog_name="querator", standalone_mode=False)
        heads = 2 if form == "table" else 0
        assert lines_at_requests == [0, heads + PAGE_ITEMS, heads + 2 * PAGE_ITEMS]
        assert b"payload 2999" in written.getvalue().splitlines()[-1]


def test_the_counts_of_a_queue_are_written_before_those_of_the_next_one_are_asked_for(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    lines_at_requests: list[int] = []
    queues = [admin_service_pb2.Queue(name=name) for name in ("a", "b", "c")]

    def answer(request: bytes) -> admin_service_pb2.GetQueueStatsResponse:
        lines_at_requests.append(written.getvalue().count(b"\n"))
        name = admin_service_pb2.GetQueueStatsRequest.FromString(request).queue
        return admin_service_pb2.GetQueueStatsResponse(queue=admin_service_pb2.Queue(name=name))

    cluster.answers = {
        "ListQueues": admin_service_pb2.ListQueuesResponse(queues=queues),
        "GetQueueStats": answer,
    }
    command = ["stats", "--output", "json", "--address", cluster.address]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8"))
        assert not querator.main(command, prog_name="querator", standalone_mode=False)
        assert lines_at_requests == [0, 1, 2]


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_closed_pipe_ends_the_command_quietly(form: str, cluster: ScriptedCluster) -> None:
    cluster.answers["PeekItems"] = page
    command = subprocess.Popen(
        [
            sys.executable, "-m", "querator", "peek", "mail", "--limit", "3000",
            "--output", form, "--address", cluster.address,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.stderr.read() == b""
    command.stderr.close()
    assert command.wait() == 128 + signal.SIGPIPE


def test_no_color_means_no_bold(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = admin_service_pb2.Queue(name="mail")
    cluster.answers = {
        "GetQueue": admin_service_pb2.GetQueueResponse(queue=queue),
        "ListQueues": admin_service_pb2.ListQueuesResponse(queues=[queue]),
        "GetQueueStats": admin_service_pb2.GetQueueStatsResponse(
            queue=queue, total=admin_service_pb2.PartitionStats()
        ),
    }
    for command in (["queue", "info", "mail"], ["queue", "list"], ["stats", "mail"]):
        command += ["--address", cluster.address]
        _, plain = on_terminal(monkeypatch, command, columns=80)
        _, styled = on_terminal(monkeypatch, command, columns=80, color=True)
        assert "\x1b" not in plain
        assert BOLD in styled


@pytest.mark.parametrize(
    ("redriven", "items", "code", "words"),
    [
        (
            0,
            ["0-17"],
            1,
            "Error: 0-17 is no dead letter of mail; list them with: querator dead list mail",
        ),
        (1, ["0-17", "0-18"], 1, "Error: 1 of 2 items are no dead letters of mail; list them"),
        (2, ["0-17", "0-18"], 0, "2 dead letters on the way back to mail.\n"),
        (0, ["--all"], 0, "0 dead letters on the way back to mail.\n"),
    ],
)
def test_a_redrive_of_nothing_is_a_failure(
    redriven: int, items: list[str], code: int, words: str, cluster: ScriptedCluster
) -> None:
    cluster.answers["RedriveDeadLetters"] = admin_service_pb2.RedriveDeadLettersResponse(
        redriven=redriven
    )
    outcome = CliRunner().invoke(
        querator, ["dead", "redrive", "mail", *items, "--address", cluster.address]
    )
    assert outcome.exit_code == code
    assert words in outcome.output


def test_a_dead_letter_of_a_worker_that_was_killed_says_what_happened(
    cluster: ScriptedCluster,
) -> None:
    letters = [
        admin_service_pb2.PeekedItem(
            seq=1,
            state=items_pb2.ITEM_STATE_READY,
            dead_letter=items_pb2.DeadLetter(origin_queue="mail", attempts=3, reason=reason),
        )
        for reason in (items_pb2.DEAD_REASON_ATTEMPTS, items_pb2.DEAD_REASON_EXPIRED)
    ]
    cluster.answers["ListDeadLetters"] = admin_service_pb2.ListDeadLettersResponse(items=letters)
    outcome = CliRunner().invoke(
        querator, ["dead", "list", "mail", "--address", cluster.address], terminal_width=200
    )
    killed, expired = outcome.output.splitlines()[-2:]
    assert "lease lapsed: consumer gone or too slow" in killed
    assert "lapsed" not in expired


@pytest.mark.parametrize(
    ("options", "items"),
    [
        ((), ["0-1", "0-2", "0-3", "0-4"]),
        (("--reason", "attempts"), ["0-1", "0-3"]),
        (("--reason", "attempts", "--reason", "expired"), ["0-1", "0-2", "0-3"]),
        (("--older-than", "90m"), ["0-2", "0-3", "0-4"]),
        (("--newer-than", "90m"), ["0-1"]),
        (("--newer-than", "2h30m", "--older-than", "90m"), ["0-2"]),
        (("--kind", "b"), ["0-3"]),
        (("--text", "refused"), ["0-1", "0-4"]),
        (("--text", "payload 2"), ["0-2"]),
        (("--text", "payload", "--reason", "attempts", "--kind", "a"), ["0-1"]),
        (("--text", "payload", "--limit", "2"), ["0-1", "0-2"]),
        (("--kind", "c"), []),
    ],
)
def test_dead_letters_are_listed_by_reason_time_kind_and_text(
    cluster: ScriptedCluster, options: tuple[str, ...], items: list[str]
) -> None:
    """Only `dead drop` and `dead redrive` had a choice."""
    now = datetime(2030, 1, 31, 12, tzinfo=UTC)
    letters = []
    for seq, (reason, kind, error) in enumerate(
        (
            (items_pb2.DEAD_REASON_ATTEMPTS, "a", "connection refused"),
            (items_pb2.DEAD_REASON_EXPIRED, "a", ""),
            (items_pb2.DEAD_REASON_ATTEMPTS, "b", "time-out"),
            (items_pb2.DEAD_REASON_REJECTED, "a", "refused"),
        ),
        1,
    ):
        letter = items_pb2.DeadLetter(reason=reason, errors=[error])
        letter.died_at.FromDatetime(now - timedelta(hours=seq))
        item = items_pb2.Item(payload=b"payload %d" % seq, kind=kind)
        peeked = admin_service_pb2.PeekedItem(
            seq=seq, state=items_pb2.ITEM_STATE_READY, dead_letter=letter, item=item
        )
        letters.append(peeked)
    cluster.answers["ListDeadLetters"] = admin_service_pb2.ListDeadLettersResponse(items=letters)
    command = ["dead", "list", "mail", *options, "--output", "json", "--address", cluster.address]
    with clock.replaced(lambda: int(now.timestamp()) * 10**9):
        outcome = CliRunner().invoke(querator, command)
    assert outcome.exit_code == 0, outcome.output
    assert [msgspec.json.decode(line)["id"] for line in outcome.stdout.splitlines()] == items
    if not items:
        outcome = CliRunner().invoke(querator, command[:-4] + command[-2:])
        assert outcome.output == "No such dead letters.\n"


def test_a_refused_option_is_named_as_it_was_typed(cluster: ScriptedCluster) -> None:
    cluster.answers["UpdateQueue"] = over_limit(
        "settings.lease_timeout", value=36_000_000, limit=3_600_000, unit="ms"
    )
    outcome = CliRunner().invoke(
        querator,
        ["queue", "update", "mail", "--lease-timeout", "10h", "--address", cluster.address],
    )
    assert outcome.exit_code == 3
    assert outcome.output == "Error: --lease-timeout is 10h; at most 1h (LIMIT_EXCEEDED).\n"


@pytest.mark.parametrize(
    ("command", "method", "answer"),
    [
        (
            ["stats", "mail"],
            "GetQueueStats",
            admin_service_pb2.GetQueueStatsResponse(queue=admin_service_pb2.Queue(name="mail")),
        ),
        (
            ["cluster", "status"],
            "GetClusterStatus",
            cluster_service_pb2.GetClusterStatusResponse(cluster_id="mail"),
        ),
    ],
    ids=["stats", "cluster status"],
)
def test_an_interval_means_watch(
    command: list[str], method: str, answer: Message, cluster: ScriptedCluster
) -> None:
    """The third answer is a refusal, which ends the command."""
    refusal = over_limit("queue", value=2, limit=1)
    answers: Iterator[Message | QueratorError] = iter([answer, answer, refusal])
    cluster.answers[method] = lambda _request: next(answers)
    outcome = CliRunner().invoke(
        querator, [*command, "--interval", "1ms", "--address", cluster.address]
    )
    assert outcome.exit_code == 3
    assert outcome.stdout.count("mail") >= 2
    instants = re.findall(
        r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, every 1ms; Ctrl-C ends it.$", outcome.stdout, re.M
    )
    assert len(instants) == 2
