"""A run of whole nodes: machines, client programs and faults of one seed, and the verdict.

The phases, in virtual time:

    0                     a cluster forms, and the queues of the clients are created
    0 … faulty_us         load and faults
    … + CALM_US           the faults have ended: every queue takes items through every node, and
                          waiting consumers get the available items, until none is left
    the end               every replica is equal, every log is read from disk once more, and the
                          histories of the clients are checked
"""

import asyncio
import contextlib
import gc
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from itertools import chain
from typing import Any

from querator import telemetry
from querator.model.ids import GroupId
from querator.model.limits import ROUTING_AGAIN_MS, ROUTING_CLOSED_MS_MAX
from querator.model.nodes import NodeKey, node_key
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.model.queues import DedupUntil, Queue, QueueKind, QueueSettings, QueueState
from querator.partition import invariants, payloads, queries
from querator.partition.departed import departed
from querator.raft.machine import Machine
from querator.raft.messages import decode_frame
from querator.raft.requests import Outcome
from querator.raft.status import GroupStatus
from querator.raft.turn.turn import Turns
from querator.storage import generations
from querator.storage.environment import StorageCorrupt
from tests.checkers import history
from tests.checkers.history import Aside, History, QueueRules, Recorder
from tests.simulation.checks import CheckedMachine
from tests.simulation.clock import NodeClock
from tests.simulation.disk import Disk
from tests.simulation.ends import check_history, uncertainty_ms, unequal
from tests.simulation.network import Network
from tests.simulation.node import SimulatedNode
from tests.simulation.timeline import MS, SECOND, Timeline
from tests.simulation.verdict import Verdict
from tests.simulation.whole import (
    asking,
    breaking,
    chaining,
    choosing,
    executing,
    following,
    grouping,
    keying,
    lapsing,
    limiting,
    lives,
    pausing,
    ranking,
    reading,
    recurring,
    retrying,
    runs,
    scheduling,
    stuck,
    sweeping,
    tries,
    uniques,
)
from tests.simulation.whole.answers import Answers
from tests.simulation.whole.chains import Chains
from tests.simulation.whole.copies import Copies
from tests.simulation.whole.draining import Draining, Probing
from tests.simulation.whole.fairness import FairnessChecker
from tests.simulation.whole.faults import TwoNetworks, WholeFaults
from tests.simulation.whole.feeds import Feeds
from tests.simulation.whole.flow_checks import FlowChecks
from tests.simulation.whole.key_order import KeyOrderChecker
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.lives import Lives
from tests.simulation.whole.loop import RightClock, VirtualLoop
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.plans import Plans
from tests.simulation.whole.profile import WholeProfile, draw
from tests.simulation.whole.programs import (
    NAMESPACE,
    Calling,
    Consuming,
    Producing,
    Program,
    references_in,
)
from tests.simulation.whole.progress import Progress
from tests.simulation.whole.ranks import Ranks
from tests.simulation.whole.replacing import REPAIRED_US, Removing, Replacing, Retiring
from tests.simulation.whole.winding import (
    GivingUp,
    Passing,
    Redriving,
    Resizing,
    Wayward,
    winding_programs,
)
from tests.simulation.whole.wires import Frame, network_of_links
from tests.simulation.whole.workers import WorkerProcess, of_one_seed

FORMED_US = 30 * SECOND
CREATED_US = 120 * SECOND
"""One answer in five may be lost, and the operator waits up to 8 s for each."""
CALM_US = 30 * SECOND
"""Within this time after the last fault everything is served again, and all remaining items have
been delivered: no lease lasts longer than 6 s, and no item is due later than in 2 s.
"""
SETTLED_US = CALM_US + (ROUTING_CLOSED_MS_MAX + ROUTING_AGAIN_MS) * MS
"""Within this time changes and deletions have ended. An undone change begins again after a
while.
"""
CLOSING_US = 20 * 60 * SECOND
"""Closing partitions stay for the 15 min in which the outcomes of their leases are remembered."""
COMMITS_OF_A_SECOND_MAX = 1_500
"""Most seeds have at most 20 to 45. A stream that takes one item after the other has 300."""
LINK_MESSAGES_OF_A_SECOND_MAX = 2_500
"""Most seeds have at most 100 to 700. Calls that woke each other by their guesses had 5,500."""
QUIET_US = 3 * SECOND
QUIET_COMMITS_MAX = 4
"""Commits of each group: a leadership may still go home, and old rows are deleted."""
SEARCH_STEPS = 30_000
PARTITIONS = {
    stuck.QUEUE: stuck.PARTITIONS, lapsing.QUEUE: 1, ranking.DEAD: 1, tries.DEAD: 1,
    grouping.DEAD: 1, keying.DEAD: 1, chaining.DEAD: 1,
}  # fmt: skip
ATTEMPTS = {
    "w": 3, ranking.QUEUE: ranking.MAX_ATTEMPTS, tries.QUEUE: retrying.MAX_ATTEMPTS,
    sweeping.QUEUE: 0, grouping.QUEUE: grouping.MAX_ATTEMPTS, keying.QUEUE: keying.MAX_ATTEMPTS,
    chaining.QUEUE: chaining.MAX_ATTEMPTS,
}  # fmt: skip
"""Of queues with a dead queue."""
WITHOUT_USUAL_PROGRAMS = frozenset(
    (
        "w.dead", reading.QUEUE, scheduling.QUEUE, ranking.QUEUE, ranking.DEAD, sweeping.QUEUE,
        sweeping.DEAD, tries.QUEUE, tries.DEAD, grouping.QUEUE, grouping.DEAD, keying.QUEUE,
        keying.DEAD,
        runs.QUEUE, *chaining.QUEUES, uniques.QUEUE, breaking.QUEUE, limiting.QUEUE,
        choosing.QUEUE, executing.QUEUE, executing.MAIL,
    )
)  # fmt: skip
LEASE_TIMEOUT_MS = 4_000
RETRY_DELAYS_MS = {"w": 300, tries.QUEUE: retrying.RETRY_DELAY_MS}
OPERATORS_SLOWER = 4
DYING = (
    "w.dead", ranking.QUEUE, ranking.DEAD, sweeping.DEAD, tries.QUEUE, tries.DEAD, grouping.DEAD,
    keying.DEAD, runs.QUEUE, *chaining.QUEUES, executing.QUEUE,
    executing.MAIL,
)  # fmt: skip
"""Queues that take no probes: the checkers of their items know only their own programs."""
CLOCK_FAULTS = frozenset(("step clock", "drift", "jump clock"))
WATCHED_FAULTS = frozenset(("hung disk", "hung loop", "slow disk", "pause"))
EXPECTED_LOGS = ("damage.found", "damage.unsendable", "clock.rejected")
"""Log events about disks that change what was written, and about clocks that jump."""
_PEEK_BYTES = 1 << 40


WITHOUT_HISTORY = frozenset(
    (
        "w", "w.dead", "t", stuck.QUEUE, lapsing.QUEUE, reading.QUEUE, scheduling.QUEUE,
        ranking.QUEUE, ranking.DEAD, sweeping.QUEUE, sweeping.DEAD, tries.QUEUE, tries.DEAD,
        grouping.QUEUE, grouping.DEAD, keying.QUEUE, keying.DEAD,
        runs.QUEUE, *chaining.QUEUES, uniques.QUEUE, breaking.QUEUE, limiting.QUEUE,
        choosing.QUEUE, executing.QUEUE, executing.MAIL,
    )
)  # fmt: skip


def _names_of_queues(profile: WholeProfile) -> list[str]:
    """The queues of the clients, each after its dead queue."""
    names = [f"q{number}" for number in range(profile.queues)]
    if profile.winding:
        names = ["w.dead", "w"]
    if profile.readers:
        names.append(reading.QUEUE)
    if profile.schedules:
        names.append(scheduling.QUEUE)
    if profile.ranked:
        names += [ranking.DEAD, ranking.QUEUE]
    if profile.sweeping:
        # Other programs take the last queue.
        names[:0] = [sweeping.DEAD, sweeping.QUEUE]
    if profile.retried:
        names += [tries.DEAD, tries.QUEUE]
    if profile.grouped:
        names[:0] = [grouping.DEAD, grouping.QUEUE]
    if profile.keyed:
        names[:0] = [keying.DEAD, keying.QUEUE]
    for there, first in (
        (profile.recurring, (runs.QUEUE,)),
        (profile.chained, (chaining.DEAD, chaining.NEXT, chaining.QUEUE)),
        (profile.unique, (uniques.QUEUE,)),
        (profile.breaking, (breaking.QUEUE,)),
        (profile.limiting, (limiting.QUEUE,)),
        (profile.choosing, (choosing.QUEUE,)),
        (profile.executing, (executing.MAIL, executing.QUEUE)),
    ):
        if there:
            names[:0] = first
    return names


class WholeWorld:
    def __init__(
        self,
        seed: int,
        *,
        tell: Callable[[str], None] | None = None,
        profile: WholeProfile | None = None,
        turns_class: type[Turns] = Turns,
    ) -> None:
        self.seed = seed
        chance = random.Random(f"whole {seed}")
        self.profile = draw(seed, chance) if profile is None else profile
        self.timeline = Timeline(tell)
        self.timeline.tell("WORLD", f"seed {seed}: {self.profile}")
        # Leases pass over blocks that are damaged.
        self.ranks = Ranks(trusts_order="damage" not in self.profile.faults)
        self.fairness = FairnessChecker(trusts_order=self.ranks.trusts_order)
        self.key_order = KeyOrderChecker()
        self.checks = FlowChecks(
            self.timeline,
            self.ranks,
            fairness=self.fairness if self.profile.grouped else None,
            key_order=self.key_order if self.profile.keyed else None,
            breaking=self.profile.breaking,
            limiting=self.profile.limiting,
        )
        nature = self.profile.nature
        self.tries, self.runs = tries.Tries(retrying.MAX_ATTEMPTS), runs.Runs()
        self.progress, self.answers = Progress(self.tries), Answers()
        self.latency_us, self.loss = max(50, nature.latency_us), self.profile.loss
        self.recorder = Recorder(History(), lambda: self.timeline.now_us / SECOND)
        self.frames: Network[bytes] = Network(
            self.timeline, random.Random(f"network {seed}"), nature
        )
        self.frames.digest = len
        self.frames.describe = lambda frame: "; ".join(map(str, decode_frame(frame)))
        self.links: Network[Frame] = Network(self.timeline, random.Random(f"links {seed}"), nature)
        network_of_links(self.links)
        self.frames.lets_in = self._lets_in
        self.network: Any = TwoNetworks(self.frames, self.links)
        self.client_loop = VirtualLoop(
            self.timeline,
            RightClock(self.timeline),
            random.Random(f"clients {seed}"),
            self._client_failed,
        )
        # A check every 100 ms, in seeds that have something to find.
        self.watches_hangs = not WATCHED_FAULTS.isdisjoint(self.profile.faults)
        self._turns_class = turns_class
        self._chance = chance
        self._nodes: dict[NodeKey, WholeNode] = {}
        founders = tuple(
            PlacedNode(f"n{number}", "1", f"n{number}:7472", f"n{number}:7471")
            for number in range(1, self.profile.nodes + 1)
        )
        for number in range(1, self.profile.nodes + 1):
            self._founders = founders
            node = self.make_node(number)
            self._nodes[node.key] = node
        self.faults = WholeFaults(self, random.Random(f"faults {seed}"))  # type: ignore[arg-type]
        self.faults.links = self.links
        self.copies = Copies(self, random.Random(f"copies {seed}"))
        self.faults.copies = self.copies
        self.replacing = Replacing(self)
        self.programs: list[Program] = []
        self.queue_names = _names_of_queues(self.profile)
        self.winding = WITHOUT_HISTORY
        self.stuck: frozenset[GroupId] = frozenset()
        # Only in seeds that have something to find.
        self.scrub_bytes_per_s = 10_000_000 if "damage" in self.profile.faults else 0
        self.ledger = Ledger()
        self.chains = Chains(self.ledger)
        self.plans, self.sweeps = Plans(), sweeping.Sweeps(self.ledger)
        self.pauses, self.feeds, self.choices = pausing.Pauses(), Feeds(), choosing.Choices()
        self.uniques = uniques.Uniques(self.ledger)
        self.lives = Lives(
            trusts_clocks=CLOCK_FAULTS.isdisjoint(self.profile.faults),
            produced=lambda items: self.ledger.produced(items, known=False),
        )
        self.worker_processes: list[WorkerProcess] = []
        self._paces: deque[tuple[int, int, int]] = deque()
        """Instants of the last second, each with the number of commits until then."""
        self.undecided = 0

    def make_node(self, number: int, incarnation: str = "1") -> WholeNode:
        """A machine with an empty disk."""
        key = node_key(f"n{number}", incarnation)
        profile = self.profile
        spread_ms = profile.offset_ms
        clock = NodeClock(
            self.timeline,
            offset_ms=self._chance.randint(-spread_ms, spread_ms),
            drift_ppm=self._chance.randint(-profile.drift_ppm, profile.drift_ppm),
        )
        disk = Disk(clock, random.Random(f"disk {self.seed} {key}"), None)
        disk.sync_us = profile.sync_us
        return self.make_process(key, clock, disk)

    def bring_in(self, node: WholeNode) -> None:
        self._nodes[node.key] = node
        node.start()

    def make_process(self, key: NodeKey, clock: NodeClock, disk: Disk, name: str = "") -> WholeNode:
        """`name`: its endpoint, if that is not the node's."""
        node = WholeNode(
            key,
            world=self,
            network=self.frames,
            links=self.links,
            clock=clock,
            disk=disk,
            seed=f"node {self.seed}",
            log_bytes_kept=self.profile.log_bytes_kept,
            founders=self._founders,
            turns_class=self._turns_class,
            endpoint=name,
        )
        self.frames.add(node.endpoint, node)
        return node

    # --- what the others see of it -------------------------------------------------------

    def machine(self, node: WholeNode, group: GroupId) -> Machine:
        return CheckedMachine(group, node.name, self.checks)

    def whole_nodes(self) -> list[WholeNode]:
        return [node for node in self._nodes.values() if not node.gone]

    def all_nodes(self) -> list[SimulatedNode]:
        return list(self.whole_nodes())

    def alive(self) -> list[SimulatedNode]:
        return [node for node in self._nodes.values() if node.listening]

    def leader(self, group: GroupId) -> tuple[WholeNode, GroupStatus] | None:
        """The current leader of the highest term, if it can be asked."""
        best: tuple[WholeNode, GroupStatus] | None = None
        for node in self._nodes.values():
            if not node.listening:
                continue
            assert node.turns is not None
            status = node.turns.status(group)
            if status is not None and status.leads and (best is None or status.term > best[1].term):
                best = (node, status)
        return best

    def leader_of_any(self) -> SimulatedNode | None:
        for group in range(1, 4):
            found = self.leader(GroupId(group))
            if found is not None:
                return found[0]
        return None

    def may_lose_a_disk(self) -> bool:
        return self.replacing.is_allowed()

    def lose_disk(self, node: SimulatedNode) -> None:
        assert isinstance(node, WholeNode)
        self.replacing.lose(node)

    def is_gone(self, node: NodeKey) -> bool:
        return self._nodes[node].gone

    def found(self, text: str) -> None:
        self.checks.found(text)

    def _client_failed(self, text: str, error: BaseException | None) -> None:
        self.checks.found(f"a client program failed: {text}: {error!r}{_where(error)}")

    def after_turn(self, node: SimulatedNode, outcome: Outcome) -> None:
        self.checks.after_turn(node, outcome)

    def failed(self, node: SimulatedNode, error: BaseException) -> None:
        self.checks.failed(node, error)

    def stopped(self, node: SimulatedNode) -> None:
        self.faults.stopped(node)

    def refused(self, node: WholeNode) -> None:
        self.copies.refused(node)

    def _lets_in(self, a: str, b: str) -> bool:
        """The decision of their transports."""
        if not self.copies.reach(a, b):
            return False
        one, other = self.copies.process(a), self.copies.process(b)
        return one.lets_in(other) and other.lets_in(one)

    # --- the map ---------------------------------------------------------------------------

    def newest_map(self) -> PlacementMap:
        maps = [node.core.placement.map for node in self._nodes.values() if node.core is not None]
        return max(maps, key=lambda placed: placed.epoch, default=PlacementMap())

    def queue(self, name: str) -> Queue | None:
        return self.newest_map().find(NAMESPACE, name)

    def _set_aside(self, found: Mapping[str, Any]) -> None:
        """A node has found a damaged block: leases pass over its items until it is whole again."""
        queue = self.queue(found["queue"])
        if queue is None or found["partition"] >= len(queue.groups):
            return
        group = queue.groups[found["partition"]]
        items = 0
        for node in self._nodes.values():
            # The others may not have applied the command that brought it. This node may have
            # damaged rows.
            with contextlib.suppress(StorageCorrupt), node.view(group) as snapshot:
                items = max(items, payloads.items_left(snapshot, group, [found["block"]]))
        now_s = self.timeline.now_us / SECOND
        self.recorder.history.asides.append(Aside(queue.name, now_s, items))

    # --- the run ---------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Stops soon after a violation is found."""
        gc.disable()
        logs = _ErrorLogs(self.found, self._set_aside)
        workers = of_one_seed(self.timeline, self.seed)
        try:
            logs.begin()
            with workers if self.profile.executing else contextlib.nullcontext():
                for phase in (
                    self._begin, self._under_load, self._come_to_rest, self._look_at_the_end,
                ):  # fmt: skip
                    phase()
                    if self.checks.violations:
                        break
        finally:
            violations = list(self.checks.violations)
            # Logs of closing coroutines are not needed.
            logging.disable(logging.CRITICAL)
            self.timeline.end_transcript()
            for node in (*self._nodes.values(), *self.copies.doubles):
                node.dispose()
                node.disk.close()
            self.client_loop.dispose()
            for process in self.worker_processes:
                process.dispose()
            executing.enter(None)
            logs.end()
            gc.enable()
        return Verdict(
            self.seed,
            violations,
            self.timeline.trace(),
            self.timeline.now_us / SECOND,
            self._figures(),
        )

    def _figures(self) -> dict[str, int]:
        return {
            "batches": sum(getattr(program, "batches", 0) for program in self.programs),
            "operations": sum(program.operations for program in self.programs),
            "items": sum(getattr(program, "acknowledged", 0) for program in self.programs),
            "commits": self.checks.commits,
            "frames": self.frames.delivered,
            "link frames": self.links.delivered,
            "boots": sum(node.boots for node in self._nodes.values()),
            "syncs": sum(node.disk.syncs for node in self._nodes.values()),
            "undecided histories": self.undecided,
            "leases beside other priorities": self.ranks.compared,
            "changed attributes": self.tries.compared,
            "effects of executions": self.lives.compared,
            "checkpoints": self.progress.compared,
            "results": self.answers.compared,
            "followed events": self.feeds.compared,
            "grants beside waiting groups": self.fairness.compared,
            "grants before others of a key": self.key_order.compared,
            "opened breakers": self.checks.breakers.opened,
            "entries with items behind limits": self.checks.limits.kept_back,
            "calls with follow-ups": self.chains.compared,
            "compared recurrences": self.runs.compared,
            "lost disks": self.replacing.lost is not None,
            "removed nodes": self.replacing.leaving is not None,
            "faults": sum(self.faults.happened.values()),
            "elections": self.checks.elections,
        }

    def _run_for(self, duration_us: int) -> None:
        end_us = self.timeline.now_us + duration_us
        while self.timeline.now_us < end_us and not self.checks.violations:
            self.timeline.run(min(end_us, self.timeline.now_us + 100 * MS))
            self._look_at_the_pace()

    def _look_at_the_pace(self) -> None:
        """Time bounds the number of commands, whatever happens to their answers, and the number of
        messages between nodes.
        """
        now_us, paces = self.timeline.now_us, self._paces
        paces.append((now_us, self.checks.commits, self.links.delivered))
        while paces[0][0] < now_us - SECOND:
            paces.popleft()
        _, commits, messages = paces[0]
        commits, messages = self.checks.commits - commits, self.links.delivered - messages
        if commits > COMMITS_OF_A_SECOND_MAX:
            self.found(f"{commits} entries were committed within a second")
            paces.clear()
        elif messages > LINK_MESSAGES_OF_A_SECOND_MAX:
            self.found(f"{messages} messages went between nodes within a second")
            paces.clear()

    def _until(self, what: Callable[[], object], *, within_us: int, look_us: int = 20 * MS) -> bool:
        end_us = self.timeline.now_us + within_us
        while not what() and not self.checks.violations:
            if self.timeline.now_us >= end_us:
                return False
            self._run_for(look_us)
        return not self.checks.violations

    def _done(self, coroutine: Coroutine[Any, Any, Any], *, within_us: int) -> bool:
        """Runs it on the clients' loop. Returns whether it has ended in time."""
        task = self.client_loop.start(coroutine)
        if not self._until(task.done, within_us=within_us):
            task.cancel()
            return False
        task.result()
        return True

    def _begin(self) -> None:
        for node in self._nodes.values():
            node.start()
        if not self._until(
            lambda: all(node.serves for node in self._nodes.values()), within_us=FORMED_US
        ):
            self.found("the cluster has not formed")
            return
        for name in self.queue_names:
            rules = QueueRules(
                partitions=self.profile.partitions, lease_timeout_s=LEASE_TIMEOUT_MS / 1000
            )
            if name not in self.winding:
                self.recorder.history.queues[name] = rules
            if not self._done(self._create(name), within_us=CREATED_US):
                self.found(f"queue {name} cannot be created")

    async def _create(self, name: str) -> None:
        settings = QueueSettings(
            partitions=PARTITIONS.get(name, self.profile.partitions),
            lease_timeout_ms=LEASE_TIMEOUT_MS,
            max_attempts=ATTEMPTS.get(name, 0),
            dead_queue=f"{name}.dead" if name in ATTEMPTS else "",
            retry_delay_ms=RETRY_DELAYS_MS.get(name, 0),
            retry_delay_max_ms=1_000,
            retry_jitter=name != tries.QUEUE,
            dedup_until=DedupUntil.DONE if name == uniques.QUEUE else DedupUntil.WINDOW,
            **self._settings_of_kind(name),
            events_retention_ms=following.RETENTION_MS if self.profile.following else 0,
        )
        operator = Calling(self, "operator", name, self._chance)
        ended = await operator.call(
            "create",
            lambda core: core.admin.create_queue(NAMESPACE, name, settings),
            again=True,
            give_up_s=CREATED_US / SECOND,
        )
        if ended.result is None:
            operator.unexpected("create", ended)

    def _settings_of_kind(self, name: str) -> dict[str, Any]:
        if name == "w.dead":
            return {"partition_items_max": self.profile.dead_room}
        if name == grouping.QUEUE:
            return grouping.settings_of(self.seed)
        if name == chaining.NEXT:
            return chaining.settings_of_next(self.seed)
        if name == breaking.QUEUE:
            return {"breaker": breaking.BREAKER}
        if name == limiting.QUEUE:
            return limiting.settings_of(self.seed)
        if name == executing.QUEUE:
            return {"kind": QueueKind.EXECUTIONS}
        if name == runs.QUEUE:
            return recurring.settings_of(self.seed)
        return keying.settings_of(self.seed) if name == keying.QUEUE else {}

    def _under_load(self) -> None:
        profile = self.profile
        if profile.winding:
            self._add(Consuming, "w.dead.c0", "w.dead")
            for kind in winding_programs(self._chance):
                self._add(kind, f"w.{kind.__name__.lower()}", "w", slower=OPERATORS_SLOWER)
        if profile.passing:
            self._add(
                Passing, "t.p", "t",
                item_bytes=10, delays=False, identified=True, slower=OPERATORS_SLOWER,
            )  # fmt: skip
        if profile.wayward:
            self._add(
                Wayward, "wayward", self.queue_names[-1],
                item_bytes=10, delays=False, identified=True, slower=OPERATORS_SLOWER,
            )  # fmt: skip
        if "damage" in profile.faults and profile.nodes > 2:
            for queue in self.queue_names:
                self._add(GivingUp, f"{queue}.givingup", queue, slower=OPERATORS_SLOWER)
        self._add_further_queues()
        if profile.retiring:
            kind = Removing if profile.removing else Retiring
            self._add(kind, "retiring", "", slower=OPERATORS_SLOWER)
        for queue in self.queue_names:
            if queue in WITHOUT_USUAL_PROGRAMS:
                continue
            for number in range(profile.programs):
                self._add(
                    Producing, f"{queue}.p{number}", queue,
                    item_bytes=profile.item_bytes, delays=profile.delays,
                    identified=self._chance.random() < 0.7,
                    # The checkers cannot place items that are unacknowledged and split by keys.
                    keys=self._chance.choice((0, 5)) if queue in self.winding else 0,
                )  # fmt: skip
                self._add(Consuming, f"{queue}.c{number}", queue)
        self.faults.begin()
        self._run_for(profile.faulty_us)

    def _add_further_queues(self) -> None:
        profile = self.profile
        for there, add in (
            (profile.readers, self._add_readers),
            (profile.schedules, self._add_schedules),
            (profile.ranked, self._add_ranked),
            (profile.sweeping, self._add_swept),
            (profile.retried, self._add_retried),
            (profile.grouped, self._add_grouped),
            (profile.keyed, self._add_keyed),
            (profile.recurring, self._add_recurring),
            (profile.chained, self._add_chained),
            (profile.unique, self._add_unique),
            (profile.breaking, self._add_breaking),
            (profile.limiting, self._add_limiting),
            (profile.following, self._add_followers),
            (profile.choosing, self._add_choosing),
            (profile.executing, self._add_executing),
        ):
            if there:
                add()
        if self.profile.pausing:
            queue = next(one for one in self.queue_names if one not in WITHOUT_USUAL_PROGRAMS)
            self._add(pausing.Pausing, f"{queue}.pausing", queue, slower=2)

    def _add_readers(self) -> None:
        queue = reading.QUEUE
        self._add(
            Producing, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=False, identified=True, keys=5,
        )  # fmt: skip
        self._add(reading.Reading, f"{queue}.r", queue)
        self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_schedules(self) -> None:
        queue = scheduling.QUEUE
        self._add(
            scheduling.Planning, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=True, identified=True, keys=5,
        )  # fmt: skip
        self._add(scheduling.Working, f"{queue}.c", queue)
        self._add(scheduling.Rescheduling, f"{queue}.rescheduling", queue)
        if scheduling.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_ranked(self) -> None:
        queue = ranking.QUEUE
        self._add(
            ranking.Ranking, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=True, identified=True, keys=5,
        )  # fmt: skip
        self._add(ranking.consumer(self.seed), f"{queue}.c", queue)
        resized = ranking.changes_partitions(self.seed)
        self._add(ranking.Prioritizing, f"{queue}.prioritizing", queue, slower=2, resized=resized)
        self._add(Redriving, f"{queue}.redriving", queue, slower=OPERATORS_SLOWER)
        if resized:
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_swept(self) -> None:
        queue = sweeping.QUEUE
        self._add(
            sweeping.Placing, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=True, identified=True, keys=5,
        )  # fmt: skip
        self._add(sweeping.Sweeping, f"{queue}.sweeping", queue, slower=2)
        self.sweeps.consumed = sweeping.has_consumer(self.seed)
        if self.sweeps.consumed:
            self._add(Consuming, f"{queue}.c", queue)
        if sweeping.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_retried(self) -> None:
        queue = tries.QUEUE
        self._add(
            retrying.Wishing, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=False, identified=True,
        )  # fmt: skip
        self._add(retrying.consumer(self.seed), f"{queue}.c", queue)
        self._add(retrying.FailingLetters, f"{tries.DEAD}.c", tries.DEAD, slower=2)
        self._add(retrying.Watching, f"{queue}.watching", queue, slower=2)
        self._add(retrying.Waiting, f"{queue}.waiting", queue)
        self._add(Redriving, f"{queue}.redriving", queue, slower=OPERATORS_SLOWER)

    def _add_grouped(self) -> None:
        queue = grouping.QUEUE
        for number in range(2):
            self._add(
                grouping.Grouping, f"{queue}.p{number}", queue,
                item_bytes=self.profile.item_bytes, delays=False, identified=True, slower=2,
            )  # fmt: skip
            self._add(grouping.consumer(self.seed), f"{queue}.c{number}", queue)
        self._add(grouping.Weighing, f"{queue}.weighing", queue, slower=2 * OPERATORS_SLOWER)
        self._add(Redriving, f"{queue}.redriving", queue, slower=OPERATORS_SLOWER)
        if grouping.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_keyed(self) -> None:
        queue = keying.QUEUE
        for number in range(2):
            self._add(
                keying.Keying, f"{queue}.p{number}", queue,
                item_bytes=self.profile.item_bytes, delays=False, identified=True, slower=2,
            )  # fmt: skip
            self._add(keying.consumer(self.seed), f"{queue}.c{number}", queue)
        if keying.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)
        else:
            # A letter returns to the number of its partition, also when its key has moved.
            self._add(Redriving, f"{queue}.redriving", queue, slower=OPERATORS_SLOWER)

    def _add_recurring(self) -> None:
        queue = runs.QUEUE
        self._add(recurring.Setting, f"{queue}.operator", queue, slower=2)
        self._add(Consuming, f"{queue}.c", queue)
        if recurring.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_chained(self) -> None:
        queue = chaining.QUEUE
        self._add(
            Producing, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=False, identified=True, keys=3, slower=2,
        )  # fmt: skip
        for number in range(2):
            self._add(chaining.Chaining, f"{queue}.c{number}", queue)
        self._add(chaining.ChainingNext, f"{chaining.NEXT}.c", chaining.NEXT, slower=2)
        self._add(chaining.Passed, f"{chaining.GOING}.c", chaining.GOING, slower=2)
        self._add(chaining.Going, f"{chaining.GOING}.operator", chaining.GOING, slower=2)
        self._add(chaining.Redriving, f"{queue}.redriving", queue, slower=OPERATORS_SLOWER)
        self._add(
            chaining.Redriving, f"{chaining.GOING}.redriving", chaining.GOING,
            slower=OPERATORS_SLOWER,
        )  # fmt: skip
        for name in (queue, chaining.NEXT):
            if chaining.changes_partitions(self.seed, name):
                self._add(Resizing, f"{name}.resizing", name, slower=OPERATORS_SLOWER)

    def _add_unique(self) -> None:
        queue = uniques.QUEUE
        for number in range(2):
            self._add(
                asking.Asking, f"{queue}.p{number}", queue,
                item_bytes=self.profile.item_bytes, delays=False, identified=True,
            )  # fmt: skip
        self._add(asking.Working, f"{queue}.c", queue)
        self._add(asking.Watching, f"{queue}.watching", queue)
        self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_breaking(self) -> None:
        queue = breaking.QUEUE
        self._add(
            Producing, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=False, identified=True,
        )  # fmt: skip
        for number in range(2):
            self._add(breaking.consumer(self.seed), f"{queue}.c{number}", queue)
        self._add(breaking.Switching, f"{queue}.switching", queue, slower=2 * OPERATORS_SLOWER)
        if breaking.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_limiting(self) -> None:
        queue = limiting.QUEUE
        self._add(
            limiting.producer(self.seed), f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=False, identified=True,
        )  # fmt: skip
        for number in range(2):
            self._add(limiting.consumer(self.seed), f"{queue}.c{number}", queue)
        self._add(limiting.Limiting, f"{queue}.limiting", queue, slower=2 * OPERATORS_SLOWER)
        if limiting.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_followers(self) -> None:
        for queue in self.queue_names:
            self._add(following.Following, f"{queue}.following", queue)

    def _add_choosing(self) -> None:
        queue = choosing.QUEUE
        self._add(
            choosing.Making, f"{queue}.p", queue,
            item_bytes=self.profile.item_bytes, delays=False, identified=True,
        )  # fmt: skip
        self._add(choosing.Choosing, f"{queue}.c", queue)
        self._add(choosing.Finishing, f"{queue}.finishing", queue)
        if choosing.changes_partitions(self.seed):
            self._add(Resizing, f"{queue}.resizing", queue, slower=OPERATORS_SLOWER)

    def _add_executing(self) -> None:
        queue = executing.QUEUE
        chance = random.Random(f"executing {self.seed}")
        executing.enter(executing.World(self.lives, self.timeline, chance))
        self.worker_processes = executing.make_processes(self, chance)
        for process in self.worker_processes:
            process.start()
        for number in range(2):
            self._add(executing.Starting, f"{queue}.p{number}", queue)
        self._add(executing.Failing, f"{queue}.failing", queue, slower=2)
        self._add(Consuming, f"{executing.MAIL}.c0", executing.MAIL)

    def _executions_end(self) -> bool:
        """Whether all executions end in time."""
        executing.deploy_all(self.worker_processes)
        for program in self.programs:
            if isinstance(program, executing.Starting) and not self._done(
                program.finish(), within_us=CALM_US
            ):
                self.found(f"executions do not end: {self.lives.open_ids}")
                return False
        return True

    def _operators_end(self) -> bool:
        """Whether what would not come to rest is ended in time: recurrences, a queue that comes and
        goes, and pauses.
        """
        for program in self.programs:
            if isinstance(
                program,
                recurring.Setting
                | chaining.Going
                | pausing.Pausing
                | grouping.Weighing
                | limiting.Limiting,
            ) and not self._done(program.finish(), within_us=CALM_US):
                self.found(f"{program.name} does not come to its end")
                return False
        return True

    def _readers_finish(self) -> bool:
        """Whether a reader gets all items, and gets them acknowledged, in time."""
        for program in self.programs:
            if isinstance(program, reading.Reading) and not self._done(
                program.finish(), within_us=CALM_US
            ):
                self.found(f"{program.name} does not come to its end: {self._left()}")
                return False
        return True

    def _end_waits(self) -> None:
        """The results of all items that have asked are answered in time: the items have ended."""
        for program in self.programs:
            if isinstance(program, retrying.Waiting) and not self._done(
                program.finish(), within_us=CALM_US
            ):
                self.found(f"{program.name} waits for results of {self.answers.open()}")

    def _add(
        self, kind: Callable[..., Program], name: str, queue: str, *, slower: int = 1, **more: Any
    ) -> None:
        chance = random.Random(f"program {self.seed} {name}")
        pause_us = self.profile.pause_us * slower
        program = kind(self, name, queue, chance, pause_us=pause_us, **more)
        self.programs.append(program)
        self.client_loop.start(program.run()).add_done_callback(self._program_ended)

    def _program_ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._client_failed("its task has ended", error)

    # --- after the faults ----------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.copies.end()
        self.faults.heal()
        # Lost answers are a fault too.
        self.loss = 0.0
        healed_us = self.timeline.now_us
        if not self._until(self._all_serve, within_us=CALM_US):
            self.found("not every node serves after the faults have ended")
            return
        self._run_for(SECOND)
        if not self._stop_programs():
            return
        ends = (
            self._all_repaired, self._operators_end, self._readers_finish, self._executions_end
        )  # fmt: skip
        if not all(end() for end in ends):
            return
        if self.profile.stuck:
            stuck.Beside(self, random.Random(f"stuck {self.seed}")).look()
        if self.profile.lapsing:
            lapsing.Lapsing(self, random.Random(f"lapsing {self.seed}")).look()
        healed_us = self.timeline.now_us
        self._add_drainers()
        # The last answers may have come before their content is on disk.
        self._run_for(100 * MS)
        left_us = max(healed_us + CALM_US - self.timeline.now_us, 5 * SECOND)
        if not self._until(lambda: not self._left(), within_us=left_us, look_us=100 * MS):
            self.found(f"not everything has been delivered: {self._left()}")
            return
        self._stop_programs()
        self._end_waits()
        self._probe()
        if not self._until(lambda: not self._remains(), within_us=SETTLED_US):
            self.found(f"it does not come to its end: {self._remains()}")
            return
        if self.profile.patient and not self._until(self._none_closing, within_us=CLOSING_US):
            self.found("a closing partition does not go")
            return
        if not self._until(lambda: not self._unequal(), within_us=10 * SECOND):
            self.found(f"the replicas have not become equal: {self._unequal()}")
            return
        self._look_at_the_quiet()

    def _add_drainers(self) -> None:
        for queue in self.queue_names:
            # Activations are for workers.
            if queue == executing.QUEUE:
                continue
            for node in self.whole_nodes():
                self._add(Draining, f"{queue}.{node.name}", queue)
                drainer = self.programs[-1]
                assert isinstance(drainer, Draining)
                drainer.node = node.name

    def _all_repaired(self) -> bool:
        """Whether every group gets the replicas that it should have, in time."""
        for program in self.programs:
            if isinstance(program, Retiring) and not self._done(
                program.finish(), within_us=REPAIRED_US
            ):
                self.found(f"a node is neither back nor removed: {self.replacing.unrepaired()}")
                return False
        if not self._until(lambda: not self.replacing.unrepaired(), within_us=REPAIRED_US):
            self.found(f"not every group has its replicas: {self.replacing.unrepaired()}")
            return False
        return True

    def _stop_programs(self) -> bool:
        """Whether the programs have their answers in time."""
        for program in self.programs:
            program.stopped = True
        if not self._until(self._nobody_waits, within_us=CALM_US):
            self.found(f"clients still wait for answers: {self._busy()}")
            return False
        return True

    def _probe(self) -> None:
        """A consumer that waits at a node gets an item that is produced through another node."""
        for queue in self.queue_names:
            for node in self.whole_nodes():
                if queue in DYING:
                    continue
                name = f"probe {queue} {node.name}"
                chance = random.Random(f"{self.seed} {name}")
                waiting = Probing(self, name, queue, chance, pause_us=SECOND)
                waiting.node = node.name
                producing = Producing(
                    self, f"{name} p", queue, chance,
                    pause_us=SECOND, item_bytes=10, delays=False, identified=True,
                )  # fmt: skip
                producing.counts = (1,)
                self._done(waiting.probe(producing), within_us=CALM_US)
                if not waiting.came:
                    self.found(f"who waits at {node.name} for {queue} gets nothing in time")
                    return
                if not self._until(lambda: not self._left(), within_us=CALM_US):
                    self.found(f"a probe is left: {self._left()}")
                    return

    def _look_at_the_quiet(self) -> None:
        """No client asks anything: leaders have nothing to append to their logs."""
        commits = self.checks.commits
        self._run_for(QUIET_US)
        more = self.checks.commits - commits
        if more > QUIET_COMMITS_MAX * (1 + len(self._groups())):
            self.found(f"{more} entries were committed in {QUIET_US} us in which nobody asked")

    def _none_closing(self) -> bool:
        return not any(queue.closing for queue, _, _ in self._groups())

    def _remains(self) -> str:
        """Operations that were begun and have not ended, and removed objects that still exist;
        empty: none.
        """
        placed = self.newest_map()
        for queue in placed:
            if queue.state is not QueueState.ACTIVE:
                return f"queue {queue.name} is {queue.state.name}"
            if queue.is_changing:
                return f"the partitions of queue {queue.name} are being changed"
        for node in self.whole_nodes():
            assert node.turns is not None
            with node.disk.snapshots() as snapshot:
                stored = set(generations.stored_groups(snapshot))
            for group in sorted({*stored, *node.turns.groups()} - {0}):
                there = placed.placed(GroupId(group))
                if there is None:
                    return f"{node.name} has something of group {group}, which is no more"
                if there.replica_on(node.key) is None:
                    return f"{node.name} has something of group {group}, which is elsewhere"
        living = {group for queue in placed for group in queue.groups}
        for _, _, group in self._groups():
            found = self.leader(group)
            if found is None:
                return f"group {group} has no leader"
            with found[0].view(group) as snapshot:
                gone = departed(snapshot, group, living)
            if gone:
                return f"group {group} remembers groups that are no more: {gone}"
        return ""

    def _busy(self) -> list[str]:
        return [program.name for program in self.programs if program.busy]

    def _nobody_waits(self) -> bool:
        return not self._busy()

    def _all_serve(self) -> bool:
        return all(node.serves and not node.paused for node in self.whole_nodes())

    def _groups(self) -> list[tuple[Queue, int, GroupId]]:
        return [
            (queue, partition, group)
            for queue in self.newest_map()
            if queue.state is not QueueState.DELETING
            for partition, group in enumerate(queue.groups)
        ]

    def _left(self) -> str:
        """Items that have not left their queue."""
        for queue, partition, group in self._groups():
            found = self.leader(group)
            if found is None:
                return f"{queue.name} {partition} has no leader"
            with found[0].view(group) as snapshot:
                stats = queries.stats(snapshot, group)
            counts = {
                name: getattr(stats, name)
                for name in ("ready", "leased", "scheduled", "moving", "held", "reserved")
                if getattr(stats, name)
            }
            if counts:
                return f"{queue.name} {partition} has {counts}"
        return ""

    def _all_are_led(self) -> bool:
        return all(self.leader(group) is not None for _, _, group in self._groups())

    def _unequal(self) -> str:
        groups = (GroupId(0), *(group for _, _, group in self._groups()))
        return unequal(groups, self.leader, self._nodes)

    def _look_at_the_end(self) -> None:
        # A leadership may be on its way to the preferred node of its group.
        if not self._until(self._all_are_led, within_us=CALM_US):
            self.found("a partition has no leader at the end")
            return
        damaged = self.faults.damaged
        self.checks.same_logs([node for node in self._nodes.values() if node is not damaged])
        present: dict[str, list[tuple[int, int, str]]] = {name: [] for name in self.queue_names}
        everywhere: Counter[str] = Counter()
        executions: dict[str, lives.Found] = {}
        for queue, partition, group in self._groups():
            found = self.leader(group)
            assert found is not None
            leader, status = found
            for replica in status.replicas:
                node = self._nodes[replica.node]
                if node is damaged:
                    continue
                with node.view(group) as snapshot:
                    digest = CheckedMachine(group, node.name, self.checks).digest(snapshot)
                    applied = queries.applied_index(snapshot, group)
                    self.checks.digest(node.name, group, applied, digest)
                    for text in invariants.check(snapshot, group):
                        self.found(f"{node.name}: group {group}: {text}")
            if self.profile.following and queue.settings.events_retention_ms:
                with leader.view(group) as snapshot:
                    self.feeds.found += self.feeds.judge(snapshot, group)
            with leader.view(group) as snapshot:
                executions.update(executing.executions_of(snapshot, group))
            there = _items_of(leader, group)
            everywhere.update(item for _, item in there)
            if queue.name in present:
                present[queue.name] += [(partition, seq, item) for seq, item in there]
        for text in self.ledger.judge(everywhere):
            self.found(text)
        apart_ms = uncertainty_ms([node.clock for node in self._nodes.values()])
        for text in chain(
            self.plans.judge(apart_ms),
            self.ranks.judge(),
            self.tries.judge(apart_ms),
            self.progress.judge(),
            self.answers.judge(),
            self.fairness.judge(),
            self.key_order.judge(),
            self.checks.breakers.found,
            self.checks.limits.found,
            self.runs.judge(apart_ms),
            self.chains.judge(everywhere),
            self.uniques.judge(apart_ms),
            self.lives.judge(executions),
            self.lives.judge_items(executions, everywhere.keys() | self.ledger.gone_items),
            self.pauses.found,
            self.feeds.found,
            self.choices.found,
        ):
            self.found(text)
        for name, items in present.items():
            if name in self.winding:
                continue
            pending = self.recorder.begin("the end", name, history.Look())
            pending.ended(history.Looked(tuple(items)))
        self._check_histories()

    def _check_histories(self) -> None:
        clocks = [node.clock for node in self._nodes.values()]
        self.undecided = check_history(
            self.recorder.history, clocks, self.found, steps_max=SEARCH_STEPS
        )


class _ErrorLogs(logging.Handler):
    """Reports each error log of the product: nothing that is simulated should cause any."""

    def __init__(
        self, found: Callable[[str], None], set_aside: Callable[[Mapping[str, Any]], None]
    ) -> None:
        """`set_aside` is called with each block that is found damaged."""
        super().__init__(logging.ERROR)
        self._found = found
        self._set_aside = set_aside
        self._logger = logging.getLogger("querator")  # noqa: TID251 - where structlog's lines go
        self._before = (self._logger.level, self._logger.propagate, logging.root.manager.disable)

    def begin(self) -> None:
        logging.disable(logging.NOTSET)
        self._logger.addHandler(self)
        if self._before[0] == logging.NOTSET:
            self._logger.setLevel(logging.ERROR)
        self._logger.propagate = self._logger.level < logging.ERROR

    def end(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]
        logging.disable(self._before[2])

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(EXPECTED_LOGS):
            event = telemetry.event_of(record)
            if "block" in event:
                self._set_aside(event)
            return
        error = record.exc_info[1] if record.exc_info else None
        self._found(f"logged: {record.getMessage()} {error!r}{_where(error)}")


def _items_of(leader: WholeNode, group: GroupId) -> list[tuple[int, str]]:
    """Sequence and reference of all items."""
    present: list[tuple[int, str]] = []
    with leader.view(group) as snapshot:
        after = 0
        while True:
            page = queries.peek(
                snapshot, group, None, after_seq=after, limit=1_000, bytes_max=_PEEK_BYTES
            )
            present += [(item.seq, references_in(item.item)[0]) for item in page.items]
            after = page.after_seq
            if not after:
                return present


def _where(error: BaseException | None) -> str:
    where = ""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" at {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}"
        trace = trace.tb_next
    return where


def simulate_whole(
    seed: int,
    *,
    tell: Callable[[str], None] | None = None,
    turns_class: type[Turns] = Turns,
    profile: WholeProfile | None = None,
) -> Verdict:
    """Runs one seed from its begin to its verdict."""
    return WholeWorld(seed, tell=tell, profile=profile, turns_class=turns_class).run()


__all__ = ["WholeWorld", "simulate_whole"]
