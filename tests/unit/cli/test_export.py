"""`querator queue export`: lines that `produce` reads, and files that are continued."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import querator
from querator.cli.export import exported
from querator.cli.shared.sources import read_json_lines
from querator.client.values import Item, ItemId, ItemState, PeekedItem, RetryPolicy
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

DUE = datetime(2030, 1, 31, 12, tzinfo=UTC)


def peeked(item: Item, **changes: object) -> PeekedItem:
    made = PeekedItem(
        id=ItemId(0, 17), state=ItemState.READY, attempt=0, produced_at=DUE, due_at=None,
        lease_id="", dead_letter=None, errors=(), item=item, attributes=item.attributes,
        priority=item.priority,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def read_back(line: bytes) -> Item:
    [found] = read_json_lines(io.BytesIO(line), Item())
    assert found.problem == ""
    assert found.item is not None
    return found.item


@pytest.mark.parametrize("payload", [b"", b"text", b'{"a": 1}', b"\xff\x00", b"line\nline"])
def test_a_line_is_read_as_the_item_that_was_exported(payload: bytes) -> None:
    item = Item(
        payload, kind="k", encoding="e", reference="r", attributes={"a": "b"}, priority=-3,
        key="key", dedup_key="own", expire_timeout=timedelta(milliseconds=61_001),
        lease_timeout=timedelta(hours=1), max_attempts=0,
        retry=RetryPolicy(delay=timedelta(seconds=2), delay_max=timedelta(days=1), jitter=False),
    )  # fmt: skip
    line = exported(peeked(item), "mail", 3)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert read_back(line) == item


def test_a_line_has_what_the_item_is_now_and_a_key_of_its_own() -> None:
    item = Item(b"x", attributes={"page": "1"}, priority=1)
    line = exported(peeked(item, attributes={"page": "2"}, priority=0, due_at=DUE), "mail", 3)
    assert read_back(line) == Item(
        b"x", attributes={"page": "2"}, enqueue_at=DUE, dedup_key="export:3:0-17"
    )


class Queue:
    """A queue with items on two pages, and the requests for them."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.requests: list[pb.PeekItemsRequest] = []
        self._cluster = cluster
        queue = pb.Queue(namespace="default", name="mail", id=3, settings=pb.QueueSettings())
        stats = pb.PartitionStats(ready=2)
        cluster.answers = {
            "GetQueueStats": pb.GetQueueStatsResponse(queue=queue, total=stats),
            "PeekItems": self._peek,
        }

    def _peek(self, data: bytes) -> pb.PeekItemsResponse:
        request = pb.PeekItemsRequest.FromString(data)
        self.requests.append(request)
        seq = 8 if request.page_token else 7
        due = Timestamp()
        due.FromDatetime(DUE)
        item = pb.PeekedItem(
            seq=seq, state=items_pb2.ITEM_STATE_SCHEDULED, due_at=due,
            item=items_pb2.Item(payload=b"x"),
        )  # fmt: skip
        return pb.PeekItemsResponse(items=[item], next_page_token="next" if seq == 7 else "")

    def run(self, *arguments: str) -> Result:
        command = ["queue", "export", "mail", *arguments, "--address", self._cluster.address]
        return CliRunner().invoke(querator, command)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with scripted_cluster() as scripted:
        yield Queue(scripted)


def ids(text: bytes) -> list[str]:
    return [msgspec.json.decode(line)["id"] for line in text.splitlines()]


def test_standard_output_has_a_line_for_each_item(queue: Queue) -> None:
    run = queue.run("--state", "scheduled", "--after", "0-5")
    assert run.exit_code == 0, run.output
    assert ids(run.stdout_bytes) == ["0-7", "0-8"]
    assert run.stderr == "2 items of mail written.\n"
    first = queue.requests[0]
    assert (first.state, first.after_item_id, first.page_size) == (
        items_pb2.ITEM_STATE_SCHEDULED, "0-5", 1_000,
    )  # fmt: skip


def test_a_file_is_continued_after_its_last_whole_line(queue: Queue, tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"
    assert queue.run("--file", str(path)).exit_code == 0
    whole = path.read_bytes()
    assert ids(whole) == ["0-7", "0-8"]
    path.write_bytes(whole + whole[:20])
    run = queue.run("--file", str(path))
    assert run.exit_code == 0, run.output
    assert f"{path}: continues after 0-8." in run.stderr
    assert path.read_bytes() == whole + whole
    assert [one.after_item_id for one in queue.requests if not one.page_token] == ["", "0-8"]


def test_a_file_with_an_unfinished_first_line_begins_again(queue: Queue, tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_bytes(b'{"id":"0-7","qu')
    assert queue.run("--file", str(path)).exit_code == 0
    assert ids(path.read_bytes()) == ["0-7", "0-8"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"dear diary", "is there and is no export of a queue"),
        (b"dear\ndiary\n", "is there and is no export of a queue"),
        (b'{"id":"x","queue":"mail"}\n', "is there and is no export of a queue"),
        (b'{"id":"0-1","queue":"other"}\n', "has items of queue other"),
    ],
)
def test_another_file_is_left_alone(
    queue: Queue, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    run = queue.run("--file", str(path))
    assert (run.exit_code, queue.requests) == (1, [])
    assert words in run.stderr
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_is_named(queue: Queue, tmp_path: Path) -> None:
    run = queue.run("--file", str(tmp_path))
    assert run.exit_code == 1
    assert f"{tmp_path}: Is a directory." in run.stderr


def test_a_file_has_its_own_position(queue: Queue, tmp_path: Path) -> None:
    run = queue.run("--file", str(tmp_path / "f"), "--after", "0-1")
    assert run.exit_code == 2
    assert "--after is not for --file" in run.output
