"""The worker of durable functions in Go: the test vectors, and behaviours, each by its name.

All behaviours run at once, on one node and in one process of the worker; each test looks at one.
The function is that of `durable_program`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from querator import Client, Node
from querator.client.executions import ExecutionInfo
from querator.durable import ExecutionHandle, Executions
from querator.durable.handles import JournalEntry
from tests.clients.durable_program import PROGRAM
from tests.clients.durable_vectors import FILE
from tests.clients.go_worker import LEASE, begun, go_worker, in_state
from tests.clients.programs import BUILD_S, made

pytestmark = [pytest.mark.timeout(BUILD_S + 60), pytest.mark.asyncio(loop_scope="module")]

WAIT = timedelta(seconds=30)
Handle = ExecutionHandle[Any]
Script = Callable[["Shop", Handle], Awaitable[Any]]


class Shop(Executions):
    """The executions of the queue."""

    async def token(self, handle: Handle) -> str:
        published = await handle.published("token", str, wait=WAIT)
        assert published is not None
        return published.value


@dataclass(frozen=True)
class Behaviour:
    """`gives` is the result; or the type and text of what the execution raises. `kinds` are those
    of the journal, if they matter; `said` is what the script must return.
    """

    operations: list[Any]
    gives: Any
    kinds: tuple[str, ...] = ()
    script: Script | None = None
    said: Any = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    gives: Any
    journal: list[JournalEntry]
    info: ExecutionInfo
    said: Any

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(record.kind for record in self.journal)


async def signals(handle: Handle, *pairs: tuple[str, Any]) -> None:
    for name, value in pairs:
        await handle.signal(name, value)


async def signal_when_parked(shop: Shop, handle: Handle) -> None:
    await in_state(handle, "parked")
    await handle.signal("s", "late")


async def three_signals(shop: Shop, handle: Handle) -> None:
    await signals(handle, ("s", 1), ("t", 2), ("s", 3))


async def resolve(shop: Shop, handle: Handle) -> list[bool]:
    token = await shop.token(handle)
    return [await shop.resolve(token, "yes"), await shop.resolve(token, "no")]


async def reject(shop: Shop, handle: Handle) -> bool:
    return await shop.reject(await shop.token(handle), "too dear")


async def cancel(shop: Shop, handle: Handle) -> None:
    await in_state(handle, "parked")
    await handle.cancel("enough")


async def cancel_a_step(shop: Shop, handle: Handle) -> None:
    await handle.published("now", wait=WAIT)
    await handle.cancel("enough")


async def terminate(shop: Shop, handle: Handle) -> None:
    await in_state(handle, "parked")
    await handle.terminate("no more")


async def cancel_with_its_child(shop: Shop, handle: Handle) -> str:
    child = await child_of(shop, handle)
    await in_state(child, "parked")
    await handle.cancel("enough")
    await in_state(child, "cancelled")
    return (await child.get()).state


async def child_of(shop: Shop, handle: Handle) -> Handle:
    await in_state(handle, "parked")
    async for each in shop.list():
        if each.parent == handle.id:
            return shop.handle(each.id, PROGRAM)
    raise AssertionError(f"{handle.id} has no child")


async def rewind(shop: Shop, handle: Handle) -> Any:
    first = await handle.result(timeout=WAIT)
    await handle.rewind(1)
    second = await handle.result(timeout=WAIT)
    return [first[0] == second[0], first[1] != second[1], (await handle.get()).run]


async def begin_again(shop: Shop, handle: Handle) -> Any:
    await handle.result(timeout=WAIT)
    again = await shop.start(PROGRAM, [["step", "b", 2]], id=handle.id, key_policy="restart_closed")
    return await again.result(timeout=WAIT)


async def reads_published(shop: Shop, handle: Handle) -> Any:
    await handle.result(timeout=WAIT)
    return {key: each.value for key, each in (await handle.all_published()).items()}


def steps(*names: str) -> list[Any]:
    return [["step", name, name] for name in names]


LARGE = "x" * 30_000
NEVER = ["receive", "never"]

BEHAVIOURS: dict[str, Behaviour] = {
    "a step gives its result": Behaviour(
        [["step", "a", 17]], [17], ("STARTED", "STEP_DONE", "COMPLETED")
    ),
    "no step at all": Behaviour([], [], ("STARTED", "COMPLETED")),
    "values are JSON": Behaviour(
        [["step", "a", {"größe": [1.5, True, None, "<&>"]}]], [{"größe": [1.5, True, None, "<&>"]}]
    ),
    "a long chain of steps": Behaviour(
        steps(*"abcdefghijklmnopqrstuvwxyz"), [*"abcdefghijklmnopqrstuvwxyz"]
    ),
    "a name that is not ASCII": Behaviour([["step", "größer", 1]], [1]),
    "a failure of a step comes to the code": Behaviour(
        [["fails", "a", "no"], ["step", "b", 1]],
        ["no", 1],
        ("STARTED", "STEP_FAILED", "STEP_DONE", "COMPLETED"),
    ),
    "a failure that leaves the function": Behaviour(
        [["raise", "broken"]], ("ValueError", "broken")
    ),
    "a failure of a type that Python does not know": Behaviour(
        [["unknown"]], ("RemoteError", "go.error: no operation unknown")
    ),
    "short retries leave no record": Behaviour(
        [["flaky", "a", 3, 10]], [4], ("STARTED", "STEP_DONE", "COMPLETED")
    ),
    "a retry after more than a second is recorded, and parks": Behaviour(
        [["flaky", "a", 1, 1_200]],
        [2],
        ("STARTED", "ATTEMPT_FAILED", "TIMER_FIRED", "STEP_DONE", "COMPLETED"),
    ),
    "a step at most once has its beginning recorded": Behaviour(
        [["once", "a", 1]], [1], ("STARTED", "STEP_BEGUN", "STEP_DONE", "COMPLETED")
    ),
    "a short sleep is waited for": Behaviour(
        [["sleep", 20]], [None], ("STARTED", "TIMER_DONE", "COMPLETED")
    ),
    "a longer sleep parks": Behaviour(
        [["sleep", 1_000]], [None], ("STARTED", "TIMER_FIRED", "COMPLETED")
    ),
    "a sleep of no time is no record": Behaviour([["sleep", 0]], [None], ("STARTED", "COMPLETED")),
    "steps and sleeps in turn": Behaviour(
        [["step", "a", 1], ["sleep", 300], ["step", "b", 2], ["sleep", 300]], [1, None, 2, None]
    ),
    "a signal wakes a parked execution": Behaviour(
        [["receive", "s"]], ["late"], ("STARTED", "SIGNAL", "COMPLETED"), signal_when_parked
    ),
    "signals come in their order, by name": Behaviour(
        [["receive", "t"], ["receive", "s"], ["receive", "s"]], [2, 1, 3], script=three_signals
    ),
    "a signal that is not received stays": Behaviour(
        [["receive", "s"], ["receive", "t"]], [1, 2], script=three_signals
    ),
    "a receive may time out": Behaviour([["receive", "s", 300], ["step", "a", 1]], ["timeout", 1]),
    "a receive in time ends its timer": Behaviour(
        [["receive", "s", 60_000], ["step", "a", 1]],
        ["late", 1],
        ("STARTED", "SIGNAL", "STEP_DONE", "COMPLETED"),
        signal_when_parked,
    ),
    "a promise has its first value": Behaviour(
        [["promise", "token"]],
        ["yes"],
        ("STARTED", "RESOLVED", "COMPLETED"),
        resolve,
        [True, False],
    ),
    "a promise may be rejected": Behaviour(
        [["promise", "token"], ["step", "a", 1]], ["too dear", 1], script=reject, said=True
    ),
    "tasks give their results": Behaviour(
        [["gather", [steps("a", "b"), steps("c"), []]]], [[["a", "b"], ["c"], []]]
    ),
    "tasks wait for different things": Behaviour(
        [
            [
                "gather",
                [[["receive", "s"]], [["sleep", 300], ["step", "a", 1]], [["step", "b", "b", 50]]],
            ]
        ],
        [[["late"], [None, 1], ["b"]]],
        script=signal_when_parked,
    ),
    "tasks in tasks": Behaviour(
        [["gather", [[["gather", [steps("a"), [["sleep", 300]]]]], steps("b")]]],
        [[[[["a"], [None]]], ["b"]]],
    ),
    "the failure of a task ends the function": Behaviour(
        [["gather", [[["raise", "broken"]], [NEVER]]]], ("ValueError", "broken")
    ),
    "a timer beside a step is the worker's": Behaviour(
        [["gather", [[["sleep", 100]], [["step", "a", "a", 400]]]]],
        [[[None], ["a"]]],
        ("STARTED", "TIMER_DONE", "STEP_DONE", "COMPLETED"),
    ),
    "a timer beside a step that the server has": Behaviour(
        [["sleep", 300], ["gather", [[["receive", "s", 60_000]], [["step", "a", "a", 50]]]]],
        [None, [["late"], ["a"]]],
        script=signal_when_parked,
    ),
    "a called function gives its result": Behaviour(
        [["call", steps("a", "b")], ["step", "c", 1]], [["a", "b"], 1]
    ),
    "calls within calls, with sleeps": Behaviour(
        [["call", [["sleep", 300], ["call", [["step", "a", 1], ["sleep", 300]]]]]],
        [[None, [1, None]]],
    ),
    "a failure leaves a call": Behaviour(
        [["call", [["raise", "broken"]]]], ("ValueError", "broken")
    ),
    "a child gives its result": Behaviour(
        [["spawn", steps("a")], ["step", "b", 1]],
        [["a"], 1],
        ("STARTED", "CHILD_STARTED", "CHILD_DONE", "STEP_DONE", "COMPLETED"),
    ),
    "the failure of a child comes to its parent": Behaviour(
        [["spawn", [["raise", "broken"]]], ["step", "a", 1]], ["broken", 1]
    ),
    "many children at once": Behaviour(
        [["gather", [[["spawn", [["step", "a", nth]]]] for nth in range(20)]]],
        [[[[nth]] for nth in range(20)]],
    ),
    "children of children": Behaviour([["spawn", [["spawn", steps("a")]]]], [[["a"]]]),
    "a child is cancelled with its parent": Behaviour(
        [["spawn", [NEVER]]],
        ("ExecutionCancelled", "enough"),
        script=cancel_with_its_child,
        said="cancelled",
    ),
    "a patch is recorded": Behaviour(
        [["patched", "newer"], ["sleep", 1_000], ["patched", "newer"]],
        [True, None, True],
        ("STARTED", "PATCHED", "TIMER_FIRED", "COMPLETED"),
    ),
    "what is published can be read": Behaviour(
        [["publish", "a", 1], ["publish", "b", 2], ["step", "x", 0], ["publish", "a", 3]],
        [None, None, 0, None],
        script=reads_published,
        said={"b": 2, "a": 3},
    ),
    "the next run has its own arguments": Behaviour(
        [["step", "a", 1], ["again", steps("b")]], ["b"], ("STARTED", "STEP_DONE", "COMPLETED")
    ),
    "signals come along to the next run": Behaviour(
        [["receive", "t"], ["again", [["receive", "s"], ["receive", "s"]]]],
        [1, 3],
        script=three_signals,
    ),
    "a cancellation ends what waits": Behaviour(
        [NEVER], ("ExecutionCancelled", "enough"), ("STARTED", "CANCEL", "CANCELLED"), cancel
    ),
    "a cancellation comes to all tasks": Behaviour(
        [["gather", [[NEVER], [["sleep", 60_000]]]]],
        ("ExecutionCancelled", "enough"),
        script=cancel,
    ),
    "a cancellation reaches a step under way": Behaviour(
        [["publish", "now", 1], ["step", "a", "a", 20_000]],
        ("ExecutionCancelled", "enough"),
        ("STARTED", "CANCEL", "CANCELLED"),
        cancel_a_step,
    ),
    "a deadline cancels": Behaviour(
        [NEVER], ("ExecutionCancelled", "deadline"), options={"deadline": timedelta(seconds=1)}
    ),
    "terminated from outside": Behaviour(
        [NEVER], ("ExecutionTerminated", "no more"), ("STARTED", "TERMINATED"), terminate
    ),
    "it begins later": Behaviour(steps("a"), ["a"], options={"delay": timedelta(seconds=0.5)}),
    "a rewind runs again what is behind it": Behaviour(
        [["step", "a", None], ["step", "b", None]], None, script=rewind, said=[True, True, 2]
    ),
    "what has ended may begin again": Behaviour(
        [["step", "a", 1]], [2], script=begin_again, said=[2]
    ),
    "a journal of several pages": Behaviour(
        [*[["step", "large", LARGE]] * 6, ["sleep", 300], ["step", "a", 1]],
        [*[LARGE] * 6, None, 1],
    ),
    "UUIDs stay": Behaviour(
        [["uuid"], ["sleep", 300], ["uuid"], ["gather", [[["uuid"]], [["uuid"]]]]], None
    ),
}


async def outcome(handle: Handle) -> Any:
    try:
        return await handle.result(timeout=WAIT)
    except Exception as error:  # noqa: BLE001 - it is what the execution gives.
        return type(error).__name__, str(error)


async def seen(shop: Shop, name: str, behaviour: Behaviour) -> Seen:
    options = dict(behaviour.options)
    if "deadline" in options:
        options["deadline"] = datetime.now(UTC) + options["deadline"]
    handle = await shop.start(PROGRAM, behaviour.operations, id=name, **options)
    said = None if behaviour.script is None else await behaviour.script(shop, handle)
    gives = await outcome(handle)
    return Seen(gives, [each async for each in handle.journal()], await handle.get(), said)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    path.touch()
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(ledger: Path) -> AsyncIterator[Shop]:
    made("go")
    async with Node(memory=True) as node, Client(node.address) as client:
        await client.create_queue("shop", kind="executions", partitions=2, lease_timeout=LEASE)
        async with go_worker(node.address, "shop", ledger) as worker:
            yield Shop(client, "shop")
            await worker.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def all_seen(shop: Shop) -> dict[str, Seen]:
    found = await asyncio.gather(*(seen(shop, *each) for each in BEHAVIOURS.items()))
    return dict(zip(BEHAVIOURS, found, strict=True))


@pytest.mark.parametrize("name", BEHAVIOURS)
async def test_the_worker_in_go(all_seen: dict[str, Seen], name: str):
    behaviour, found = BEHAVIOURS[name], all_seen[name]
    if isinstance(behaviour.gives, tuple):
        kind, text = behaviour.gives
        assert found.gives[0] == kind
        assert text in found.gives[1]
    elif behaviour.gives is not None:
        assert found.gives == behaviour.gives
    assert found.said == behaviour.said
    assert behaviour.kinds in ((), found.kinds)
    assert found.info.timers == 0


async def test_uuids_are_different_and_follow_from_the_place(all_seen: dict[str, Seen]):
    first, _, second, tasks = all_seen["UUIDs stay"].gives
    assert len({first, second, *(task[0] for task in tasks)}) == 4


async def test_each_step_has_a_key_of_its_own_and_runs_once(
    all_seen: dict[str, Seen], ledger: Path
):
    tries = begun(ledger)
    flaky = [key for key, numbers in tries.items() if len(numbers) > 1]
    assert sorted(len(tries[key]) for key in flaky) == [2, 4], flaky
    assert all(key.endswith("/a") for key in flaky)
    assert any("/2/2/b" in key for key in tries), "a rewound step has the key of its run"


async def test_the_test_vectors():
    program = str(made("go") / "bin" / "worker")
    process = await asyncio.create_subprocess_exec(
        program, "vectors", str(FILE),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert int(out) > 100
