"""Waits for executions that share calls: which calls are made, and what they answer."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from querator import Client
from querator.client.errors import make_error
from querator.client.executions import EndedInfo, ExecutionInfo
from querator.durable import endings
from querator.durable.endings import Endings
from querator.errors import ErrorCode, ExecutionNotFound, Unavailable
from querator.model.executions import JournalRecord, Note, RecordKind
from querator.model.limits import EXECUTION_WAIT_IDS_MAX

AT = datetime(2026, 1, 1, tzinfo=UTC)


def end_of(execution_id: str) -> EndedInfo:
    info = ExecutionInfo(
        id=execution_id, function="f", version="1", run=1, state="completed", partition=0,
        created_at=AT, closed_at=AT, deadline=None, records=2, journal_bytes=0, unread_signals=0,
        timers=0, cancelled=False, reason="",
    )  # fmt: skip
    return info, JournalRecord(1, Note(kind=RecordKind.COMPLETED))


class FakeCalls:
    """Calls that a test answers."""

    def __init__(self) -> None:
        self.executions = self
        self.made: list[set[str]] = []
        self.answers: list[asyncio.Future[dict[str, EndedInfo | None]]] = []
        self._came = asyncio.Semaphore(0)

    async def wait(
        self, queue: str, ids: list[str], *, seconds: float
    ) -> dict[str, EndedInfo | None]:
        assert queue == "shop"
        assert seconds > 0
        self.made.append(set(ids))
        answer: asyncio.Future[dict[str, EndedInfo | None]] = asyncio.Future()
        self.answers.append(answer)
        self._came.release()
        return await answer

    async def came(self, calls: int = 1) -> None:
        for _ in range(calls):
            await self._came.acquire()


class Waiting:
    def __init__(self) -> None:
        self.calls = FakeCalls()
        self.endings = Endings(cast(Client, self.calls), "shop")

    def wait(self, *ids: str) -> "list[asyncio.Task[Any]]":
        return [asyncio.get_running_loop().create_task(self.endings.wait(one)) for one in ids]

    def is_idle(self) -> bool:
        return not self.endings._where and self.endings._next is None


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


async def test_waits_that_begin_together_share_a_call(waiting: Waiting):
    tasks = waiting.wait("a", "b", "a")
    await waiting.calls.came()
    assert waiting.calls.made == [{"a", "b"}]
    waiting.calls.answers[0].set_result({"a": end_of("a"), "b": end_of("b")})
    assert [info.id for info, _ in await asyncio.gather(*tasks)] == ["a", "b", "a"]
    assert waiting.is_idle()


async def test_the_rest_of_a_call_joins_the_next_one(waiting: Waiting):
    a, b = waiting.wait("a", "b")
    await waiting.calls.came()
    [c] = waiting.wait("c")
    await waiting.calls.came()
    waiting.calls.answers[0].set_result({"a": end_of("a")})
    [d] = waiting.wait("d")
    assert (await a)[0].id == "a"
    await waiting.calls.came()
    assert waiting.calls.made == [{"a", "b"}, {"c"}, {"b", "d"}]
    waiting.calls.answers[1].set_result({"c": end_of("c")})
    waiting.calls.answers[2].set_result({"b": end_of("b"), "d": end_of("d")})
    assert [info.id for info, _ in await asyncio.gather(b, c, d)] == ["b", "c", "d"]
    assert waiting.is_idle()


async def test_a_call_in_which_nothing_has_ended_is_made_again(waiting: Waiting):
    [a] = waiting.wait("a")
    await waiting.calls.came()
    waiting.calls.answers[0].set_result({})
    await waiting.calls.came()
    waiting.calls.answers[1].set_result({"a": end_of("a")})
    assert (await a)[0].id == "a"


async def test_a_call_names_a_bounded_number_of_executions(waiting: Waiting):
    ids = [str(number) for number in range(EXECUTION_WAIT_IDS_MAX + 1)]
    tasks = waiting.wait(*ids)
    await waiting.calls.came(2)
    assert [len(made) for made in waiting.calls.made] == [EXECUTION_WAIT_IDS_MAX, 1]
    for answer, made in zip(waiting.calls.answers, waiting.calls.made, strict=True):
        answer.set_result({one: end_of(one) for one in made})
    assert len(await asyncio.gather(*tasks)) == len(ids)


async def test_many_that_are_left_gather(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endings, "_FEW", 1)
    a, b, c = waiting.wait("a", "b", "c")
    await waiting.calls.came()
    waiting.calls.answers[0].set_result({"a": end_of("a")})
    await a
    await waiting.calls.came()
    assert waiting.calls.made[1] == {"b", "c"}
    waiting.calls.answers[1].set_result({"b": end_of("b"), "c": end_of("c")})
    await asyncio.gather(b, c)


async def test_what_does_not_exist_is_an_error_of_its_own_wait(waiting: Waiting):
    a, nothing = waiting.wait("a", "nothing")
    await waiting.calls.came()
    waiting.calls.answers[0].set_result({"nothing": None})
    with pytest.raises(ExecutionNotFound, match="there is no execution nothing"):
        await nothing
    await waiting.calls.came()
    waiting.calls.answers[1].set_result({"a": end_of("a")})
    await a


async def test_an_error_of_a_call_is_raised_by_each_of_its_waits(waiting: Waiting):
    a, b = waiting.wait("a", "b")
    await waiting.calls.came()
    waiting.calls.answers[0].set_exception(make_error(ErrorCode.UNAVAILABLE, "as the test says"))
    failed = await asyncio.gather(a, b, return_exceptions=True)
    assert [type(one) for one in failed] == [Unavailable, Unavailable]
    assert failed[0] is not failed[1]
    assert waiting.is_idle()


async def test_a_call_is_cancelled_when_nothing_waits_for_it(waiting: Waiting):
    a, b = waiting.wait("a", "b")
    await waiting.calls.came()
    a.cancel()
    await asyncio.gather(a, return_exceptions=True)
    assert not waiting.calls.answers[0].cancelled()
    b.cancel()
    await asyncio.gather(b, return_exceptions=True)
    await asyncio.sleep(0)
    assert waiting.calls.answers[0].cancelled()
    assert waiting.is_idle()


async def test_a_wait_that_is_given_up_before_its_call_leaves_nothing(waiting: Waiting):
    [a] = waiting.wait("a")
    await asyncio.sleep(0)
    a.cancel()
    await asyncio.gather(a, return_exceptions=True)
    assert waiting.is_idle()
    [b] = waiting.wait("b")
    await waiting.calls.came()
    assert waiting.calls.made == [{"b"}]
    waiting.calls.answers[0].set_result({"b": end_of("b")})
    await b


async def test_what_has_left_a_call_is_not_asked_for_again(waiting: Waiting):
    a, b = waiting.wait("a", "b")
    await waiting.calls.came()
    a.cancel()
    await asyncio.gather(a, return_exceptions=True)
    waiting.calls.answers[0].set_result({"a": end_of("a")})
    await waiting.calls.came()
    assert waiting.calls.made[1] == {"b"}
    waiting.calls.answers[1].set_result({"b": end_of("b")})
    await b
