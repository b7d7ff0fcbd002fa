"""`querator dead groups`, and the letters that `dead redrive|drop` choose by kind and text."""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

from querator.cli import dead_groups, letters, querator
from querator.cli.dead_groups import shape_of
from querator.client import ItemId
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, Terminal, scripted_cluster
from tests.unit.cli.test_schedules import _TerminalSys

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def letter(
    seq: int,
    error: str,
    *,
    kind: str = "",
    reason: int = items_pb2.DEAD_REASON_ATTEMPTS,
    state: int = items_pb2.ITEM_STATE_READY,
    died_after_s: int = 0,
) -> pb.PeekedItem:
    peeked = pb.PeekedItem(
        partition=0,
        seq=seq,
        state=items_pb2.ItemState.ValueType(state),
        dead_letter=items_pb2.DeadLetter(
            origin_queue="mail",
            origin_seq=seq,
            reason=items_pb2.DeadReason.ValueType(reason),
            errors=[error] if error else [],
        ),
        item=items_pb2.Item(payload=b"x", kind=kind),
    )
    peeked.dead_letter.died_at.FromDatetime(NOON + timedelta(seconds=died_after_s))
    return peeked


LETTERS = [
    letter(1, "ValueError: order 17 has no address", kind="order"),
    letter(2, "refused", kind="order", reason=items_pb2.DEAD_REASON_REJECTED),
    letter(3, "ValueError: order 8 has no address", kind="order", died_after_s=60),
    letter(4, "ValueError: order 9 has no address", state=items_pb2.ITEM_STATE_LEASED),
    letter(5, "ValueError: order 21 has no address", kind="order", died_after_s=30),
]


class Cluster:
    """Dead letters, and the ids that requests name."""

    def __init__(self, scripted: ScriptedCluster) -> None:
        self._scripted = scripted
        self.redriven: list[list[str]] = []
        self.dropped: list[list[str]] = []
        scripted.answers = {"RedriveDeadLetters": self._redrive, "DropDeadLetters": self._drop}
        self.has(LETTERS)

    def has(self, some: Sequence[pb.PeekedItem]) -> None:
        self._scripted.answers["ListDeadLetters"] = pb.ListDeadLettersResponse(items=some)

    def _redrive(self, data: bytes) -> Message:
        request = pb.RedriveDeadLettersRequest.FromString(data)
        self.redriven.append(list(request.item_ids))
        return pb.RedriveDeadLettersResponse(redriven=len(request.item_ids))

    def _drop(self, data: bytes) -> Message:
        request = pb.DropDeadLettersRequest.FromString(data)
        self.dropped.append(list(request.item_ids))
        return pb.DropDeadLettersResponse(dropped=len(request.item_ids))

    def run(self, *arguments: str, **options: Any) -> Result:
        command = ["dead", *arguments, "--address", self._scripted.address]
        return CliRunner().invoke(querator, command, **options)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with scripted_cluster() as scripted:
        yield Cluster(scripted)


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "shape"),
    [
        ("ValueError: order 17 has no address", "ValueError: order # has no address"),
        ("timeout after 1.5s\nTraceback: …", "timeout after #.#s"),
        ("no 3f2c8a5e-11aa-4bcd-9e0f-0123456789ab in cache", "no # in cache"),
        ("at 0x7f0c6e85b5d0, commit 3d88b707, deadbeef", "at #, commit #, deadbeef"),
        ("defaced facade", "defaced facade"),
        ("", ""),
    ],
)
def test_the_shape_of_an_error_leaves_out_what_differs(error: str, shape: str) -> None:
    assert shape_of(error) == shape


def test_letters_are_counted_by_what_they_died_of(cluster: Cluster) -> None:
    run = cluster.run("groups", "mail", "--output", "json")
    assert run.exit_code == 0, run.output
    [first, *others] = [msgspec.json.decode(line) for line in run.stdout.splitlines()]
    assert first == {
        "letters": 3,
        "reason": "attempts",
        "kind": "order",
        "error": "ValueError: order # has no address",
        "first_died_at": "2030-01-31T12:00:00Z",
        "last_died_at": "2030-01-31T12:01:00Z",
        "example": "0-3",
        "example_error": "ValueError: order 8 has no address",
    }
    assert [(one["letters"], one["reason"], one["kind"]) for one in others] == [
        (1, "attempts", ""),
        (1, "rejected", "order"),
    ]


def test_options_choose_the_letters_that_are_counted(cluster: Cluster) -> None:
    run = cluster.run("groups", "mail", "--text", "refused")
    assert (run.exit_code, run.stdout.splitlines()[2].split()[:4]) == (
        0,
        ["1", "rejected", "order", "refused"],
    )
    assert "2 more groups" in cluster.run("groups", "mail", "--limit", "1").stderr
    assert "No such dead letters." in cluster.run("groups", "mail", "--kind", "none").stderr


def test_the_number_of_groups_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_groups, "GROUPS_MAX", 1)
    run = cluster.run("groups", "mail", "--output", "json")
    views = [msgspec.json.decode(line) for line in run.stdout.splitlines()]
    assert [(one["letters"], one["error"]) for one in views] == [
        (3, "ValueError: order # has no address"),
        (2, "(further groups)"),
    ]


# --- redrive and drop -------------------------------------------------------------------------


def test_letters_with_a_text_are_redriven_if_they_wait(cluster: Cluster) -> None:
    run = cluster.run("redrive", "mail", "--text", "no address")
    assert (run.exit_code, run.stdout) == (0, "3 dead letters on the way back to mail.\n")
    assert cluster.redriven == [["0-1", "0-3", "0-5"]]


def test_a_limit_takes_the_first_letters_and_says_so(cluster: Cluster) -> None:
    run = cluster.run("redrive", "mail", "--kind", "order", "--limit", "2")
    assert cluster.redriven == [["0-1", "0-2"]]
    assert "The first 2; there may be more: repeat the command for them." in run.stderr


def test_a_dry_run_sends_nothing(cluster: Cluster) -> None:
    run = cluster.run("redrive", "mail", "--all", "--rate", "5", "--dry-run")
    assert (run.stdout, cluster.redriven) == ("4 dead letters would go back to mail.\n", [])
    run = cluster.run("drop", "mail", "--kind", "order", "--dry-run")
    assert (run.stdout, cluster.dropped) == ("4 dead letters of mail would be dropped.\n", [])


def test_a_rate_cuts_the_letters_into_small_requests_with_rests_between(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(letters, "rest", rest)
    run = cluster.run("redrive", "mail", "--all", "--rate", "8")
    assert run.stdout == "4 dead letters on the way back to mail.\n"
    assert cluster.redriven == [["0-1", "0-2"], ["0-3", "0-5"]]
    assert len(rests) == 1


async def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    ids = [ItemId(0, seq) for seq in range(1_200)]
    sent: list[int] = []

    async def send(some: Sequence[ItemId]) -> int:
        sent.append(len(some))
        return len(some)

    assert await letters.in_pieces(ids, None, send) == 1_200
    assert sent == [500, 500, 200]
    assert "41%" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_letters_that_die_again_meanwhile_are_not_chosen_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rest(_: float) -> None:
        cluster.has([*LETTERS, letter(6, "ValueError: order 17 has no address")])

    monkeypatch.setattr(letters, "rest", rest)
    cluster.run("redrive", "mail", "--all", "--rate", "1")
    assert cluster.redriven == [["0-1"], ["0-2"], ["0-3"], ["0-5"]]


def test_named_letters_may_have_a_rate(cluster: Cluster) -> None:
    cluster.run("redrive", "mail", "0-9", "--rate", "1")
    assert cluster.redriven == [["0-9"]]


def test_a_drop_by_text_asks_for_what_it_has_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cluster.run("drop", "mail", "--text", "refused")
    assert (run.exit_code, cluster.dropped) == (2, [])
    monkeypatch.setattr("querator.cli.shared.confirmation.sys", _TerminalSys())
    run = cluster.run("drop", "mail", "--text", "refused", input="y\n")
    assert "Drop 1 dead letter of mail for ever? [y/N]" in run.stderr
    assert (run.stdout, cluster.dropped) == ("1 dead letter of mail dropped.\n", [["0-2"]])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("redrive", "mail", "--limit", "3"), "Name the items"),
        (("redrive", "mail", "0-1", "--kind", "order"), "Name the items"),
        (("redrive", "mail", "0-1", "--limit", "3"), "--limit is for letters that options choose"),
        (
            ("redrive", "mail", "--all", "--limit", "100001"),
            "'100001' is not a whole number from 1 to 100000",
        ),
        (("redrive", "mail", "--all", "--rate", "0"), "--rate"),
        (("drop", "mail", "--all", "--rate", "3"), "No such option '--rate'"),
    ],
)
def test_choices_that_say_nothing_are_refused(
    cluster: Cluster, arguments: tuple[str, ...], says: str
) -> None:
    run = cluster.run(*arguments)
    assert (run.exit_code, cluster.redriven, cluster.dropped) == (2, [], [])
    assert says in run.stderr
