"""Bad input about executions: names, values, times and numbers."""

import time

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import begun, executions, kinds, step, timer
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE = b"\x01"
YEAR_10000_S = 253_402_300_800
LARGE = b"x" * (8 * 2**20 + 1)


async def test_an_empty_id_is_refused(make: Make):
    shop = await executions(make)
    for call in (shop.start(""), shop.get(""), shop.journal(""), shop.signal(""), shop.cancel("")):
        refused = await refusal(call)
        assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "id")


async def test_an_id_of_256_bytes_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start("ü" * 128))
    assert refused.facts == ("LIMIT_EXCEEDED", "id", "255 bytes", "256 bytes")
    assert await shop.list() == []


@pytest.mark.parametrize("char", ["\n", "\0", "\x7f"], ids=["newline", "nul", "delete"])
async def test_an_id_with_a_control_character_is_refused(make: Make, char: str):
    shop = await executions(make)
    refused = await refusal(shop.start(f"a{char}b"))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "id")


async def test_an_empty_function_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(function=""))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "function")


async def test_a_function_of_256_bytes_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(function="f" * 256))
    assert refused.facts == ("LIMIT_EXCEEDED", "function", "255 bytes", "256 bytes")


async def test_an_empty_version_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(version=""))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "version")


async def test_a_version_of_65_bytes_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(version="v" * 65))
    assert refused.facts == ("LIMIT_EXCEEDED", "version", "64 bytes", "65 bytes")


async def test_arguments_of_more_than_8_mib_are_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(arguments=LARGE))
    assert (refused.code, refused.limit) == ("LIMIT_EXCEEDED", "8388608 bytes")
    assert await shop.list() == []


async def test_a_start_in_the_year_10000_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(start_at=Timestamp(seconds=YEAR_10000_S)))
    assert refused.field == "start_at"


async def test_a_deadline_in_the_year_10000_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(deadline=Timestamp(seconds=YEAR_10000_S)))
    assert refused.field == "deadline"


async def test_a_signal_without_a_name_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    refused = await refusal(shop.signal(name=""))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "name")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_signal_name_of_256_bytes_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    refused = await refusal(shop.signal(name="n" * 256))
    assert refused.facts == ("LIMIT_EXCEEDED", "name", "255 bytes", "256 bytes")


async def test_a_message_id_of_129_bytes_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    refused = await refusal(shop.signal(message_id="m" * 129))
    assert refused.facts == ("LIMIT_EXCEEDED", "message_id", "128 bytes", "129 bytes")


async def test_a_signal_of_more_than_8_mib_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    refused = await refusal(shop.signal(payload=LARGE))
    assert (refused.code, refused.limit) == ("LIMIT_EXCEEDED", "8388608 bytes")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_reason_of_1001_characters_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    for call in (shop.cancel(reason="ü" * 1001), shop.terminate(reason="ü" * 1001)):
        refused = await refusal(call)
        assert refused.facts == ("LIMIT_EXCEEDED", "reason", "1000 characters", "1001 characters")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_lease_of_no_activations_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.lease(0))
    assert (refused.field, refused.value) == ("max_activations", "0")


async def test_a_lease_of_1001_activations_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.lease(1001))
    assert (refused.code, refused.field, refused.limit) == (
        "LIMIT_EXCEEDED", "max_activations", "1000",
    )  # fmt: skip


async def test_a_lease_without_a_client_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.lease(client_id=""))
    assert refused.field == "client_id"


@pytest.mark.parametrize("timeout_s", [0.5, 86_401])
async def test_a_lease_of_less_than_a_second_or_more_than_a_day_is_refused(
    make: Make, timeout_s: float
):
    shop = await executions(make)
    refused = await refusal(shop.lease(timeout_s=timeout_s))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "lease_timeout")


async def test_a_wait_of_more_than_15_minutes_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.lease(wait_s=901))
    assert refused.field == "request_timeout"


async def test_a_lease_id_that_is_none_is_refused(make: Make):
    shop, held = await begun(make)
    for bad in ("", "x", "1", "1.2.3.4", "-1.0.1"):
        held.lease_id = bad
        refused = await refusal(shop.record(held, step(ONE), number=1))
        assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "lease_id")


@pytest.mark.parametrize("field", ["item", "execution", "number"])
async def test_a_number_of_0_is_refused(make: Make, field: str):
    shop, held = await begun(make)
    number = 1
    if field == "number":
        number = 0
    else:
        setattr(held, field, 0)
    refused = await refusal(shop.record(held, step(ONE), number=number))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", field)


async def test_a_close_without_an_outcome_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.close(held, outcome="UNSPECIFIED"))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "close.outcome")
    assert await shop.state() == "RUNNABLE"


async def test_a_close_as_terminated_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.close(held, outcome="TERMINATED"))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "close.outcome")


async def test_a_result_of_more_than_8_mib_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.close(held, LARGE))
    assert (refused.code, refused.limit) == ("LIMIT_EXCEEDED", "8388608 bytes")
    assert await shop.state() == "RUNNABLE"


async def test_a_park_for_1001_names_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.park(held, names=[f"n{number}" for number in range(1001)]))
    assert refused.facts == ("LIMIT_EXCEEDED", "park", "1000 waits", "1001 waits")


async def test_a_park_for_names_and_anything_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.park(held, names=["word"], anything=True))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "park")


async def test_a_park_for_all_of_names_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.park(held, paths=[ONE], names=["word"], all_of=True))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "park.names")


async def test_a_timer_without_a_path_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, timers=[timer(b"", time.time())]))
    assert refused.field == "timers[0].path"


async def test_a_timer_in_the_year_10000_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, timers=[timer(ONE, YEAR_10000_S)]))
    assert refused.field == "timers[0].due_ms"


async def test_a_reason_to_be_stuck_of_1001_characters_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.give_back(held, "x" * 1001, stuck=True))
    assert refused.facts == (
        "LIMIT_EXCEEDED", "give_back.reason", "1000 characters", "1001 characters",
    )  # fmt: skip


async def test_an_extension_of_more_than_a_day_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, step(ONE), extend_s=86_401))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "extend")


async def test_a_fold_of_an_ordinary_step_is_refused(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE + ONE))
    fold = v1.Fold(index=1, record=step(ONE))
    refused = await refusal(shop.record(held, folds=[fold]))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "folds[0].record.kind")


async def test_a_fold_that_removes_what_comes_behind_it_is_refused(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE + ONE), step(ONE + b"\x02"))
    fold = v1.Fold(
        index=1, record=step(ONE, kind=v1.RECORD_KIND_CALL_DONE),
        removed=[v1.Fold.Run(first=2, count=1)],
    )  # fmt: skip
    refused = await refusal(shop.record(held, folds=[fold]))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "folds[0].removed")


async def test_257_folds_are_refused(make: Make):
    shop, held = await begun(make)
    fold = v1.Fold(index=1, record=step(ONE, kind=v1.RECORD_KIND_CALL_DONE))
    refused = await refusal(shop.record(held, folds=[fold] * 257))
    assert refused.facts == ("LIMIT_EXCEEDED", "folds", "256", "257")


async def test_a_page_of_1001_executions_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.list(page_size=1001))
    assert (refused.code, refused.field, refused.limit) == ("LIMIT_EXCEEDED", "page_size", "1000")


async def test_a_page_of_1001_records_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    refused = await refusal(shop.journal(page=1001))
    assert (refused.code, refused.field, refused.limit) == (
        "LIMIT_EXCEEDED", "max_records", "1000",
    )  # fmt: skip


async def test_a_page_token_that_is_none_is_refused(make: Make):
    shop = await executions(make)
    request = v1.ListExecutionsRequest(**shop.names, page_token="nonsense")
    refused = await refusal(shop.list_page(request))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "page_token")


async def test_a_page_behind_the_end_of_a_journal_is_empty(make: Make):
    shop = await executions(make)
    await shop.start()
    assert await shop.journal(first=7) == []


async def test_a_state_that_is_none_is_refused(make: Make):
    shop = await executions(make)
    request = v1.ListExecutionsRequest(**shop.names, state=99)  # type: ignore[arg-type]
    assert (await refusal(shop.list_page(request))).field == "state"


async def test_a_negative_timeout_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(request_timeout=Duration(seconds=-1)))
    assert refused.field == "request_timeout"
