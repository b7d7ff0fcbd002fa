"""Groups that are deleted while they are led and under load, and checks of what remains of them.

A doomed group is created on as many nodes as other groups, gets commands one after the other, and
is then deleted on each of its nodes at a different moment. After that nothing of it may live: no
group, no heartbeat, no row.
"""

import random
from functools import partial
from typing import Any, Protocol

from querator.model.commands import Produce
from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.nodes import Replica
from querator.raft.requests import Call
from querator.raft.status import GroupStatus
from querator.storage.keys import ALL
from tests.simulation.node import SimulatedNode, Ticket
from tests.simulation.profile import Profile
from tests.simulation.queues import configured
from tests.simulation.timeline import MS, SECOND, Timeline

FIRST_DOOMED = GroupId(1_000)


class Ground(Protocol):
    """What the groups are made on."""

    timeline: Timeline
    profile: Profile

    def all_nodes(self) -> list[SimulatedNode]: ...

    def leader(self, group: GroupId) -> tuple[SimulatedNode, GroupStatus] | None: ...

    def found(self, text: str) -> None: ...


class Doomed:
    """`groups` has those that have been made so far."""

    def __init__(self, ground: Ground, chance: random.Random) -> None:
        self.groups: list[GroupId] = []
        self._ground = ground
        self._timeline = ground.timeline
        self._chance = chance
        self._under_load: set[GroupId] = set()
        self._stopped = False

    def begin(self) -> None:
        self._plan()

    def _plan(self) -> None:
        pause_us = int(self._chance.expovariate(1 / (1_500 * MS))) + 1
        self._timeline.after(pause_us, self._make)

    def _make(self) -> None:
        if self._stopped:
            return
        profile = self._ground.profile
        nodes = [node for node in self._ground.all_nodes() if not node.gone]
        chosen = sorted(
            self._chance.sample(nodes, min(profile.replicas, len(nodes))), key=lambda one: one.key
        )
        group = GroupId(FIRST_DOOMED + len(self.groups))
        self.groups.append(group)
        self._under_load.add(group)
        replicas = tuple(Replica(id_, node.key) for id_, node in enumerate(chosen, 1))
        self._timeline.note("make", group)
        self._timeline.tell("WORLD", f"group {group} is made")
        for node in chosen:
            node.hold(group, replicas)
        self._load(group, 0)
        self._timeline.after(self._chance.randrange(3 * SECOND), partial(self._delete, group))
        self._plan()

    def _load(self, group: GroupId, number: int) -> None:
        """Proposes to the leader, and does not wait for answers."""
        if group not in self._under_load:
            return
        found = self._ground.leader(group)
        if found is not None:
            command, payload = configured(group, 0) if number == 0 else _item(number)
            ticket = Ticket("doomed", _ignore)
            found[0].request(Call(group, Proposal(command, payload), ticket.future, 256))
            number += 1
        pause_us = self._chance.choice((1, 2, 20)) * MS
        self._timeline.after(pause_us, partial(self._load, group, number))

    def _delete(self, group: GroupId) -> None:
        self._timeline.note("delete", group)
        self._timeline.tell("WORLD", f"group {group} is deleted")
        for node in self._holders(group):
            self._timeline.after(
                self._chance.choice((1, MS, 30 * MS)), partial(self._drop, node, group)
            )
        # The load continues for a moment, as from a client that has not heard of the deletion.
        self._timeline.after(40 * MS, partial(self._under_load.discard, group))

    def _drop(self, node: SimulatedNode, group: GroupId) -> None:
        if group in node.first_replicas:
            node.drop(group)

    def _holders(self, group: GroupId) -> list[SimulatedNode]:
        return [node for node in self._ground.all_nodes() if group in node.first_replicas]

    # --- the end -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Makes no more groups, and deletes the remaining ones."""
        self._stopped = True
        self._under_load.clear()
        for group in self.groups:
            for node in self._holders(group):
                node.drop(group)

    def are_gone(self) -> bool:
        """Whether every node has deleted its replicas."""
        return not any(
            group in node.leaving
            for node in self._ground.all_nodes()
            if not node.gone
            for group in self.groups
        )

    def look_for_rows(self) -> None:
        for node in self._ground.all_nodes():
            if node.gone:
                continue
            with node.disk.snapshots() as snapshot:
                for group in self.groups:
                    left = [
                        table.name
                        for table in ALL.values()
                        if table.in_generations
                        and next(iter(table.rows(snapshot, group)), None) is not None
                    ]
                    if left:
                        self._ground.found(
                            f"{node.name}: group {group} was deleted, and has {left}"
                        )


def _item(number: int) -> tuple[Any, bytes]:
    payload = b"item %d\n" % number
    return Produce(len(payload).to_bytes(4, "little")), payload


def _ignore(result: Any, error: BaseException | None) -> None:
    """The outcome of a command to a group that is being deleted does not matter."""
