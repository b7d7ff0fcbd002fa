"""Programs at a queue of executions: clients, and the durable functions that workers run. What they
see goes to `lives`, which has the rules.

What an execution does follows from the parts that it is started with. Each part adds what it was
given to the list of all that the execution has seen, which is its result.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from querator.client.errors import (
    ExecutionClosed,
    ExecutionExists,
    InvalidArgument,
    OutcomeUnknown,
    RequestError,
    SignalsFull,
    TokenInvalid,
)
from querator.client.executions import EndedInfo, ExecutionCalls, KeyPolicyName
from querator.durable import (
    Durable,
    continue_as_new,
    current,
    durable,
    produce,
    promise,
    publish,
    receive,
    saga,
    sleep,
    spawn,
    step,
)
from querator.durable import map as map_items
from querator.durable import random as durable_random
from querator.durable.arguments import encode_arguments
from querator.durable.codec import Codec
from querator.durable.context import code_here
from querator.durable.promises import PromiseToken
from querator.model.execution_calls import ExecutionView
from querator.model.executions import ExecutionState, JournalRecord, RecordKind
from querator.partition.execution_queries import end_of, journal_page, list_executions
from querator.storage.environment import ReadTransaction
from tests.simulation.timeline import SECOND, Timeline
from tests.simulation.whole.lives import Begun, Found, Lives
from tests.simulation.whole.programs import NAMESPACE, Ground, Program
from tests.simulation.whole.workers import SimulatedNodes, WorkerProcess

QUEUE = "executions"
MAIL = "executions.mail"
"""The queue into which executions produce an item for each effect."""
WORKERS = 2
DURATIONS_S = (0.0, 0.0, 0.02, 0.3, 1.5)
PAUSES_S = (0.3, 2.0, 5.0)
"""A lease lasts for 3 s."""
PARTS_MAX = 4
AGAIN = "again"
"""The part that begins the next run."""
LOOK_S = 2.0
PROBE_S = 4.0
"""A question looks by itself after 5 s."""
CALM_S = 20.0
_PAGE = 1_000
_CODEC: Final = Codec()


class World:
    """The world outside of all executions of a run: it counts effects, and takes time for them."""

    def __init__(self, lives: Lives, timeline: Timeline, chance: random.Random) -> None:
        self._lives = lives
        self._timeline = timeline
        self._chance = chance
        self._effects = 0

        self.is_fast = False
        """Whether effects take no time."""

    async def effect(self, label: str, past: list[str]) -> str:
        self._effects += 1
        token = f"effect {self._effects}"
        here = current()
        run = int(here.step_key.split("/")[4])
        begun = Begun(label, token, tuple(past), here.step_key, run)
        self._lives.begins(here.execution_id, begun)
        if not self.is_fast:
            await asyncio.sleep(self._chance.choice(DURATIONS_S))
        return token

    def promised(self, token: str) -> None:
        self._lives.promised(current().execution_id, token)

    def produces(self, token: str, item: str) -> None:
        """The code produces an item for an effect, perhaps as it did before."""
        self._lives.produces(current().execution_id, token, item)

    @property
    def now_s(self) -> float:
        return self._timeline.now_us / SECOND

    def slept(self, seconds: float, took: float) -> None:
        self._lives.slept(current().execution_id, seconds, took)


_WORLD: World | None = None


def enter(world: World | None) -> None:
    """The functions of this process run in this world from now on."""
    global _WORLD
    _WORLD = world


def _world() -> World:
    assert _WORLD is not None
    return _WORLD


# --- what workers run ------------------------------------------------------------------------


@step
async def effect(label: str, past: list[str]) -> str:
    return await _world().effect(label, past)


@step
async def reserve(past: list[str]) -> str:
    return await _world().effect("reserve", past)


@step
async def release() -> None:
    """What undoes `reserve`."""


@step
async def tell(token: str) -> None:
    _world().promised(token)


@step
async def instant() -> float:
    return _world().now_s


@durable
async def leaf(number: int) -> str:
    await effect("leaf", [])
    return f"leaf {number}"


@durable
async def life(parts: list[str], seen: list[str]) -> list[str]:
    return await lived(parts, seen, is_newer=False)


@durable(name="life")
async def newer_life(parts: list[str], seen: list[str]) -> list[str]:
    """Changed code, which fits the journals of executions that have only begun to reserve."""
    return await lived(parts, seen, is_newer=True)


async def lived(parts: list[str], seen: list[str], *, is_newer: bool) -> list[str]:
    """`seen`: in earlier runs."""
    async with saga() as undo:
        undo.add(release)
        seen.append(await reserve(list(seen)))
        if is_newer:
            await act(seen, "newer")
        for place, part in enumerate(parts):
            if part == AGAIN:
                continue_as_new(parts[place + 1 :], seen)
            await _PARTS[part](seen)
            publish("seen", len(seen))
        await act(seen, "last")
    return seen


async def act(seen: list[str], label: str) -> None:
    token = await effect(label, list(seen))
    seen.append(token)
    code = code_here()
    assert code is not None
    item = f"{code.identity.id}!{code.identity.run}!{token.replace(' ', '-')}"
    _world().produces(token, item)
    produce(MAIL, item)


async def together(seen: list[str]) -> None:
    await asyncio.gather(act(seen, "left"), act(seen, "right"), act(seen, "middle"))


async def wait(seen: list[str]) -> None:
    seconds = durable_random().choice((0.05, 0.8, 2.5))
    began = await instant()
    await sleep(seconds)
    _world().slept(seconds, await instant() - began)
    seen.append("time")


async def hear(seen: list[str]) -> None:
    for _ in range(2):
        seen.append(f"signal {await receive('word', str)}")
        await act(seen, "after a word")


async def race(seen: list[str]) -> None:
    try:
        async with asyncio.timeout(1.0):
            seen.append(f"signal {await receive('late', str)}")
    except TimeoutError:
        seen.append("late")
    await act(seen, "after the race")


async def beside(seen: list[str]) -> None:
    """Signals and effects in any order."""

    async def hears() -> None:
        seen.append(f"signal {await receive('word', str)}")
        await act(seen, "heard")

    await asyncio.gather(hears(), act(seen, "beside"), act(seen, "beside, too"))


async def has_child(seen: list[str]) -> None:
    child = await spawn(leaf, 7, id=f"{current().execution_id}/leaf")
    await act(seen, "beside the child")
    seen.append(f"child {await child}")


async def maps(seen: list[str]) -> None:
    seen += [f"child {one}" for one in await map_items(leaf, range(3), parallel=2)]
    await act(seen, "mapped")


async def asks(seen: list[str]) -> None:
    asked = promise(str)
    await tell(asked.token)
    seen.append(f"promise {await asked}")
    await act(seen, "answered")


async def fails(seen: list[str]) -> None:
    raise ValueError(f"after {len(seen)}")


_PARTS: dict[str, Callable[[list[str]], Awaitable[None]]] = {
    "together": together, "wait": wait, "hear": hear, "race": race, "beside": beside,
    "child": has_child, "maps": maps, "asks": asks, "fails": fails,
}  # fmt: skip
_VERSIONS: Final = (life.version, newer_life.version)
_WORDS: Final = {"hear": 2, "beside": 1}
"""Signals that a part receives."""
DEPLOYMENTS: Final[tuple[list[Durable[..., Any]], ...]] = (
    [life, leaf], [newer_life, leaf], [leaf],
)  # fmt: skip
"""The last worker of each kind has one of the first two."""


# --- clients ---------------------------------------------------------------------------------


class Starting(Program):
    """Starts executions, and sends what they wait for."""

    _number = 0

    def __init__(
        self, ground: Ground, name: str, queue: str, chance: random.Random, *, pause_us: int
    ) -> None:
        super().__init__(ground, name, queue, chance, pause_us=pause_us)
        nodes: Any = SimulatedNodes(ground, chance)
        self._calls = ExecutionCalls(nodes, NAMESPACE)
        self._lives = ground.lives

    async def act(self) -> None:
        kind = self._chance.random()
        ids = self._lives.open_ids
        if kind < 0.4 or not ids:
            await self._start()
        elif kind < 0.65:
            await self._signal(self._chance.choice(ids))
        elif kind < 0.8:
            for name, token in self._lives.unresolved()[:1]:
                await self._resolve(name, token)
        elif kind < 0.85:
            await self._end(self._chance.choice(ids))
        elif kind < 0.9:
            await self._read(self._chance.choice(ids))
        elif kind < 0.95:
            await self._change(self._chance.choice([*ids, *self._lives.ended_ids]))
        else:
            await self._listen(ids)

    async def finish(self) -> None:
        """Sends what is missing, until all executions have ended, and their ends are heard."""
        while names := self._lives.unanswered:
            await self._start_one(names[0])
        while ids := self._lives.open_ids:
            for name in ids:
                wanted = sum(_WORDS.get(part, 0) for part in self._lives.parts_of(name))
                for _ in range(wanted - self._lives.accepted_words(name)):
                    await self._signal(name, "word")
            for name, token in self._lives.unresolved():
                await self._resolve(name, token)
            await self._listen(ids)
        await self._probe()

    async def _probe(self) -> None:
        """Without faults, workers and clients hear at once what they wait for."""
        _world().is_fast = True
        began_us = self._ground.timeline.now_us
        await self._start(())
        while ids := self._lives.open_ids:
            await self._listen(ids, seconds=CALM_S)
        took_s = (self._ground.timeline.now_us - began_us) / SECOND
        if took_s > PROBE_S:
            self._ground.found(f"{self.name}: an execution of two steps has taken {took_s:.1f} s")

    async def _start(self, parts: Sequence[str] | None = None) -> None:
        self._number += 1
        name = f"{self.name}.{self._number}"
        self._lives.starting(name, self._parts() if parts is None else tuple(parts))
        for _ in range(self._chance.choice((1, 1, 2))):
            await self._start_one(name)

    def _parts(self) -> tuple[str, ...]:
        kinds = [AGAIN, *sorted(_PARTS)]
        return tuple(self._chance.sample(kinds, self._chance.randint(1, PARTS_MAX)))

    async def _start_one(self, name: str) -> None:
        try:
            made = await self._start_run(name, self._lives.parts_of(name), "attach")
        except RequestError as error:
            self._refused("a start", error)
        else:
            self._lives.started(name, made=made)

    async def _start_run(self, name: str, parts: Sequence[str], policy: KeyPolicyName) -> bool:
        return await self._calls.start(
            self.queue, name, life.name, version=self._chance.choice(_VERSIONS),
            arguments=encode_arguments(life, _CODEC, (list(parts), []), {}), key_policy=policy,
        )  # fmt: skip

    async def _signal(self, name: str, mailbox: str = "") -> None:
        mailbox = mailbox or self._chance.choice(("word", "word", "late"))
        text = f"{mailbox}:{name}!{self._lives.signals_of(name)}"
        self._lives.signalled(name, text, -1)
        try:
            index = await self._calls.signal(self.queue, name, mailbox, _CODEC.encode(text, "text"))
        except (ExecutionClosed, SignalsFull):
            pass
        except RequestError as error:
            self._refused("a signal", error)
        else:
            self._lives.signalled(name, text, index)

    async def _resolve(self, name: str, token: str) -> None:
        where = PromiseToken.decode(token)
        value = f"{self.name} {self._chance.random()}"
        self._lives.resolving(name, value)
        try:
            wins = await self._calls.resolve(
                where.namespace, where.queue, partition=where.partition, execution=where.number,
                run=where.run, path=where.path, proof=where.mac,
                payload=_CODEC.encode(value, "value"), reject=False,
            )  # fmt: skip
        except ExecutionClosed:
            pass
        except TokenInvalid as error:
            # It is of a former run.
            if not self._lives.withdraw(name, token):
                self._refused("a resolution", error)
        except RequestError as error:
            self._refused("a resolution", error)
        else:
            self._lives.resolved(name, token, value, wins=wins)

    async def _read(self, name: str) -> None:
        """Reads a published value, which never goes back."""
        least = self._lives.published_of(name)
        seconds = self._chance.choice((0.0, 1.0))
        try:
            found = await self._calls.published(self.queue, name, "seen", after=0, seconds=seconds)
        except RequestError as error:
            self._refused("a read", error)
        else:
            value = _CODEC.decode(found[0], int) if found is not None else 0
            self._lives.published(name, value, least=least)

    async def _change(self, name: str) -> None:
        """Rewinds the execution, or starts it again if it has ended."""
        if self._chance.random() < 0.6:
            self._lives.changing(name)
            await self._rewind(name)
        elif name not in self._lives.open_ids:
            parts = self._parts()
            self._lives.changing(name, parts)
            try:
                await self._start_run(name, parts, "restart_closed")
            except ExecutionExists:
                # Another client has rewound it.
                pass
            except RequestError as error:
                self._refused("a start of an ended one", error)
        self._lives.changing(name)

    async def _rewind(self, name: str) -> None:
        try:
            info, _ = await self._calls.get(self.queue, name)
            record = self._chance.randrange(info.records)
            keep = self._chance.random() < 0.5
            await self._calls.rewind(self.queue, name, record, run=info.run, keep_children=keep)
        except (InvalidArgument, ExecutionClosed):
            # It is within a fold, or is gone; or another run has begun.
            pass
        except RequestError as error:
            self._refused("a rewind", error)

    async def _end(self, name: str) -> None:
        end = self._calls.terminate if self._chance.random() < 0.3 else self._calls.cancel
        try:
            await end(self.queue, name, "by a client")
        except ExecutionClosed:
            pass
        except RequestError as error:
            self._refused("an end", error)

    async def _listen(self, ids: list[str], *, seconds: float = LOOK_S) -> None:
        changes = self._lives.asking(ids)
        try:
            ended = await self._calls.wait(self.queue, ids, seconds=seconds)
        except RequestError as error:
            self._refused("a wait", error)
            return
        for name, one in ended.items():
            if one is None:
                self._ground.found(f"execution {name} was accepted, and is not there")
            else:
                end = end_text(*_state_and_end(one))
                self._lives.heard(name, end, run=one[0].run, changes=changes[name])

    def _refused(self, what: str, error: RequestError) -> None:
        if not (error.retriable or isinstance(error, OutcomeUnknown)):
            self._ground.found(f"{self.name}: {what} ended with {error!r}")


class Failing(Program):
    """Kills, pauses and stops worker processes; each comes back."""

    async def act(self) -> None:
        process = self._chance.choice(self._ground.worker_processes)
        kind = self._chance.random()
        if kind < 0.4:
            process.kill(silent=self._chance.random() < 0.3)
            await asyncio.sleep(self._chance.choice((0.05, 1.0)))
            process.start()
        elif kind < 0.8:
            process.loop.pause()
            await asyncio.sleep(self._chance.choice(PAUSES_S))
            process.loop.resume()
        else:
            process.stop()


# --- the end ---------------------------------------------------------------------------------


def _state_and_end(one: EndedInfo) -> tuple[ExecutionState, JournalRecord]:
    info, end = one
    return ExecutionState[info.state.upper()], end


def end_text(state: ExecutionState, end: JournalRecord) -> str:
    """The end of an execution, as all that ask must hear it."""
    return f"{state.name} {end.index} {end.note.payload!r}"


def executions_of(txn: ReadTransaction, group: int) -> dict[str, Found]:
    """All executions of a partition."""
    page = list_executions(
        txn, group, after=0, function="", state=None, count_max=_PAGE, rows_max=_PAGE
    )
    return {view.id: _found(txn, group, view) for view in page.executions}


def _found(txn: ReadTransaction, group: int, view: ExecutionView) -> Found:
    end = end_of(txn, group, view)
    result: list[str] = []
    if end is not None and view.state is ExecutionState.COMPLETED and view.function == life.name:
        result = _CODEC.decode(end.note.payload, list[str])
    journal = journal_page(
        txn, group, view.number, first=0, count_max=_PAGE, bytes_max=1 << 30
    ).records
    names = tuple(one.note.name for one in journal if one.note.kind == RecordKind.STEP_DONE)
    return Found(
        state=view.state, end="" if end is None else end_text(view.state, end), run=view.run,
        result=tuple(result), names=names,
    )  # fmt: skip


def make_processes(ground: Ground, chance: random.Random) -> list[WorkerProcess]:
    """In some seeds they have one client id, in some they run old and new code."""
    one_id = chance.random() < 0.3
    deployments = DEPLOYMENTS if chance.random() < 0.5 else DEPLOYMENTS[:1]
    ground.lives.has_versions = len(deployments) > 1
    return [
        WorkerProcess(
            ground, f"worker {number}", QUEUE, deployments, chance,
            client_id="workers" if one_id else f"worker {number}",
        )
        for number in range(WORKERS)
    ]  # fmt: skip


def deploy_all(processes: Sequence[WorkerProcess]) -> None:
    """From now on, there is a worker for each version."""
    for number, process in enumerate(processes):
        process.kill()
        process.start(number)
