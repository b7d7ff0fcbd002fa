"""`querator execution`: what is asked for, what is shown, and how a command ends."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

from querator.cli import querator
from querator.cli.journals import value_text
from querator.client import clock
from querator.client.executions import EXECUTION_STATES
from querator.durable import JournalEntry, durable
from querator.durable.arguments import encode_arguments
from querator.durable.codec import Codec
from querator.durable.promises import ExecutionIdentity, make_token
from querator.model.errors import ErrorCode, QueratorError
from querator.model.executions import RecordKind, encode_path
from querator.v1 import execution_service_pb2 as pb
from tests.unit.cli.scripted_cluster import (
    ScriptedCluster,
    scripted_cluster,
    scripted_execution,
    scripted_journal,
)
from tests.unit.cli.test_schedules import _TerminalSys

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
SHOP = ("shop", "order-17")


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster, clock.replaced(lambda: int(NOW.timestamp()) * 10**9):
        yield cluster


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.cli.shared.confirmation.sys", _TerminalSys())


def invoke(cluster: ScriptedCluster, *command: str, **options: Any) -> Result:
    first, second, *others = command
    words = ["execution", first, "--address", cluster.address, second, *others]
    return CliRunner().invoke(querator, words, **options)


class Asked:
    """Answers a method, and keeps its requests."""

    def __init__(
        self, cluster: ScriptedCluster, method: str, *answers: Message | QueratorError
    ) -> None:
        self.requests: list[Any] = []
        self._kind = getattr(pb, f"{method}Request")
        self._answers = list(answers)
        cluster.answers[method] = self._answer

    def _answer(self, data: bytes) -> Message | QueratorError:
        self.requests.append(self._kind.FromString(data))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


# --- start and signal ----------------------------------------------------------------------------


@durable
async def checkout(order: str, skus: list[str], gift: bool, share: float) -> None: ...


def test_start_sends_the_arguments_as_the_sdk_does(cluster: ScriptedCluster) -> None:
    asked = Asked(
        cluster, "StartExecution", pb.StartExecutionResponse(),
        pb.StartExecutionResponse(attached=True),
    )  # fmt: skip
    command = (
        "start", "shop", "checkout", "order-17", ' [ "book" ,"\\u00e9"]', "true", "1.50",
        "--id", "order-17", "--delay", "90s", "--deadline", "+1h", "--priority", "-3",
        "--key-policy", "restart_closed",
    )  # fmt: skip
    first, second = invoke(cluster, *command), invoke(cluster, *command)
    assert (first.exit_code, first.stdout, first.stderr) == (0, "order-17\n", ""), first.output
    assert (second.stdout, second.stderr) == ("order-17\n", "order-17 exists already.\n")
    [one, _] = asked.requests
    args = ("order-17", ["book", "é"], True, 1.5)
    assert one.arguments == encode_arguments(checkout, Codec(), args, {})
    assert (one.queue, one.id, one.function, one.version) == ("shop", "order-17", "checkout", "-")
    assert (one.priority, one.key_policy) == (-3, pb.KEY_POLICY_RESTART_CLOSED)
    assert one.start_at.ToDatetime(UTC) == NOW + timedelta(seconds=90)
    assert one.deadline.ToDatetime(UTC) == NOW + timedelta(hours=1)


def test_a_start_without_an_id_prints_the_one_it_has_made(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "StartExecution", pb.StartExecutionResponse())
    names = [invoke(cluster, "start", "shop", "report").stdout.strip() for _ in range(2)]
    assert names == [one.id for one in asked.requests]
    assert len(set(names)) == 2
    assert asked.requests[0].arguments == b"[[],{}]"
    shown = invoke(cluster, "start", "shop", "report", "--id", "r-1", "--output", "json")
    assert msgspec.json.decode(shown.stdout) == {"id": "r-1", "started": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 17), ("-1.5", -1.5), ("null", None), ('"17"', "17"), ("order-17", "order-17"),
        ("", ""), ("nul", "nul"), ("NaN", "NaN"), ("[1, {}]", [1, {}]), (str(2**70), 2**70),
    ],
)  # fmt: skip
def test_a_value_is_json_or_a_text(cluster: ScriptedCluster, text: str, value: object) -> None:
    asked = Asked(cluster, "SignalExecution", pb.SignalExecutionResponse(index=4))
    shown = invoke(cluster, "signal", *SHOP, "address", "--", text)
    assert (shown.exit_code, shown.stderr) == (0, "Sent address to order-17.\n")
    [one] = asked.requests
    assert (one.queue, one.id, one.name) == ("shop", "order-17", "address")
    assert msgspec.json.decode(one.payload) == value
    assert one.message_id


def test_a_signal_without_a_value_has_null(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "SignalExecution", pb.SignalExecutionResponse())
    shown = invoke(cluster, "signal", *SHOP, "stop", "--output", "json")
    assert msgspec.json.decode(shown.stdout) == {"id": "order-17", "name": "stop"}
    assert asked.requests[0].payload == b"null"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("start", "shop", "f", "[1,"), "'[1,' begins like JSON, and is none"),
        (("signal", *SHOP, "go", '{"a": }'), "begins like JSON, and is none"),
        (("start", "shop", "f", "--delay", "1 week"), "is not a duration"),
        (("start", "shop", "f", "--deadline", "noon"), "is no instant"),
        (("start", "shop", "f", "--priority", "low"), "is not a whole number from"),
        (("list", "shop", "--state", "asleep"), "is not one of"),
        (("list", "shop", "--limit", "0"), "'0' is not a whole number, 1 or more"),
        (("retry", "shop"), "Give ids, or --stuck."),
        (("retry", "shop", "a", "--stuck"), "Give ids, or --stuck."),
        (("retry", "shop", "a", "--function", "f"), "--function needs --stuck."),
        (("resolve", "no token!"), "the token of a promise is damaged"),
        (("terminate", *SHOP), "Standard input is not a terminal"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_request(
    cluster: ScriptedCluster, command: tuple[str, ...], words: str
) -> None:
    """The cluster answers nothing: a request would end with another exit code."""
    shown = invoke(cluster, *command)
    assert shown.exit_code == 2, shown.output
    assert words in shown.stderr


def test_a_refusal_of_the_server_is_one_line(cluster: ScriptedCluster) -> None:
    cluster.answers["StartExecution"] = QueratorError(
        ErrorCode.EXECUTION_EXISTS, "execution order-17 exists with other arguments", field="id"
    )
    shown = invoke(cluster, "start", "shop", "checkout", "--id", "order-17")
    assert shown.exit_code == 3
    assert "Execution order-17 exists with other arguments (EXECUTION_EXISTS)." in shown.stderr


# --- list, show, journal -------------------------------------------------------------------------


def test_a_list_ends_at_its_limit_and_keeps_its_filter(cluster: ScriptedCluster) -> None:
    names = [f"order-{number}" for number in range(5)]
    page = [pb.Execution(id=name, function="checkout", state=pb.EXECUTION_STATE_STUCK)
            for name in names]  # fmt: skip
    asked = Asked(
        cluster, "ListExecutions",
        pb.ListExecutionsResponse(executions=page[:2], next_page_token="t"),
        pb.ListExecutionsResponse(executions=page[2:]),
    )  # fmt: skip
    command = ("list", "shop", "--state", "stuck", "--function", "checkout")
    shown = invoke(cluster, *command, "--limit", "4")
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == names[:4]
    assert shown.stderr == "The first 4; there may be more: --limit.\n"
    assert [(one.state, one.function, one.page_token) for one in asked.requests] == [
        (pb.EXECUTION_STATE_STUCK, "checkout", ""), (pb.EXECUTION_STATE_STUCK, "checkout", "t"),
    ]  # fmt: skip
    lines = invoke(cluster, *command, "--output", "json").stdout.splitlines()
    views = [msgspec.json.decode(line) for line in lines]
    assert [view["id"] for view in views] == names[2:]
    assert views[0]["state"] == "stuck"


@pytest.mark.parametrize(
    ("options", "words"),
    [((), "No executions.\n"), (("--state", "parked"), "No such executions.\n")],
)
def test_an_empty_list_is_said(
    cluster: ScriptedCluster, options: tuple[str, ...], words: str
) -> None:
    cluster.answers["ListExecutions"] = pb.ListExecutionsResponse()
    assert invoke(cluster, "list", "shop", *options).stderr == words
    assert invoke(cluster, "list", "shop", *options, "--output", "json").stdout == ""


def test_one_that_has_ended_is_shown_with_its_end(cluster: ScriptedCluster) -> None:
    cluster.answers["GetExecution"] = scripted_execution()
    text = invoke(cluster, "show", *SHOP).stdout
    for words in ("completed", "2029-12-31T12:01:00Z", '"sent"', "1.5 KiB"):
        assert words in text
    view = msgspec.json.decode(invoke(cluster, "show", *SHOP, "--output", "json").stdout)
    assert (view["state"], view["result"], view["error"]) == ("completed", "sent", None)
    assert view["closed_at"] == "2029-12-31T12:01:00Z"


def test_one_that_is_to_be_cancelled_says_so(cluster: ScriptedCluster) -> None:
    cluster.answers["GetExecution"] = scripted_execution(None, cancelled=True)
    assert "parked, to be cancelled" in invoke(cluster, "show", *SHOP).stdout
    view = msgspec.json.decode(invoke(cluster, "show", *SHOP, "--output", "json").stdout)
    assert (view["cancelled"], view["result"], view["error"]) == (True, None, None)


def test_a_journal_as_json_has_whole_values(cluster: ScriptedCluster) -> None:
    cluster.answers["ReadJournal"] = scripted_journal()
    lines = invoke(cluster, "journal", *SHOP, "--output", "json").stdout.splitlines()
    views = [msgspec.json.decode(line) for line in lines]
    assert [view["index"] for view in views] == list(range(9))
    assert views[1] == {
        "index": 1, "kind": "step_done", "name": "reserve", "path": "1",
        "site": "shop/checkout.py:41", "at": "2029-12-31T12:00:01Z", "after": 0,
        "payload_bytes": 10, "value": {"left": 3}, "payload": None, "payload_base64": None,
    }  # fmt: skip
    assert (views[4]["after"], views[4]["value"]["text"]) == (3, "the card is not valid")
    assert views[5]["value"] is None
    assert views[5]["payload_base64"].startswith("/wD/AP8A")
    assert (views[7]["value"], views[7]["payload"]) == (None, "sold out")


PUBLISHED = pb.ReadPublishedResponse(
    values=[
        pb.PublishedValue(key="state", value=b'"approved"', version=2),
        pb.PublishedValue(key="raw", value=b"\xff\x00", version=5),
    ],
    version=5,
)


def test_published_values_are_shown(cluster: ScriptedCluster) -> None:
    asked = Asked(cluster, "ReadPublished", PUBLISHED)
    shown = invoke(cluster, "published", *SHOP)
    head, _, *rows = [line.split() for line in shown.stdout.splitlines()]
    assert head == ["key", "version", "value"]
    assert rows == [
        ["state", "2", '"approved"'],
        ["raw", "5", "(2", "bytes,", "not", "text)"],
    ]
    assert [(one.queue, one.id, one.key) for one in asked.requests] == [("shop", "order-17", "")]


def test_published_values_as_json_are_whole(cluster: ScriptedCluster) -> None:
    cluster.answers["ReadPublished"] = PUBLISHED
    lines = invoke(cluster, "published", *SHOP, "--output", "json").stdout.splitlines()
    assert [msgspec.json.decode(line) for line in lines] == [
        {"key": "state", "version": 2, "value": "approved", "payload": None,
         "payload_base64": None},
        {"key": "raw", "version": 5, "value": None, "payload": None, "payload_base64": "/wA="},
    ]  # fmt: skip


def test_nothing_that_was_published_is_said(cluster: ScriptedCluster) -> None:
    cluster.answers["ReadPublished"] = pb.ReadPublishedResponse()
    shown = invoke(cluster, "published", *SHOP)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == "order-17 has published nothing.\n"


def test_a_journal_ends_at_its_limit(cluster: ScriptedCluster) -> None:
    cluster.answers["ReadJournal"] = scripted_journal()
    shown = invoke(cluster, "journal", *SHOP, "--limit", "2")
    assert len(shown.stdout.splitlines()) == 4
    assert shown.stderr == "The first 2; there may be more: --limit.\n"


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (RecordKind.STEP_DONE, b"", ""),
        (RecordKind.STEP_DONE, b'"' + b"x" * 300 + b'"', '"' + "x" * 198 + "…"),
        (RecordKind.STARTED, b"[[1],{}]", "(1)"),
        (RecordKind.STARTED, b"[[],{}]", "()"),
        (RecordKind.STARTED, b"17", "17"),
        (RecordKind.STEP_FAILED, b'{"type":"builtins.ValueError"}', "ValueError"),
        (RecordKind.FAILED, b'{"type":"a.B","text":"no"}', "a.B: no"),
        (RecordKind.FAILED, b"sealed", "sealed"),
        (RecordKind.REJECTED, b"\xff", "(1 bytes, not text)"),
        (RecordKind.ATTEMPT_FAILED, b"sealed", "sealed"),
        (RecordKind.ATTEMPT_FAILED, b'[2,0,{"type":"a.B"}]',
         "attempt 2: a.B; again from 1970-01-01T00:00:00Z"),
        (RecordKind.ATTEMPT_FAILED, b'[2,99999999999999999,{"type":"a.B"}]',
         '[2,99999999999999999,{"type":"a.B"}]'),
    ],
)  # fmt: skip
def test_values_in_a_line(kind: RecordKind, payload: bytes, words: str) -> None:
    entry = JournalEntry(
        index=1, kind=kind.name, path="1", name="", site="", at=NOW, payload=payload
    )
    assert value_text(entry) == words


# --- promises, ends ------------------------------------------------------------------------------


def token() -> str:
    identity = ExecutionIdentity(
        namespace="eu",
        queue="shop",
        partition=3,
        number=7,
        id="order-17",
        run=1,
        secret=b"s" * 16,
        origin=1,
    )
    return make_token(identity, encode_path([2]))


@pytest.mark.parametrize("rejects", [False, True])
def test_a_resolution_names_what_the_token_says(cluster: ScriptedCluster, rejects: bool) -> None:
    asked = Asked(
        cluster, "ResolvePromise", pb.ResolvePromiseResponse(),
        pb.ResolvePromiseResponse(repeated_answer=True),
    )  # fmt: skip
    word = "reject" if rejects else "resolve"
    shown = invoke(cluster, word, token(), "too dear")
    assert (shown.exit_code, shown.stderr) == (0, f"The promise is {word}ed.\n".replace("ee", "e"))
    again = invoke(cluster, word, token(), "true", "--output", "json")
    assert again.exit_code == 1
    assert list(msgspec.json.decode(again.stdout).values()) == [False]
    [one, _] = asked.requests
    assert (one.namespace, one.queue, one.partition, one.execution, one.run) == (
        "eu", "shop", 3, 7, 1,
    )  # fmt: skip
    assert (one.path, one.reject) == (encode_path([2]), rejects)
    if rejects:
        assert msgspec.json.decode(one.payload)["text"] == "too dear"
    else:
        assert one.payload == b'"too dear"'


def test_a_second_resolution_says_that_it_changed_nothing(cluster: ScriptedCluster) -> None:
    cluster.answers["ResolvePromise"] = pb.ResolvePromiseResponse(repeated_answer=True)
    shown = invoke(cluster, "resolve", token())
    assert shown.exit_code == 1
    assert "was resolved or rejected before" in shown.stderr


def test_cancel_sends_the_reason(cluster: ScriptedCluster) -> None:
    asked = Asked(
        cluster, "CancelExecution", pb.CancelExecutionResponse(),
        pb.CancelExecutionResponse(repeated_answer=True),
    )  # fmt: skip
    words = [invoke(cluster, "cancel", *SHOP, "--reason", "sold out").stderr for _ in range(2)]
    assert words == ["order-17 is to end.\n", "order-17 was cancelled before.\n"]
    assert asked.requests[0].reason == "sold out"


def test_terminate_shows_the_execution_and_asks(cluster: ScriptedCluster, terminal: None) -> None:
    cluster.answers["GetExecution"] = scripted_execution(None)
    asked = Asked(cluster, "TerminateExecution", pb.TerminateExecutionResponse())
    refused = invoke(cluster, "terminate", *SHOP, input="n\n")
    assert refused.exit_code == 1
    assert "order-17 (checkout) is parked, with 9 records." in refused.stderr
    assert asked.requests == []
    shown = invoke(cluster, "terminate", *SHOP, input="y\n")
    assert (shown.exit_code, shown.stderr.splitlines()[-1]) == (0, "Terminated order-17.")
    assert len(asked.requests) == 1


def test_terminate_leaves_one_that_has_ended(cluster: ScriptedCluster) -> None:
    cluster.answers["GetExecution"] = scripted_execution()
    shown = invoke(cluster, "terminate", *SHOP, "--yes")
    assert shown.exit_code == 1
    assert shown.stderr == "Nothing was changed: order-17 has ended (completed).\n"


def test_retry_says_which_were_stuck(cluster: ScriptedCluster) -> None:
    asked = Asked(
        cluster, "RetryExecution", pb.RetryExecutionResponse(changed=True),
        pb.RetryExecutionResponse(),
    )  # fmt: skip
    shown = invoke(cluster, "retry", "shop", "a", "b")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (
        1, "a\n", "b is neither stuck nor pinned.\n",
    )  # fmt: skip
    assert [one.id for one in asked.requests] == ["a", "b"]


def test_retry_of_all_that_are_stuck(cluster: ScriptedCluster) -> None:
    stuck = [pb.Execution(id=name, state=pb.EXECUTION_STATE_STUCK) for name in ("a", "b")]
    listed = Asked(
        cluster, "ListExecutions", pb.ListExecutionsResponse(executions=stuck),
        pb.ListExecutionsResponse(),
    )  # fmt: skip
    asked = Asked(cluster, "RetryExecution", pb.RetryExecutionResponse(changed=True))
    shown = invoke(cluster, "retry", "shop", "--stuck", "--function", "f", "--output", "json")
    assert shown.exit_code == 0
    assert [msgspec.json.decode(line)["id"] for line in shown.stdout.splitlines()] == ["a", "b"]
    assert [one.id for one in asked.requests] == ["a", "b"]
    assert listed.requests[0].function == "f"
    assert invoke(cluster, "retry", "shop", "--stuck").stderr == "No execution is stuck.\n"


def test_rewind_says_what_it_has_removed(cluster: ScriptedCluster) -> None:
    cluster.answers["GetExecution"] = scripted_execution()
    behind = Asked(
        cluster, "ReadJournal",
        pb.ReadJournalResponse(records=[pb.JournalRecord(index=12), pb.JournalRecord(index=13)]),
    )  # fmt: skip
    asked = Asked(
        cluster, "RewindExecution", pb.RewindExecutionResponse(run=2, cancelled_children=1)
    )
    shown = invoke(cluster, "rewind", *SHOP, "--to", "11", "--keep-children", "--yes")
    assert (shown.exit_code, shown.stderr) == (
        0,
        "order-17 continues behind record 11, in run 2.\nChildren that were cancelled: 1.\n",
    ), shown.output
    [one] = asked.requests
    assert (one.id, one.record, one.run, one.keep_children) == ("order-17", 11, 1, True)
    assert len(one.request_id) == 32
    assert behind.requests[0].first_index == 12
    shown = invoke(cluster, "rewind", *SHOP, "--to", "0", "--yes", "--output", "json")
    assert msgspec.json.decode(shown.stdout) == {
        "id": "order-17", "run": 2, "removed_records": 0, "cancelled_children": 1,
    }  # fmt: skip


# --- wait ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "payload", "code", "stdout", "stderr"),
    [
        (RecordKind.COMPLETED, b'"two words"', 0, "two words\n", ""),
        (RecordKind.COMPLETED, b'{"total":7}', 0, '{"total":7}\n', ""),
        (RecordKind.FAILED, b'{"type":"a.B","text":"no"}', 1, "", "order-17 failed: a.B: no.\n"),
        (RecordKind.CANCELLED, b"sold out", 1, "", "order-17 was cancelled: sold out.\n"),
        (RecordKind.TERMINATED, b"", 1, "", "order-17 was terminated.\n"),
    ],
)
def test_wait_prints_how_it_has_ended(
    cluster: ScriptedCluster, end: RecordKind, payload: bytes, code: int, stdout: str, stderr: str
) -> None:
    cluster.answers["GetExecution"] = there = scripted_execution(end, payload)
    ended = pb.EndedExecution(id=there.execution.id, execution=there.execution, end=there.end)
    cluster.answers["WaitExecutions"] = pb.WaitExecutionsResponse(executions=[ended])
    shown = invoke(cluster, "wait", *SHOP)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (code, stdout, stderr)
    view = msgspec.json.decode(invoke(cluster, "wait", *SHOP, "--output", "json").stdout)
    assert view["state"] in EXECUTION_STATES
    assert (view["error"] is None) is (code == 0)


def test_wait_says_that_an_execution_is_stuck(cluster: ScriptedCluster) -> None:
    there = scripted_execution(None)
    there.execution.state = pb.EXECUTION_STATE_STUCK
    there.execution.reason = "the worker has no function checkout"
    cluster.answers["GetExecution"] = there
    first, _ = invoke(cluster, "wait", *SHOP, "--timeout", "0").stderr.splitlines()
    assert first == (
        "order-17 is stuck, and does not end before its repair: the worker has no function checkout"
    )


def test_wait_says_that_an_execution_is_pinned(cluster: ScriptedCluster) -> None:
    there = scripted_execution(None)
    there.execution.state = pb.EXECUTION_STATE_PINNED
    there.execution.reason = "the worker has no function checkout"
    cluster.answers["GetExecution"] = there
    first, _ = invoke(cluster, "wait", *SHOP, "--timeout", "0").stderr.splitlines()
    assert first == (
        "order-17 is pinned, and waits for a worker that can run it: "
        "the worker has no function checkout"
    )


def test_wait_says_the_state_of_one_that_has_not_ended(cluster: ScriptedCluster) -> None:
    cluster.answers["GetExecution"] = scripted_execution(None)
    shown = invoke(cluster, "wait", *SHOP, "--timeout", "0")
    assert (shown.exit_code, shown.stderr) == (1, "order-17 has not ended; it is parked.\n")
    shown = invoke(cluster, "wait", *SHOP, "--timeout", "0", "--output", "json")
    assert shown.exit_code == 1
    assert msgspec.json.decode(shown.stdout)["closed_at"] is None
