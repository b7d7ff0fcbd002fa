"""The table at the top of docs/architecture.md matches what happens during one produce.

A node runs inside the test with a profile hook on its threads. The hook records which modules of
the product are entered first, from the sending of the request to the answer.
"""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc

import querator
from querator.node import Node
from querator.v1 import admin_service_pb2 as admin_pb
from querator.v1 import queue_service_pb2 as pb
from querator.v1.admin_service_pb2_grpc import AdminServiceStub
from querator.v1.items_pb2 import Item
from querator.v1.queue_service_pb2_grpc import QueueServiceStub

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PACKAGE = str(Path(querator.__file__).parent) + "/"


def trace_table() -> list[str]:
    """The seven modules of the table, in its order."""
    modules = re.findall(r"^\| \d+ \| `([a-z_/0-9]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(modules) == 7
    return modules


def packages_on_the_way() -> set[str]:
    """Packages and single modules that the page names after the table."""
    match = re.search(
        r"^Packages on the way: (.*?)\n\n", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert match
    return set(re.findall(r"`([a-z_/0-9]+)`", match[1]))


def is_named(module: str, packages: set[str]) -> bool:
    """Whether the module itself or its package is named: `raft` names the modules directly in it,
    and none of its sub-packages.
    """
    return module in packages or module.rpartition("/")[0] in packages


class Trace:
    def __init__(self) -> None:
        self.modules: list[str] = []
        self.recording = False

    def hook(self, frame: FrameType, event: str, _argument: Any) -> None:
        file = frame.f_code.co_filename
        if not self.recording or event != "call" or not file.startswith(PACKAGE):
            return
        module = file.removeprefix(PACKAGE).removesuffix(".py").removesuffix("/__init__")
        if not self.modules and not module.startswith("server/"):
            return  # The raft thread may still be on its way to sleep after earlier work.
        if module not in self.modules:
            self.modules.append(module)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the hook on this thread, and on every thread that starts inside."""
        threading.setprofile(self.hook)
        sys.setprofile(self.hook)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


async def modules_of_a_produce(trace: Trace, channel: grpc.aio.Channel, seq: int) -> list[str]:
    trace.modules = []
    trace.recording = True
    stream = QueueServiceStub(channel).ProduceStream()
    await stream.write(
        pb.ProduceStreamRequest(
            request_number=1,
            produce=pb.ProduceRequest(queue="q", items=[Item(payload=b"one")]),
        )
    )
    answer = await stream.read()
    trace.recording = False
    await stream.done_writing()
    assert isinstance(answer, pb.ProduceStreamResponse)
    assert answer.produced.batches[0].first_seq == seq
    return trace.modules


async def test_a_produce_goes_through_the_seven_modules_in_order(tmp_path: Path) -> None:
    trace = Trace()
    with trace.installed():
        async with (
            Node(tmp_path / "data", new=True) as node,
            grpc.aio.insecure_channel(node.address) as channel,
        ):
            await AdminServiceStub(channel).CreateQueue(admin_pb.CreateQueueRequest(queue="q"))
            entered = [await modules_of_a_produce(trace, channel, seq) for seq in (1, 2, 3)]
    # Periodic work of a node may happen during one of them, not during all.
    modules = [module for module in entered[0] if all(module in others for others in entered)]
    table = trace_table()
    assert table in [[module for module in one if module in table] for one in entered], entered
    packages = packages_on_the_way()
    strangers = [
        module for module in modules if module not in table and not is_named(module, packages)
    ]
    assert strangers == [], "docs/architecture.md names every package that a produce enters"
