"""The raft thread: it delivers outcomes in order, and no transaction outlives it."""

import asyncio
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from querator.model.nodes import NodeKey
from querator.raft.clock import RealClock
from querator.raft.requests import Outcome, Stop
from querator.raft.turn import thread as thread_module
from querator.raft.turn.thread import RaftThread
from querator.storage.environment import Environment
from querator.storage.lmdb_environment import LmdbEnvironment
from querator.storage.memory_environment import MemoryEnvironment

CLOSED_WITHIN_S = 30


def raft_thread(environment: Environment) -> RaftThread:
    return RaftThread(
        environment,
        clock=RealClock(),
        node=NodeKey("n/1"),
        peers=None,
        chance=random.Random(1),
        log_bytes_kept=1 << 20,
    )


@pytest.mark.parametrize("ends", ["by an error", "when it may wait no longer"])
def test_the_environment_can_be_closed_after_a_turn_that_kept_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
):
    environment = LmdbEnvironment(tmp_path / "data")
    raft = raft_thread(environment)
    kept = raft.turns._transaction

    def turn(requests: Sequence[Any], messages: Sequence[Any]) -> Outcome:
        txn = kept.begin()
        txn.put(b"key", b"value")
        kept.keep(txn)
        if ends == "by an error":
            raise RuntimeError("the turn has failed")
        return Outcome()

    monkeypatch.setattr(raft.turns, "turn", turn)
    monkeypatch.setattr(thread_module, "STOP_WAIT_MS_MAX", -1)

    ended = threading.Event()

    def close() -> None:
        ended.wait()
        environment.close()

    # It begins before the raft thread ends, so that it cannot get the same identity.
    closing = threading.Thread(target=close, daemon=True)
    closing.start()

    async def until_stopped() -> None:
        raft.start(lambda outcome: None, lambda error: None)
        raft.put(Stop())
        await raft.ended()

    asyncio.run(until_stopped())
    ended.set()
    closing.join(CLOSED_WITHIN_S)
    assert not closing.is_alive(), "the environment waits for a transaction of the ended thread"


async def test_outcomes_arrive_in_order_and_one_that_fails_holds_no_other_back():
    raft = raft_thread(MemoryEnvironment())
    loop, arrived = asyncio.get_running_loop(), list[int]()
    failed: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failed.append(context))

    def deliver(outcome: Outcome) -> None:
        number = int(outcome.events[0])  # type: ignore[call-overload]
        if number == 1:
            raise RuntimeError("outcome 1")
        arrived.append(number)

    raft.start(deliver, lambda error: pytest.fail(repr(error)))
    for number in range(4):
        outcome = Outcome()
        outcome.events.append(number)  # type: ignore[arg-type]
        raft._hand_over(outcome)
    raft.put(Stop())
    await raft.ended()
    assert arrived == [0, 2, 3]
    assert [str(context["exception"]) for context in failed] == ["outcome 1"]
