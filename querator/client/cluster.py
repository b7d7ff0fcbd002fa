"""Calls of operators to a cluster: its state, merged from the answers of all nodes, and the changes
of nodes.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from querator.client.errors import (
    AddressFault,
    ConnectionFailed,
    ConnectionFault,
    DeadlineExceeded,
    ErrorCode,
    RequestError,
)
from querator.client.transport.attempts import repeated
from querator.client.transport.channel import Connection
from querator.client.transport.rpc_errors import connection_failed
from querator.client.values import split_addresses
from querator.model.cluster import (
    ClusterCertificate,
    ClusterCondition,
    ClusterGroup,
    ClusterNode,
    ClusterPending,
    ClusterPlan,
    ClusterScrub,
    ClusterStatus,
    ClusterWaiting,
    NodeHandedOff,
    NodeReplaced,
    NodeRetired,
)
from querator.v1 import cluster_service_pb2 as pb
from querator.wire import cluster as wire
from querator.wire.tls import Tls

M = TypeVar("M")
R = TypeVar("R")

NODE_SECONDS = 2.0
"""How long one node may take when all nodes are asked for their state."""


class SeenNode(msgspec.Struct, frozen=True):
    """A node. `silent`: why it does not answer; empty: it answers. `cause`: the same as a kind, as
    far as it is found. `fault`: why this client cannot connect to it, if that does not pass by
    itself. `clock_ahead_ms` (ms), `scrub` and `certificates` are from its
    own `ClusterStatus`. `old_copy`: why another node has refused a process with its name.
    """

    node: ClusterNode
    silent: str
    clock_ahead_ms: int = 0
    old_copy: str = ""
    scrub: ClusterScrub = ClusterScrub()
    fault: str = ""
    cause: ConnectionFault = ConnectionFault.UNKNOWN
    certificates: tuple[ClusterCertificate, ...] = ()


class SeenDamage(msgspec.Struct, frozen=True):
    """The part of a partition that a node cannot read: numbers of blocks and items."""

    node: str
    namespace: str
    queue: str
    partition: int
    blocks: int
    items: int


class SeenCondition(msgspec.Struct, frozen=True):
    """A condition that a node reports."""

    node: str
    condition: ClusterCondition


class ClusterPicture(msgspec.Struct, frozen=True):
    """The state of the cluster, merged from all nodes that answer.

    Each of `groups` is as its leader reports it. If no leader answers, it is the report with the
    highest term, and `leads` is False.
    """

    cluster_id: str
    epoch: int
    nodes: tuple[SeenNode, ...]
    groups: tuple[ClusterGroup, ...]
    pending: tuple[ClusterPending, ...]
    damage: tuple[SeenDamage, ...] = ()
    conditions: tuple[SeenCondition, ...] = ()
    waiting: tuple[ClusterWaiting, ...] = ()
    """Nodes that wait for the cluster, by name."""


class _Silent(msgspec.Struct, frozen=True):
    """Why a node has not answered; `fault` and `cause` as in `SeenNode`."""

    why: str
    fault: str = ""
    cause: ConnectionFault = ConnectionFault.UNKNOWN


_ANSWERS = _Silent("")


class ClusterAdmin:
    """Administrative calls to the nodes of one cluster. `address` is that of any node, or of
    several, separated by commas: the first node that can be reached is asked. A request that
    changes nothing goes to the node that answered last, and if that stops or does not answer, to
    another one that was given or that it had named. Every method may raise `RequestError`.
    """

    def __init__(
        self,
        address: str,
        *,
        request_timeout: float,
        connect_timeout: float,
        tls: Tls | None = None,
    ) -> None:
        """`request_timeout` and `connect_timeout` are in seconds. Raises ValueError for an empty
        address.
        """
        self._addresses = split_addresses(address)
        self._request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._open: dict[str, Connection] = {}
        self._last = ""
        """The node that answered last; empty: none has answered."""
        self._named: tuple[str, ...] = ()
        """Addresses of the nodes that the last picture named."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._open.values():
            await connection.close()

    def _connection(self, address: str) -> Connection:
        """Returns the connection to a node. It belongs to the running event loop, so it is made at
        the first use.
        """
        if address not in self._open:
            self._open[address] = Connection(
                address,
                request_timeout=self._request_timeout,
                connect_timeout=self._connect_timeout,
                tls=self._tls,
            )
        return self._open[address]

    async def picture(self) -> ClusterPicture:
        """Asks one node, then all other nodes that it knows. Raises `RequestError` when the first
        node does not answer. For the other nodes `SeenNode.silent` reports it.
        """
        first = await self._read(
            lambda to, left: to.cluster.GetClusterStatus(
                pb.GetClusterStatusRequest(), timeout=left
            ),
            wire.cluster_status,
        )
        self._named = tuple(node.client_address for node in first.nodes if node.client_address)
        others = [node for node in first.nodes if node.name != first.node]
        answers = await asyncio.gather(*(self._ask(node) for node in others))
        silent = {
            node.name: answer
            for node, answer in zip(others, answers, strict=True)
            if isinstance(answer, _Silent)
        }
        views = [first, *(answer for answer in answers if not isinstance(answer, _Silent))]
        newest = max(views, key=lambda view: view.epoch)
        refused = {node.name: node for view in views for node in view.nodes if node.old_copy}
        ahead = {view.node: view.clock_ahead_ms for view in views}
        scrubs = {view.node: view.scrub for view in views}
        certificates = {view.node: view.certificates for view in views}
        return ClusterPicture(
            cluster_id=newest.cluster_id,
            epoch=newest.epoch,
            nodes=tuple(
                SeenNode(
                    _as_it_says(node, views),
                    silent=why.why,
                    clock_ahead_ms=ahead.get(node.name, 0),
                    old_copy=refused[node.name].old_copy if node.name in refused else "",
                    scrub=scrubs.get(node.name, ClusterScrub()),
                    fault=why.fault,
                    cause=why.cause,
                    certificates=certificates.get(node.name, ()),
                )
                for node in newest.nodes
                for why in (silent.get(node.name, _ANSWERS),)
            ),
            groups=_merged(newest, views),
            pending=_pending(newest, views),
            damage=tuple(
                SeenDamage(
                    node=view.node,
                    namespace=group.namespace,
                    queue=group.queue,
                    partition=group.partition,
                    blocks=group.damaged_blocks,
                    items=group.damaged_items,
                )
                for view in views
                for group in view.groups
                if group.damaged_blocks
            ),
            conditions=tuple(
                SeenCondition(view.node, one) for view in views for one in view.conditions
            ),
            waiting=_waiting(newest, views),
        )

    async def _ask(self, node: ClusterNode) -> "ClusterStatus | _Silent":
        """Returns the status that the node reports, or why there is none. A node to which the first
        node has no connection is probably down, and is asked only once.
        """
        if not node.client_address:
            return _Silent("its address is not known")
        try:
            return await self._status(node.client_address, once=not node.connected)
        except RequestError as error:
            if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED):
                return _Silent(error.message)
            fault = await self._connection(node.client_address).examined(error)
            if fault is None:
                return _Silent(error.message)
            return _Silent(fault.text, fault.text if fault.kind.certain else "", fault.kind)

    async def _status(self, address: str, *, once: bool) -> ClusterStatus:
        connection = self._connection(address)
        stub = connection.cluster.GetClusterStatus

        def send(left: float) -> Awaitable[pb.GetClusterStatusResponse]:
            return stub(pb.GetClusterStatusRequest(), timeout=left)

        if not once:
            response = await connection.call(send, seconds=NODE_SECONDS, changes=False)
            return wire.cluster_status(response)
        answer = await connection.attempt(send, NODE_SECONDS, False)
        if isinstance(answer, RequestError):
            raise answer
        return wire.cluster_status(answer)

    async def _read(
        self, send: Callable[[Connection, float], Awaitable[M]], read: Callable[[M], R]
    ) -> R:
        """Sends a request that changes nothing to one node after the other, until one answers. Each
        may take NODE_SECONDS, if there are several.
        """
        known = tuple(
            dict.fromkeys(one for one in (self._last, *self._addresses, *self._named) if one)
        )
        if len(known) == 1:
            answer = await self._call(send, read, changes=False)
            self._last = known[0]
            return answer
        turn = itertools.cycle(known)
        asked = 0

        async def attempt(left: float) -> R | RequestError:
            nonlocal asked
            asked += 1
            connection = self._connection(next(turn))
            patience = min(left, NODE_SECONDS)
            answer = await connection.attempt(partial(send, connection), patience, False)
            if isinstance(answer, RequestError):
                return answer
            self._last = connection.address
            return read(answer)

        try:
            return await repeated(
                attempt,
                seconds=self._request_timeout,
                hopeless=self._hopeless,
                elsewhere=lambda error: _against_the_node(error) and asked % len(known) != 0,
            )
        except ConnectionFailed as error:
            raise await self._explained(error) from None

    def _hopeless(self, error: RequestError, waited: float) -> bool:
        """Whether to give up, `waited` seconds after the first try: no node has ever answered, and
        there was enough time, or more time does not help.
        """
        if self._last or not isinstance(error, ConnectionFailed):
            return False
        return waited >= self._connect_timeout or all(
            self._connection(address).wrong for address in self._addresses
        )

    async def _explained(self, error: ConnectionFailed) -> ConnectionFailed:
        """The error with the causes of all given addresses."""
        faults = await asyncio.gather(
            *(
                self._connection(address).explained(error, patient=not self._last)
                for address in self._addresses
            )
        )
        return connection_failed(faults)

    async def _first(self, ask: Callable[[str], Awaitable[R]]) -> R:
        """Returns the answer of the first node that can be reached."""
        faults: list[AddressFault] = []
        for address in self._addresses:
            try:
                return await ask(address)
            except ConnectionFailed as error:
                faults += error.faults
        raise connection_failed(faults)

    async def _call(
        self,
        send: Callable[[Connection, float], Awaitable[M]],
        read: Callable[[M], R],
        *,
        changes: bool = True,
    ) -> R:
        """Sends a request to the first node that can be reached; returns its answer, read by
        `read`.
        """

        async def ask(address: str) -> R:
            connection = self._connection(address)
            return read(await connection.call(partial(send, connection), changes=changes))

        return await self._first(ask)

    async def plan(self) -> ClusterPlan:
        """Returns which replicas are being moved to other nodes, which will be moved, and why."""
        request = pb.GetClusterPlanRequest()
        return await self._read(
            lambda to, left: to.cluster.GetClusterPlan(request, timeout=left), wire.cluster_plan
        )

    async def hand_off(self, node: str) -> NodeHandedOff:
        """Makes the node at the address hand off its leaderships. The node must have the name
        `node`, unless that is empty. Raises ValueError when there are several addresses.
        """
        if len(self._addresses) > 1:
            raise ValueError("give the address of the node that is to hand off, and no other")
        connection = self._connection(self._addresses[0])
        stub = connection.cluster.HandOffNode
        request = pb.HandOffNodeRequest(node=node)
        return wire.node_handed_off(await connection.call(lambda left: stub(request, timeout=left)))

    async def replace(self, node: str) -> NodeReplaced:
        """Lets the waiting node with this name take the place of the node that lost its data."""
        request = pb.ReplaceNodeRequest(node=node)
        return await self._call(
            lambda to, left: to.cluster.ReplaceNode(request, timeout=left), wire.node_replaced
        )

    async def drain(self, node: str, *, undo: bool = False) -> NodeRetired:
        """Moves the replicas of the node to other nodes. `undo`: lets it have replicas again."""
        request = pb.DrainNodeRequest(node=node, undo=undo)
        return await self._call(
            lambda to, left: to.cluster.DrainNode(request, timeout=left), wire.node_retired
        )

    async def remove(self, node: str) -> NodeRetired:
        """Removes the node permanently."""
        request = pb.RemoveNodeRequest(node=node)
        return await self._call(
            lambda to, left: to.cluster.RemoveNode(request, timeout=left), wire.node_retired
        )

    async def readmit(self, node: str) -> None:
        """Lets the name of a removed node be used again."""
        request = pb.ReadmitNodeRequest(node=node)
        await self._call(
            lambda to, left: to.cluster.ReadmitNode(request, timeout=left), lambda _: None
        )


def _against_the_node(error: RequestError) -> bool:
    """Whether another node may answer: this one was not reached, did not answer, or stops."""
    unanswered = isinstance(error, ConnectionFailed | DeadlineExceeded)
    return unanswered or error.code is ErrorCode.UNAVAILABLE


def _as_it_says(node: ClusterNode, views: Iterable[ClusterStatus]) -> ClusterNode:
    """The node; whether it has handed off as it says itself, if it answers: the map does not know
    it without a majority.
    """
    own = (
        one.handed_off
        for view in views
        if view.node == node.name
        for one in view.nodes
        if one.name == node.name
    )
    return msgspec.structs.replace(node, handed_off=next(own, node.handed_off))


def _waiting(newest: ClusterStatus, views: Iterable[ClusterStatus]) -> tuple[ClusterWaiting, ...]:
    """The nodes that wait, by any report, and are not members by the newest map."""
    members = {(node.name, node.incarnation) for node in newest.nodes}
    found = {one.name: one for view in views for one in view.waiting}
    return tuple(
        one for _, one in sorted(found.items()) if (one.name, one.incarnation) not in members
    )


def _pending(newest: ClusterStatus, views: Iterable[ClusterStatus]) -> tuple[ClusterPending, ...]:
    """The pending changes of the newest map. Only the leader of the map may know what a change
    waits for, so that is taken from any report.
    """
    waits_for = {
        (one.namespace, one.queue, one.doing): one.waits_for
        for view in views
        for one in view.pending
        if one.waits_for
    }
    return tuple(
        msgspec.structs.replace(
            one, waits_for=waits_for.get((one.namespace, one.queue, one.doing), one.waits_for)
        )
        for one in newest.pending
    )


def _knowledge(group: ClusterGroup) -> tuple[bool, int, bool]:
    return group.leads, group.term, bool(group.leader)


def _merged(newest: ClusterStatus, views: Iterable[ClusterStatus]) -> tuple[ClusterGroup, ...]:
    """The groups of the newest map, each as its leader or else the highest term reports it, if
    possible by a node that knows the elected one.
    """
    best: dict[int, ClusterGroup] = {}
    for view in views:
        for group in view.groups:
            other = best.get(group.group)
            if other is None or _knowledge(group) > _knowledge(other):
                best[group.group] = group
    return tuple(
        msgspec.structs.replace(
            best[group.group], target=group.target, preferred_leader=group.preferred_leader
        )
        for group in newest.groups
    )
