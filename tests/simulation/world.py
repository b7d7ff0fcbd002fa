"""A run: nodes, clients, operators and faults of one seed, and the verdict.

The phases, in virtual time:

    0                     clients' queues are configured
    0 … faulty_us         load and faults
    … + CALM_US           the faults have ended; everything must come to rest and serve
    the end               every replica is equal, every log is read from disk once more, and the
                          histories of the clients are checked
"""

import gc
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from querator.model.commands import Produce
from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.model.readers import OpenReader
from querator.partition import invariants, queries
from querator.raft.machine import Machine
from querator.raft.messages import decode_frame
from querator.raft.requests import Call, Outcome
from querator.raft.status import GroupStatus
from querator.raft.turn.turn import Turns
from tests.checkers import history
from tests.checkers.history import History, QueueRules, Recorder
from tests.simulation.checks import CheckedMachine, Checks
from tests.simulation.clients import Client, queue_name
from tests.simulation.clock import NodeClock
from tests.simulation.disk import Disk
from tests.simulation.doomed import Doomed
from tests.simulation.ends import check_history, unequal
from tests.simulation.faults import Faults
from tests.simulation.network import Network
from tests.simulation.node import Lost, SimulatedNode, Ticket
from tests.simulation.operators import Operator
from tests.simulation.pipelines import Pipelines, judge
from tests.simulation.profile import Profile, draw
from tests.simulation.queues import LEASE_TIMEOUT_MS, configured, items_of, look_at_items
from tests.simulation.readers import Actor, Shore
from tests.simulation.starting import begin_start
from tests.simulation.timeline import MS, SECOND, Timeline
from tests.simulation.verdict import Verdict

CALM_US = 20 * SECOND
"""Within this time after the last fault there is progress again, and all replicas are equal."""
PROPOSAL_US = 10 * SECOND
"""Every proposal is answered within this time, plus the time for which the node may be busy."""
SEARCH_STEPS = 3_000_000
"""Enough for the clients of a seed. A history that is not decided within it does not pass."""
PIPELINE_PARTITIONS = 3
LMDB_FREE_BYTES = 4 << 30
"""A run's data files take a few hundred MiB; several runs may run side by side."""


class World:
    """Watches its nodes, and is what clients, operators and faults see."""

    def __init__(
        self,
        seed: int,
        *,
        tell: Callable[[str], None] | None = None,
        profile: Profile | None = None,
        turns_class: type[Turns] = Turns,
        directory: Path | None = None,
    ) -> None:
        self.seed = seed
        chance = random.Random(f"world {seed}")
        self.profile = draw(seed, chance) if profile is None else profile
        self.timeline = Timeline(tell)
        self.timeline.tell("WORLD", f"seed {seed}: {self.profile}")
        self.checks = Checks(self.timeline)
        self.latency_us = max(50, self.profile.nature.latency_us)
        self.loss = self.profile.loss
        queues = self.profile.groups
        more = PIPELINE_PARTITIONS if self.profile.pipelines else 0
        self.groups = [GroupId(number) for number in range(1, queues + more + 1)]
        self.queues = self.groups[:queues]
        """Groups of the clients. The partitions of the pipelines' queue follow, and the readers'
        group.
        """
        self.pipelines: Pipelines | None = None
        self.shore: Shore | None = None
        if self.profile.readers:
            self.shore = Shore(self, GroupId(len(self.groups) + 1), seed)
            self.groups.append(self.shore.group)
        self.recorder = Recorder(History(), lambda: self.timeline.now_us / SECOND)
        self.network: Network[bytes] = Network(
            self.timeline, random.Random(f"network {seed}"), self.profile.nature
        )
        self.network.digest = len
        self.network.describe = lambda frame: "; ".join(map(str, decode_frame(frame)))
        self._turns_class = turns_class
        self._directory = directory
        self._nodes: dict[NodeKey, SimulatedNode] = {}
        self._chance = chance
        for number in range(1, self.profile.nodes + 1):
            self._add_node(number)
        replicas = list(self._nodes)[: self.profile.replicas]
        self.replicas: Replicas = tuple(Replica(id_, key) for id_, key in enumerate(replicas, 1))
        for replica in self.replicas:
            for group in self.groups:
                self._nodes[replica.node].first_replicas[group] = self.replicas
        self.lost_disks = 0
        self.faults = Faults(self, random.Random(f"faults {seed}"))
        self.clients: list[Client | Actor] = []
        self.operator: Operator | None = None
        self.doomed = Doomed(self, random.Random(f"doomed groups {seed}"))

    def _add_node(self, number: int, incarnation: int = 1) -> SimulatedNode:
        key = node_key(f"n{number}", f"{incarnation}")
        profile = self.profile
        spread_ms = profile.offset_ms
        clock = NodeClock(
            self.timeline,
            offset_ms=self._chance.randint(-spread_ms, spread_ms),
            drift_ppm=self._chance.randint(-profile.drift_ppm, profile.drift_ppm),
        )
        directory = None
        if self._directory is not None:
            directory = self._directory / f"n{number}.{incarnation}"
            directory.mkdir()
        disk = Disk(clock, random.Random(f"disk {self.seed} {key}"), directory)
        disk.sync_us = profile.sync_us
        node = SimulatedNode(
            key,
            timeline=self.timeline,
            network=self.network,
            clock=clock,
            disk=disk,
            seed=f"node {self.seed}",
            watcher=self,
            machines=self._machine,
            log_bytes_kept=profile.log_bytes_kept,
            turns_class=self._turns_class,
        )
        self._nodes[key] = node
        self.network.add(key, node)
        if profile.starts:
            node.begins = begin_start
            self.network.lets_in = self._lets_in
        return node

    def _lets_in(self, a: str, b: str) -> bool:
        one, other = self._nodes[NodeKey(a)], self._nodes[NodeKey(b)]
        return one.lets_in(other) and other.lets_in(one)

    def _machine(self, node: SimulatedNode, group: GroupId) -> Machine:
        return CheckedMachine(group, node.name, self.checks)

    # --- what the others see of it -------------------------------------------------------

    def all_nodes(self) -> list[SimulatedNode]:
        return [node for node in self._nodes.values() if not node.gone]

    def alive(self) -> list[SimulatedNode]:
        return [node for node in self._nodes.values() if node.listening]

    def leader(self, group: GroupId) -> tuple[SimulatedNode, GroupStatus] | None:
        """The current leader of the highest term, if it can be asked."""
        best: tuple[SimulatedNode, GroupStatus] | None = None
        for node in self.alive():
            assert node.turns is not None
            status = node.turns.status(group)
            if status is not None and status.leads and (best is None or status.term > best[1].term):
                best = (node, status)
        return best

    def leader_of_any(self) -> SimulatedNode | None:
        for group in self.groups:
            found = self.leader(group)
            if found is not None:
                return found[0]
        return None

    def committed_replicas(self, group: GroupId) -> Replicas:
        """The newest configuration that is known to be committed."""
        best: tuple[int, Replicas] = (0, self.replicas)
        commit = self.checks.commit_index(group)
        for node in self._nodes.values():
            found = None if node.turns is None else node.turns._groups.get(group)
            if found is None:
                continue
            for index, replicas in found.journal._configurations:
                if best[0] < index <= commit and self.checks.agrees(group, found.journal, index):
                    best = (index, replicas)
        return best[1]

    def drop_replica(self, node: SimulatedNode, group: GroupId) -> None:
        self.timeline.tell("WORLD", f"{node.name} deletes its replica of group {group}")
        node.drop(group)
        self.checks.forget(node.key, group)

    def found(self, text: str) -> None:
        self.checks.found(text)

    def is_gone(self, node: NodeKey) -> bool:
        return self._nodes[node].gone

    def may_lose_a_disk(self) -> bool:
        """Whether every group has all of its replicas, and no other change is under way."""
        for group in self.groups:
            found = self.leader(group)
            if found is None:
                return False
            _, status = found
            if status.replicas != self.committed_replicas(group):
                return False
            if len(status.replicas) != self.profile.replicas:
                return False
            if any(not replica.voter or self.is_gone(replica.node) for replica in status.replicas):
                return False
        return True

    def lose_disk(self, node: SimulatedNode) -> None:
        """The node comes back as another incarnation, which knows nothing."""
        self.timeline.note("lost disk", node.key)
        self.timeline.tell("WORLD", f"the disk of {node.key} is LOST")
        node.crash(silent=True)
        node.gone = True
        self.lost_disks += 1
        number, incarnation = node.name.removeprefix("n"), self.lost_disks + 1
        self._add_node(int(number), incarnation).start()

    # --- what the nodes see of it ----------------------------------------------------------

    def after_turn(self, node: SimulatedNode, outcome: Outcome) -> None:
        self.checks.after_turn(node, outcome)

    def failed(self, node: SimulatedNode, error: BaseException) -> None:
        self.checks.failed(node, error)

    def stopped(self, node: SimulatedNode) -> None:
        self.faults.stopped(node)

    # --- the run ---------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Stops soon after a violation is found."""
        # This makes a seed a tenth faster, and it is over before there is much to collect.
        gc.disable()
        try:
            for phase in (self._begin, self._under_load, self._come_to_rest, self._look_at_the_end):
                phase()
                if self.checks.violations:
                    break
        finally:
            for node in self._nodes.values():
                node.disk.close()
            gc.enable()
        return Verdict(
            self.seed,
            self.checks.violations,
            self.timeline.trace(),
            self.timeline.now_us / SECOND,
            self._figures(),
        )

    def _figures(self) -> dict[str, int]:
        return {
            "operations": sum(client.operations for client in self.clients),
            "items": sum(client.acknowledged for client in self.clients),
            "batches": 0 if self.pipelines is None else self.pipelines.batches,
            "commits": self.checks.commits,
            "frames": self.network.delivered,
            "boots": sum(node.boots for node in self._nodes.values()),
            "syncs": sum(node.disk.syncs for node in self._nodes.values()),
            "faults": sum(self.faults.happened.values()),
            "power losses of all": self.faults.happened.get("power loss", 0),
            "lost disks": self.lost_disks,
            "snapshots": self.checks.snapshots,
            "elections": self.checks.elections,
            "transfers": 0 if self.operator is None else self.operator.transfers,
            "doomed": len(self.doomed.groups),
            "changes": 0 if self.operator is None else self.operator.changes,
        }

    def _run_for(self, duration_us: int) -> None:
        end_us = self.timeline.now_us + duration_us
        while self.timeline.now_us < end_us and not self.checks.violations:
            self.timeline.run(min(end_us, self.timeline.now_us + 100 * MS))
            self._look_for_overdue()

    def _until(self, what: Callable[[], object], *, within_us: int) -> bool:
        end_us = self.timeline.now_us + within_us
        while not what() and not self.checks.violations:
            if self.timeline.now_us >= end_us:
                return False
            self._run_for(20 * MS)
        return not self.checks.violations

    def _look_for_overdue(self) -> None:
        for node in self._nodes.values():
            if node.listening:
                for ticket in node.overdue(PROPOSAL_US + SECOND):
                    self.found(f"{node.name}: a {ticket.what} is not answered in time")
                    return

    def _begin(self) -> None:
        for node in self._nodes.values():
            node.start()
        for group in self.groups:
            if not self._until(partial(self.leader, group), within_us=30 * SECOND):
                self.found(f"group {group} has no leader at the begin")
                return
            rules = QueueRules(lease_timeout_s=LEASE_TIMEOUT_MS / 1000)
            self.recorder.history.queues[queue_name(group)] = rules
            partition = 0 if group in self.queues else group - len(self.queues) - 1
            if not self._propose(group, partial(configured, group, partition)):
                self.found(f"group {group} cannot be configured")

    def _propose(
        self,
        group: GroupId,
        make: Callable[[], tuple[Any, bytes]],
        done: Callable[[Any], None] = lambda _: None,
    ) -> bool:
        """Proposes to the leader until it succeeds."""
        ended: list[Any] = []
        waiting: list[int] = []

        def answered(result: Any, error: BaseException | None) -> None:
            waiting.clear()
            if error is None:
                ended.append(result)
                done(result)

        def attempt() -> bool:
            found = self.leader(group)
            if found is not None and not waiting and not ended:
                waiting.append(1)
                command, attachment = make()
                ticket = Ticket("probe", answered)
                proposal = Proposal(command, attachment)
                found[0].request(Call(group, proposal, ticket.future, len(attachment) + 256))
            return bool(ended)

        return self._until(attempt, within_us=CALM_US)

    def _under_load(self) -> None:
        profile = self.profile
        if profile.pipelines:
            first = len(self.queues)
            groups = self.groups[first : first + PIPELINE_PARTITIONS]
            self.pipelines = Pipelines(self, groups, profile.pipelines, self.seed)
        for group in self.queues:
            for number in range(profile.clients):
                name = f"c{group}.{number}"
                client = Client(
                    self,
                    name,
                    group,
                    random.Random(f"client {self.seed} {name}"),
                    pause_us=profile.pause_us,
                    item_bytes=profile.item_bytes,
                    delays=profile.delays,
                )
                self.clients.append(client)
        if self.shore is not None:
            self.clients += self.shore.actors(pause_us=profile.pause_us)
        if profile.transfers or profile.members:
            self.operator = Operator(self, random.Random(f"operator {self.seed}"))
        if profile.doomed:
            self.doomed.begin()
        self.faults.begin()
        self._run_for(profile.faulty_us)

    # --- after the faults ----------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.faults.heal()
        if self.operator is not None:
            self.operator.repairs = True
            if not self._until(self._repaired, within_us=2 * CALM_US):
                self.found("the replicas of a lost disk have not been replaced")
                return
            self.operator.stopped = True
        healed_us = self.timeline.now_us
        self.doomed.stop()
        for group in self.groups:
            if not self._probe(group):
                self.found(f"group {group} takes nothing on after the faults have ended")
                return
        self._run_for(2 * SECOND)
        for client in self.clients:
            client.stopped = True
        if self.pipelines is not None:
            self.pipelines.stop()
            rest = partial(self.pipelines.carried_out, self.leader)
            if not self._until(rest, within_us=2 * CALM_US):
                self.found("transactions are open that nobody carries out")
                return
        left_us = healed_us + CALM_US - self.timeline.now_us
        if not self._until(lambda: not self._unequal(), within_us=max(left_us, 5 * SECOND)):
            self.found(f"the replicas have not become equal: {self._unequal()}")
        if not self._until(
            lambda: not any(client.busy for client in self.clients), within_us=CALM_US
        ):
            self.found("clients still wait for answers")
        self._until(lambda: not self._unequal(), within_us=5 * SECOND)
        if not self._until(self.doomed.are_gone, within_us=CALM_US):
            self.found("groups that were deleted are not gone")

    def _repaired(self) -> bool:
        if not self.lost_disks:
            return True
        for group in self.groups:
            if any(self.is_gone(replica.node) for replica in self.committed_replicas(group)):
                return False
        return True

    def _probe(self, group: GroupId) -> bool:
        """Whether an item can be produced. A try whose answer was lost may have been executed, so
        each try has its own item.
        """
        if self.shore is not None and group == self.shore.group:
            return self._propose(group, lambda: (OpenReader("probe"), b""))
        recorded: list[Any] = []

        def make() -> tuple[Any, bytes]:
            reference = f"probe {group}.{len(recorded)}"
            payload = reference.encode() + b"\n"
            recorded.append(
                self.recorder.begin("probe", queue_name(group), history.Produce((reference,)))
            )
            return Produce(len(payload).to_bytes(4, "little")), payload

        def done(result: Any) -> None:
            part = history.ProducedPart(0, result.first_seq, result.count)
            recorded[-1].ended(history.Produced((part,)))

        return self._propose(group, make, done)

    def _unequal(self) -> str:
        return unequal(self.groups, self.leader, self._nodes)

    def _look_at_the_end(self) -> None:
        self.checks.same_logs(list(self._nodes.values()))
        visible: Counter[tuple[int, str]] = Counter()
        for group in self.groups:
            found = self.leader(group)
            assert found is not None
            leader, status = found
            for replica in status.replicas:
                node = self._nodes[replica.node]
                with node.view(group) as snapshot:
                    machine = CheckedMachine(group, node.name, self.checks)
                    digest = machine.digest(snapshot)
                    applied = queries.applied_index(snapshot, group)
                    self.checks.digest(node.name, group, applied, digest)
                    for text in invariants.check(snapshot, group):
                        self.found(f"{node.name}: group {group}: {text}")
            if self.shore is not None and group == self.shore.group:
                self.shore.check(leader)
            elif group in self.queues:
                look_at_items(self.recorder, leader, group)
            else:
                visible.update((group, item) for _, item in items_of(leader, group))
        self.doomed.look_for_rows()
        if self.pipelines is not None:
            for text in judge(self.pipelines.pipelines, visible):
                self.found(text)
        self._check_histories()

    def _check_histories(self) -> None:
        clocks = [node.clock for node in self._nodes.values()]
        check_history(self.recorder.history, clocks, self.found, steps_max=SEARCH_STEPS)


def _directory() -> str | None:
    """Directory of LMDB's files: in memory, where there is space. The seed decides what a power
    loss leaves, and a real sync would only take time. None: with other temporary files.
    """
    memory = "/dev/shm"
    try:
        roomy = shutil.disk_usage(memory).free > LMDB_FREE_BYTES
    except OSError:
        return None
    return memory if roomy else None


def simulate(
    seed: int,
    *,
    tell: Callable[[str], None] | None = None,
    turns_class: type[Turns] = Turns,
    profile: Profile | None = None,
) -> Verdict:
    """Runs one seed from its begin to its verdict. Any exception is a violation too."""
    chance = random.Random(f"world {seed}")
    lmdb = (draw(seed, chance) if profile is None else profile).lmdb
    with tempfile.TemporaryDirectory(dir=_directory() if lmdb else None) as name:
        world = World(
            seed,
            tell=tell,
            profile=profile,
            turns_class=turns_class,
            directory=Path(name) if lmdb else None,
        )
        return world.run()


__all__ = ["Lost", "Verdict", "World", "simulate"]
