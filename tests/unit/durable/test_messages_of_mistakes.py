"""Mistakes that are made in the first hour with durable functions, and what they are answered with.

Each was made with knowledge of asyncio, and with nothing but the documentation.
"""

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import querator
from querator.durable import (
    CodecError,
    NotInExecution,
    Retry,
    call,
    current,
    durable,
    now,
    promise,
    saga,
    sleep,
    spawn,
    step,
)
from querator.local import Harness, Local, Stalled


async def plain(order: str) -> str:
    return order


@step
async def charge(order: str) -> str:
    return f"receipt of {order}"


@step
def pack(order: str) -> str:
    return f"parcel of {order}"


@durable
async def checkout(order: str) -> str:
    return await charge(order)


# --- the decorators -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, "retry is 3; it must be a querator.durable.Retry: Retry(attempts=3)"),
        ({"retry": querator.Retry()}, "it must be a querator.durable.Retry"),
        ({"timeout": 5}, "timeout is 5; it must be a timedelta: timedelta(seconds=5)"),
    ],
)
def test_an_option_of_a_step_of_another_type(options: Any, message: str):
    with pytest.raises(TypeError) as caught:
        step(plain, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first": 1}, "first is 1; it must be a timedelta: timedelta(seconds=1)"),
        ({"most": 2.5}, "most is 2.5; it must be a timedelta: timedelta(seconds=2.5)"),
        ({"unless": ValueError}, "unless is ValueError; it must be a tuple of exceptions"),
        ({"unless": ("ValueError",)}, "unless has 'ValueError', which is no type of exceptions"),
        ({"attempts": "3"}, "attempts is '3'; it must be a number, or None"),
    ],
)
def test_an_option_of_a_retry_of_another_type(options: Any, message: str):
    with pytest.raises(TypeError) as caught:
        Retry(**options)
    assert message in str(caught.value)


def test_marked_functions_are_shown_by_their_names():
    assert repr(charge).startswith("<step charge of ")
    assert repr(checkout).startswith("<durable function checkout of ")


# --- calls outside --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outside", [saga, now, current, lambda: promise(bool), lambda: sleep(1)],
    ids=["saga", "now", "current", "promise", "sleep"],
)  # fmt: skip
def test_a_durable_call_outside_says_what_makes_an_execution(outside: Callable[[], object]):
    with pytest.raises(NotInExecution, match=r"Harness\(\[…\]\)\.run in a test"):
        outside()


# --- calls inside ---------------------------------------------------------------------------------


async def test_a_step_that_is_not_awaited_is_named_by_the_warning():
    @durable
    async def forgets(order: str) -> str:
        charge(order)  # type: ignore[unused-coroutine]
        return "done"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await Harness([forgets]).run(forgets, "order-17")
    assert "coroutine 'charge' was never awaited" in [str(one.message) for one in caught]


async def test_a_result_that_is_a_coroutine_says_that_an_await_is_missing():
    made: list[Coroutine[Any, Any, str]] = []

    @durable
    async def forgets(order: str) -> dict[str, Any]:
        made.append(charge(order))
        return {"receipt": made[-1]}

    with pytest.raises(CodecError, match=r"\['receipt'\] is a coroutine: an await is missing"):
        await Harness([forgets]).run(forgets, "order-17")
    for one in made:
        one.close()


async def test_a_sync_step_in_an_async_function_says_how_it_is_called():
    @durable
    async def wraps(order: str) -> str:
        return pack(order)

    with pytest.raises(NotInExecution, match=r"write: await call\(pack, …\)"):
        await Harness([wraps]).run(wraps, "order-17")

    @durable
    async def calls(order: str) -> str:
        return await call(pack, order)

    assert await Harness([calls]).run(calls, "order-17") == "parcel of order-17"


async def test_an_undo_that_was_called_says_how_it_is_added():
    made: list[Any] = []

    @durable
    async def books(order: str) -> None:
        async with saga() as undo:
            made.append(charge(order))
            undo.add(made[-1])

    with pytest.raises(TypeError, match=r"undo.add\(function, argument\)"):
        await Harness([books]).run(books, "order-17")
    for one in made:
        one.close()


# --- starts ---------------------------------------------------------------------------------------


async def _run(function: Any, *args: Any) -> None:
    await Harness([checkout]).run(function, *args)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (charge, ("a",), "function is the step charge; it must be a function with @durable"),
        (plain, ("a",), "it must be a function with @durable"),
        (checkout, (), "checkout: missing a required argument: 'order'"),
        (checkout, ("a", "b"), "checkout: too many positional arguments"),
    ],
)
async def test_a_start_that_cannot_be(function: Any, args: Any, message: str):
    with pytest.raises(TypeError) as caught:
        await Harness([checkout]).run(function, *args)
    assert message in str(caught.value)


async def test_a_start_of_a_coroutine_says_that_the_function_is_given():
    called = plain("a")
    try:
        with pytest.raises(TypeError, match="give the function, and its arguments behind it"):
            await _run(called)
    finally:
        called.close()


@pytest.mark.parametrize("make", [Harness, lambda found: Local(None, found)])
def test_functions_that_are_no_list(make: Callable[[Any], object]):
    with pytest.raises(TypeError, match=r"functions is .*checkout.*; it must be a list"):
        make(checkout)


def test_a_step_among_the_functions():
    with pytest.raises(TypeError, match="functions has the step charge; steps are not listed"):
        Harness([charge])  # type: ignore[list-item]


async def test_a_child_whose_function_is_not_among_the_functions():
    @durable
    async def parent() -> str:
        return await (await spawn(checkout, "order-17"))

    expected = r"a is parked; a/1-1 is \w+ \(.*the worker has no function checkout"
    with pytest.raises(Stalled, match=expected):
        await Harness([parent]).run(parent, id="a")


async def test_every_crash_of_a_sync_test():
    def test(h: Harness) -> None:
        asyncio.get_running_loop()

    with pytest.raises(TypeError, match=r"test is .*; it must be an async function of one harness"):
        await Harness([checkout]).every_crash(test)  # type: ignore[arg-type]


async def test_a_handle_is_shown_by_its_id():
    handle = await Harness([checkout]).start(checkout, "order-17", id="order-17")
    assert repr(handle).startswith("<ExecutionHandle of 'order-17' in queue ")
