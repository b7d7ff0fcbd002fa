"""The programs of docs/examples, each against a real node. The tutorial's run in test_tutorial."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from querator import Client
from tests.integration.page_programs import DOCS, PageBlock, PageReader

EXAMPLES = DOCS / "examples"
OUTPUTS = {
    "hello.py": ["b'hello'"],
    "request_and_reply.py": [
        "1 + 2 + 3 = 6",
        "1 + two: invalid literal for int() with base 10: 'two'",
        "of many: 30",
        "of many: 70",
    ],
    "batch_import.py": [
        *(f"lines up to {line}" for line in range(100, 600, 100)),
        "in the queue: 500",
    ],
    "webhooks.py": [
        "works: 200 at attempt 1",
        "busy: 503 at attempt 1",
        "gone: 410 at attempt 1",
        "busy: 200 at attempt 2",
        "delivered: 2 given up: 1",
    ],
    "triage.py": [
        "2 died: no such currency: EUR",
        "1 died: the address is wrong",
        "dropped: 1",
        "redriven: 2",
        "done: 3 dead: 0",
    ],
    "fan_out.py": ["parts are stored", "total: 30", "parts in all: 5"],
    "outbox.py": ["sent 1 2", "sent 3 4", "sent 5", "in the queue: 5"],
    "saga.py": [
        *(booking := ["book flight", "book hotel", "cancel hotel", "cancel flight"]),
        *(f"in the books: {one}" for one in booking),
    ],
    "election.py": [
        "host-1 leads: tick 1",
        "seen by others: host-1",
        *(f"host-1 leads: tick {tick}" for tick in (2, 3)),
        *(f"host-2 leads: tick {tick}" for tick in (1, 2, 3)),
    ],
    "mutex.py": ["page 1", "page 2", "page 3", "page 4", "page 5"],
    "checkpoints.py": [
        "first: attempt 1 begins after page 0",
        "second: attempt 2 begins after page 4",
        "second: done",
    ],
    "chain.py": ["orders: 0", "invoices: order 17", "parcels: label of box 1"],
    "reminders.py": [
        "due: ann, ben, cem, dia",
        "moved: ben, cem, dia, ann",
        "would cancel: 2",
        "now: dia",
        "left: [1]",
    ],
    "unique.py": [
        "stored: True",
        "stored: False, as the first waits",
        "stored: False, as it is being worked on",
        "stored: True",
        "replaced: True",
        "newest: 17-b.png",
    ],
    "keyed_queue.py": [
        "first: ['ann: open', 'ben: open']",
        "meanwhile: []",
        "then: ['ann: pay in']",
        "stuck: ben 3 1",
        "skipped: ['ben: pay in']",
    ],
    "fair_groups.py": [
        "the first seven: {'acme': 4, 'globex': 2, 'initech': 1}",
        "trial has 2 of 20",
        "(all): 1174 ready, 20 leased",
        "acme: 84 ready, 12 leased",
        "globex: 992 ready, 6 leased",
        "trial: 98 ready, 2 leased",
        "trial.ann: 49 ready, 1 leased",
        "trial.ben: 49 ready, 1 leased",
        "without a limit, trial has 10 of 40",
    ],
    "durable.py": [
        "reserve order-17",
        "charge 7 at attempt 2",
        "ask about order-17",
        "receipt of order-17, parcel of order-17",
        "reserve order-18",
        "release order-18",
        "declined: 24 is too much",
    ],
    "airflow_tasks.py": [
        "filled: 2",
        "again: 2",
        "stored: 2 done: False",
        "orders has dead letters, the first: b'two': ('no such customer',)",
    ],
    "recurring.py": [
        "made: True",
        "due: 2026-03-27T08:00:00+00:00",
        "due: 2026-03-30T07:00:00+00:00",
        "ticks: ['1', '2', '3']",
        "left: ['weekdays']",
    ],
    "coming/celery_tasks.py": ["1 + 2 = 3", "3 + 4 = 7"],
    "coming/sqs_loop.py": ["resize 17 1"],
    "coming/kafka_worker.py": ["order 0, order 1, order 2, order 3", "lag: 0"],
    "coming/rabbitmq_consumer.py": ["done: fine", "done: busy", "dead: broken because broken"],
}
BRIDGE = "coming/kafka_bridge.py"
FRAMEWORKS = ("letters", "django_app", "fastapi_app", "flask_app", "celery_app")

DJANGO = """\
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="for the test",
    ROOT_URLCONF="django_app",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.test import Client
answer = Client(SERVER_NAME="localhost").post("/sign-up", {"email": "ann@example"})
print(answer.status_code, answer.content.decode())
"""
FLASK = """\
import flask_app
answer = flask_app.app.test_client().post("/sign-up", data={"email": "ann@example"})
print(answer.status_code, answer.text)
"""
CELERY = """\
from celery_app import app, sign_up
app.conf.broker_transport_options = {
    "data_folder_in": "letters", "data_folder_out": "letters", "control_folder": "control",
}
app.conf.worker_hijack_root_logger = False
"""


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[PageReader]:
    reader = PageReader(tmp_path)
    async with reader.terminal("querator serve --memory"):
        yield reader


def test_every_example_is_run():
    there = {
        path.relative_to(EXAMPLES).as_posix()
        for path in EXAMPLES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    run = {*OUTPUTS, BRIDGE, *(f"frameworks/{name}.py" for name in FRAMEWORKS)}
    assert {name for name in there - run if not name.startswith("tutorial/")} == set()
    assert run <= there


@pytest.mark.parametrize("name", OUTPUTS)
async def test_a_program_and_its_output(reader: PageReader, name: str):
    text = (EXAMPLES / name).read_text()
    reader.save(PageBlock("", "python", "program.py", text))
    output = await reader.run("python program.py")
    assert output.splitlines() == OUTPUTS[name]


RECORDS = """\
import sys
from kafka_bridge import forward
from querator import SyncClient


class Record:
    def __init__(self, offset):
        self._offset = offset

    def error(self):
        return None

    def topic(self):
        return "orders"

    def partition(self):
        return 3

    def offset(self):
        return self._offset

    def key(self):
        # The second one is no text, as serialized keys are.
        return (b"ann", None, b"\\xff\\x00", None)[self._offset]

    def headers(self):
        # Kafka has several of a name, and none or bytes as values.
        return ([("trace", b"7"), ("raw", b"\\xff"), ("none", None)], None)[self._offset % 2]

    def value(self):
        return b"record %d" % self._offset if self._offset < 4 else None


class Consumer:
    def __init__(self, *batches):
        self._batches = list(batches)
        self.commits = 0

    def consume(self, number, timeout):
        return self._batches.pop(0) if self._batches else []

    def commit(self, asynchronous):
        self.commits += 1


first, second = [Record(0), Record(1)], [Record(2), Record(3), Record(4)]
with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("orders", partitions=2)
    died = Consumer(first)
    print(forward(died, client, "orders"), died.commits)
    again = Consumer(first, second)
    print(forward(again, client, "orders"), again.commits)
    print(*sorted(item.item.reference for item in client.peek("orders")))
    found = {item.item.reference: item.item.attributes for item in client.peek("orders")}
    print(sorted(found["orders-3-0"].items()), found["orders-3-1"])
    Record.value = lambda self: b"x" * (2 << 20) if self.offset() == 1 else b"small"
    broken = Consumer([Record(0), Record(1)])
    try:
        forward(broken, client, "orders")
    except ValueError as error:
        print(str(error).partition(" (request")[0], broken.commits)
    Record.error = lambda self: "it is gone"
    try:
        forward(Consumer([Record(2)]), client, "orders")
    except RuntimeError as error:
        print(error)
"""
CONFLUENT_KAFKA = """\
class Record:
    def error(self):
        return None

    topic = partition = offset = key = headers = error

    def value(self):
        return b"from the main program"


class Consumer:
    def __init__(self, settings):
        assert settings["enable.auto.commit"] is False
        self._batches = [[Record()], []]

    def subscribe(self, topics):
        print(*topics)

    def consume(self, number, timeout):
        if not self._batches:
            raise KeyboardInterrupt
        return self._batches.pop(0)

    def commit(self, asynchronous):
        print("committed")

    def close(self):
        print("closed")
"""


async def test_a_topic_is_forwarded_once(reader: PageReader):
    reader.save(PageBlock("", "python", "kafka_bridge.py", (EXAMPLES / BRIDGE).read_text()))
    reader.save(PageBlock("", "python", "program.py", RECORDS))
    output = await reader.run("python program.py")
    assert output.splitlines() == [
        "2 1",
        "WARNING:root:orders-3-4 is a tombstone, and is left out",
        "4 2",
        "orders-3-0 orders-3-1 orders-3-2 orders-3-3",
        "[('none', ''), ('raw', '\\\\xff'), ('trace', '7')] {}",
        "record orders-3-1 (topic-partition-offset) cannot be an item: LIMIT_EXCEEDED: "
        "items[0].payload is 2097152 bytes; the limit is 1048576 bytes 0",
        "record orders-3-2 cannot be read: it is gone",
    ]


async def test_the_bridge_runs_as_a_program(reader: PageReader):
    reader.save(PageBlock("", "python", "kafka_bridge.py", (EXAMPLES / BRIDGE).read_text()))
    reader.save(PageBlock("", "python", "confluent_kafka.py", CONFLUENT_KAFKA))
    await reader.run("querator queue create orders")
    output = await reader.run("python kafka_bridge.py")
    assert output.splitlines() == ["orders", "committed", "ended", "closed"]
    assert "from the main program" in await reader.run("querator peek orders --output json")


async def _framework(reader: PageReader, *names: str) -> None:
    for name in ("letters", *names):
        text = (EXAMPLES / "frameworks" / f"{name}.py").read_text()
        reader.save(PageBlock("", "python", f"{name}.py", text))
    await reader.run("querator queue create mail")


async def _assert_a_letter(reader: PageReader) -> None:
    async with Client(reader.environment["QUERATOR_ADDRESS"]) as client:
        letters = [letter.item.payload async for letter in client.peek("mail")]
    assert letters == [b'{"to": "ann@example"}']


@pytest.mark.parametrize(("name", "driver"), [("django_app", DJANGO), ("flask_app", FLASK)])
async def test_a_request_to_a_web_program(reader: PageReader, name: str, driver: str):
    await _framework(reader, name)
    reader.save(PageBlock("", "python", "driver.py", driver))
    assert await reader.run("python driver.py") == "202 we write to you\n"
    await _assert_a_letter(reader)


def _post(address: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(address, method="POST")) as answer:
        return answer.status, answer.read()


async def test_a_request_to_fastapi(reader: PageReader):
    await _framework(reader, "fastapi_app")
    server = await reader.start("exec python -m uvicorn fastapi_app:app --port 0")
    try:
        await server.until("Uvicorn running on")
        [address] = re.findall(r"http://[\d.]+:\d+", server.output)
        status, body = await asyncio.to_thread(_post, f"{address}/sign-up?email=ann@example")
        assert (status, body) == (202, b'"we write to you"')
    finally:
        await server.stop()
    await _assert_a_letter(reader)


async def test_a_task_in_a_forked_worker_of_celery(reader: PageReader):
    await _framework(reader, "celery_app")
    reader.environment["CELERY_BROKER"] = "filesystem://"
    reader.save(PageBlock("", "python", "driver.py", CELERY))
    await reader.run("mkdir letters control")
    await reader.run("python -c 'import driver; driver.sign_up.delay(\"ann@example\")'")
    worker = await reader.start(
        "exec python -m celery -A driver worker --pool prefork --concurrency 2 --loglevel INFO"
    )
    try:
        await worker.until("succeeded in")
    finally:
        await worker.stop()
    await _assert_a_letter(reader)
