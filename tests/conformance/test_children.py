"""Children: executions that others have started, and their ends."""

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import begun, child, executions, kinds, payloads, step
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE, TWO = b"\x01", b"\x02"
END = ONE + b"\x01"
"""The path of the end of a child that was started at path 1."""


async def test_a_child_is_started_by_a_record(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(TWO), children=[child(ONE, arguments=b"args of it")])
    assert "CHILD_STARTED" in kinds(await shop.journal())
    assert payloads(await shop.journal("e/child")) == [b"args of it"]
    assert await shop.state("e/child") == "RUNNABLE"


async def test_a_child_knows_its_parent_and_the_parent_counts_it(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    assert (await shop.get("e/child")).execution.parent_id == "e"
    assert (await shop.get()).execution.children == 1
    assert (await shop.get()).execution.parent_id == ""


async def test_a_child_is_leased_as_any_execution(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    leased = await shop.lease_one()
    assert (leased.id, leased.function) == ("e/child", "g")


async def test_the_result_of_a_child_is_a_record_of_its_parent(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.close(await shop.lease_one(), b"result of it")
    last = (await shop.journal())[-1]
    assert (kinds([last]), last.path, last.payload) == (["CHILD_DONE"], END, b"result of it")
    assert (await shop.get()).execution.children == 0


@pytest.mark.parametrize("outcome", ["FAILED", "CANCELLED"])
async def test_every_end_of_a_child_arrives(make: Make, outcome: str):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.close(await shop.lease_one(), b"end", outcome=outcome)
    assert kinds(await shop.journal())[-1] == f"CHILD_{outcome}"


async def test_a_terminated_child_arrives_with_the_reason(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.terminate("e/child", "by hand")
    last = (await shop.journal())[-1]
    assert kinds([last]) == ["CHILD_TERMINATED"]
    assert b"by hand" in last.payload


async def test_the_end_of_a_child_wakes_its_parent(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    seen = (await shop.journal())[-1].index
    await shop.park(held, seen=seen, paths=[END])
    running = await shop.lease_one()
    assert running.id == "e/child"
    await shop.close(running)
    assert (await shop.lease_one()).id == "e"


async def test_a_parent_may_end_before_its_child(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE, detached=True)])
    await shop.close(held)
    running = await shop.lease_one()
    await shop.close(running, b"late")
    assert await shop.state() == "COMPLETED"
    assert await shop.state("e/child") == "COMPLETED"
    assert not (await shop.get("e/child")).execution.cancelled


async def test_a_child_is_cancelled_when_its_parent_ends(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.close(held)
    assert (await shop.get("e/child")).execution.cancelled
    assert kinds((await shop.lease_one()).records) == ["STARTED", "CANCEL"]


async def test_a_child_is_cancelled_when_its_parent_is_terminated(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.terminate()
    assert (await shop.get("e/child")).execution.cancelled


async def test_a_child_is_cancelled_by_a_record(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.record(held, cancels=[ONE])
    assert (await shop.get("e/child")).execution.cancelled
    assert await shop.state() == "RUNNABLE"


async def test_a_detached_child_is_not_cancelled_with_its_parent(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE, detached=True)])
    await shop.cancel()
    await shop.close(held, outcome="CANCELLED")
    assert not (await shop.get("e/child")).execution.cancelled


async def test_several_children_are_started_by_one_record(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(bytes([n]), f"e/{n}") for n in range(1, 101)])
    assert (await shop.get()).execution.children == 100
    assert len(await shop.lease(200)) == 100


async def test_children_have_children(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    below = await shop.lease_one()
    await shop.record(below, children=[child(ONE, "e/child/child")])
    await shop.close(await shop.lease_one(), b"deep")
    last = (await shop.journal("e/child"))[-1]
    assert (kinds([last]), last.payload) == (["CHILD_DONE"], b"deep")
    assert kinds(await shop.journal())[-1] == "CHILD_STARTED"


async def test_a_record_that_is_repeated_starts_no_second_child(make: Make):
    shop, held = await begun(make)
    await shop.record(held, number=1, children=[child(ONE)])
    again = await shop.record(held, number=1, children=[child(ONE)])
    assert again.repeated_answer
    assert await shop.list() == ["e", "e/child"]
    assert kinds(await shop.journal()).count("CHILD_STARTED") == 1


async def test_an_id_that_another_execution_has_is_refused_in_the_journal(make: Make):
    shop, held = await begun(make)
    await shop.start("e/child", "other")
    await shop.record(held, children=[child(ONE)])
    last = (await shop.journal())[-1]
    assert kinds([last]) == ["CHILD_REFUSED"]
    assert b"EXECUTION_EXISTS" in last.payload
    assert await shop.state() == "RUNNABLE"


async def test_two_children_of_one_path_are_refused(make: Make):
    shop, held = await begun(make)
    children = [child(ONE, "e/1"), child(ONE, "e/2")]
    refused = await refusal(shop.record(held, children=children))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "children[1].path")
    assert await shop.list() == ["e"]


async def test_a_child_without_id_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, children=[child(ONE, "")]))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "children[0].id")


async def test_257_children_in_a_record_are_refused(make: Make):
    shop, held = await begun(make)
    children = [child(bytes([1 + n % 100, 1 + n // 100]), f"e/{n}") for n in range(257)]
    refused = await refusal(shop.record(held, children=children))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "children")


async def test_a_record_that_ends_the_lease_starts_no_children(make: Make):
    shop, held = await begun(make)
    end = v1.Close(outcome=v1.RECORD_KIND_COMPLETED)
    refused = await refusal(shop.record(held, children=[child(ONE)], close=end))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "children")
    assert await shop.list() == ["e"]


async def test_children_of_a_lost_lease_are_not_started(make: Make):
    shop = await executions(make)
    await shop.start()
    lost = await shop.lease_one(timeout_s=1)
    await shop.lease_one()
    assert (await refusal(shop.record(lost, children=[child(ONE)]))).code == "LEASE_LOST"
    assert await shop.list() == ["e"]
