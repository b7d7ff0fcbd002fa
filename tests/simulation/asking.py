"""Base class of actors that ask leaders until they have answered: pipelines and carriers."""

import random
from collections.abc import Callable
from typing import Any

from querator.model.entries import Proposal
from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.raft.requests import Call, Read
from tests.simulation.clients import ANSWER_US, RETRIED, Cluster
from tests.simulation.node import Lost, SimulatedNode, Ticket
from tests.simulation.timeline import MS

Then = Callable[[Any, SimulatedNode], None]


class Asking:
    """Asks leaders, and repeats each call until it is answered."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.life = 0
        """Number of the actor's life. Answers to calls of an earlier life are dropped."""
        self._leaders: dict[GroupId, str] = {}

    def tell(self, group: GroupId, command: Any, then: Then, attachment: bytes = b"") -> None:
        size = len(attachment) + 256
        what = type(command).__name__.lower()
        self._ask(
            group,
            what,
            lambda ticket: Call(group, Proposal(command, attachment), ticket.future, size),
            then,
        )

    def read(self, group: GroupId, then: Then) -> None:
        """Calls `then` with a node whose state is as new as anything that was answered before."""
        self._ask(group, "read", lambda ticket: Read(group, ticket.future), then)

    def _choose(self, group: GroupId) -> SimulatedNode | None:
        nodes = [node for node in self.cluster.all_nodes() if not node.gone]
        for node in nodes:
            if node.name == self._leaders.get(group):
                return node
        return self.chance.choice(nodes) if nodes else None

    def _ask(self, group: GroupId, what: str, make: Callable[[Ticket], Any], then: Then) -> None:
        timeline, life = self.cluster.timeline, self.life
        over: list[int] = []

        def again() -> None:
            if not over:
                over.append(1)
                timeline.after(
                    self.chance.randrange(10 * MS, 150 * MS),
                    lambda: self._ask(group, what, make, then) if life == self.life else None,
                )

        def silent() -> None:
            self._leaders.pop(group, None)
            again()

        def answered(node: SimulatedNode, result: Any, error: BaseException | None) -> None:
            if over or life != self.life:
                return
            if error is None:
                over.append(1)
                self._leaders[group] = node.name
                then(result, node)
            elif isinstance(error, Lost):
                silent()
            elif isinstance(error, QueratorError) and error.code in RETRIED:
                self._leaders[group] = error.value
                again()
            else:
                self.cluster.found(f"pipeline: {what} ended with {error!r}")

        node = self._choose(group)
        if node is None:
            again()
            return

        def back(result: Any, error: BaseException | None) -> None:
            if self.chance.random() >= self.cluster.loss:
                timeline.after(self.cluster.latency_us, lambda: answered(node, result, error))

        request = make(Ticket(what, back))
        timeline.after(
            self.cluster.latency_us, lambda: node.request(request) if node.up else silent()
        )
        timeline.after(self.chance.choice(ANSWER_US), silent)
