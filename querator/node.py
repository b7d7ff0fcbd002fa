"""A node: all packages assembled, in its own process (`querator serve`) or in the caller's process.

    async with querator.Node("./data", new=True) as node:
        async with node.client() as client:
            await client.create_queue("mail")
            await client.produce("mail", b"hello")

**Start.** The parts start in this order: admin port, directory and identity, environment, raft
thread, the map with all its groups recovered, services, server. A client that can reach the server
can use every queue.

**Stop.** The parts stop in reverse order. The server accepts no more calls, waiting lease calls are
sent to other nodes, and accepted calls are committed and answered. Then the raft thread ends, the
directory is released, and the admin port, which has reported all these steps, closes.

A node of a cluster also finds or forms its cluster before the raft thread starts
(`placement.joining.formation`), without a time limit. Before the server stops accepting calls, the
node gives its leaderships away.

**Failure.** When the storage fails, or a defect stops the raft thread or the work behind the map,
memory and disk may differ. Then every call ends, `run_until_stopped` and the end of the block raise
`NodeFailedError`, and only a new node on the same directory may continue. An error inside one
partition stops only that partition.

**In the caller's process** a node has two threads: the event loop and the raft thread. Python code
that keeps the interpreter busy delays the raft thread by up to a switch interval at each return
from the disk. `querator serve` sets `SWITCH_INTERVAL_S`; a node does not change the interval of the
process unless `switch_interval_s` is given.
"""

import asyncio
import contextlib
import sys
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import uuid_utils

from querator import telemetry
from querator.config import ClusterSettings, TlsSettings, check_listening, with_port
from querator.model.limits import LOG_BYTES_KEPT, SCRUB_BYTES_PER_S
from querator.model.placement_map import PlacedNode
from querator.node_core import NodeCore
from querator.placement.bootstrap import ClusterBootstrap
from querator.placement.joining.membership import Membership, stored_map
from querator.placement.placement import Placement
from querator.raft.clock import Clock, RealClock
from querator.raft.tcp.tcp_peers import TcpPeers
from querator.server.admin.admin_view import Observed, certificates, why_failed
from querator.server.certificates import CertificateFiles, Dialing, server_credentials
from querator.server.grpc_server import GrpcServer
from querator.server.link.forwarding import Forwarding
from querator.server.link.grpc_wire import grpc_connect
from querator.service.queue_service import QueueService
from querator.service.storage_watch import StorageWatch
from querator.storage import opening
from querator.storage.directory import check_unlocked
from querator.storage.environment import Environment
from querator.storage.identity import DirectoryRefused, Empty, Identity, check_alone

if TYPE_CHECKING:
    from querator.client import Client
    from querator.server.admin.admin_server import AdminServer

SWITCH_INTERVAL_S: Final = 0.000_5
"""Switch interval of `querator serve`. With the interpreter's 5 ms, a turn of 0.4 ms takes 11 ms
beside a busy event loop. Shorter intervals cost both threads more than they save."""

HAND_OVER_S_MAX: Final = 5.0
"""Limit of the time that a stopping node waits for other nodes to take its leaderships."""
VERSION: Final = version("querator")

_log = telemetry.logger(__name__)


class NodeFailedError(Exception):
    """A failure (the cause) has stopped the node. Start a new one on the same directory."""


class StoppedEarlyError(Exception):
    """The node was asked to stop before it had found its cluster."""


class Node:
    """One node. `async with` starts and stops it. An instance is used once."""

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        memory: bool = False,
        environment: Environment | None = None,
        new: bool = False,
        name: str = "",
        cluster: ClusterSettings | None = None,
        listen: str = "127.0.0.1:0",
        listen_admin: str = "",
        tls: TlsSettings | None = None,
        storage_quota_bytes: int = 0,
        log_bytes_kept: int = LOG_BYTES_KEPT,
        scrub_bytes_per_s: int = SCRUB_BYTES_PER_S,
        trust_clock: bool = False,
        shutdown_timeout_ms: int = 5_000,
        switch_interval_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Give one of `data_dir`, `memory` and `environment` (a back end of the caller, which the
        node closes). The other settings are those of `querator.config.Config`. By default, `listen`
        takes a free port, and there is no admin port. `cluster` None: a single node. `clock` None:
        the machine's; `querator.testing` has one for tests.
        """
        if [data_dir is not None, memory, environment is not None].count(True) != 1:
            raise ValueError("give one of data_dir, memory=True and environment")
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._environment = environment
        founds = cluster is not None and bool(cluster.founds_with)
        self._empty = Empty.of(new=new or (memory and cluster is None), founds=founds)
        self._name = name if cluster is None else cluster.name
        self._cluster = cluster
        self._membership: Membership | None = None
        if cluster is not None:
            self._membership = Membership(
                cluster, waits_for=self._wait_for, on_failure=self.on_failure
            )
        self._listen = listen
        self._listen_admin = listen_admin
        self._tls = tls
        self._quota_bytes = storage_quota_bytes
        self._log_bytes_kept = log_bytes_kept
        self._scrub_bytes_per_s = scrub_bytes_per_s
        self._trust_clock = trust_clock
        self._shutdown_timeout_ms = shutdown_timeout_ms
        self._switch_interval_s = switch_interval_s
        self._clock: Clock = RealClock() if clock is None else clock
        self._running = contextlib.AsyncExitStack()
        self._address: str | None = None
        self._admin_address = ""
        self._observed = Observed()
        self._identity: Identity | None = None
        self._core: NodeCore | None = None
        self._server: GrpcServer | None = None
        self._end_wanted = asyncio.Event()
        self._failure: BaseException | None = None

    # --- properties ----------------------------------------------------------------

    @property
    def address(self) -> str:
        """HOST:PORT for clients, with the real port."""
        assert self._address is not None, "the node has not started"
        return self._address

    @property
    def admin_address(self) -> str:
        """HOST:PORT of the admin port, with the real port; empty without an admin port."""
        return self._admin_address

    @property
    def durable(self) -> bool:
        """Whether acknowledged changes survive the process and the machine."""
        assert self._environment is not None, "the node has not started"
        return self._environment.durable

    @property
    def identity(self) -> Identity:
        assert self._identity is not None, "the node has not started"
        return self._identity

    def client(self, **options: Any) -> "Client":
        """A client of this node, for `async with`. Options are those of `querator.Client`."""
        from querator.client import Client

        return Client(self.address, **options)

    # --- life ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
        if self._failure is not None and error is None:
            raise self._failed()

    async def start(self) -> None:
        """Returns when clients are served; a node of a cluster finds its cluster first. Raises
        StorageError (also for a directory that does not fit the arguments), OSError when it cannot
        listen, QueratorError when the map does not recover, NodeFailedError, and StoppedEarlyError
        after `request_stop`. After an error, all started parts have been stopped.
        """
        try:
            await self._start()
        except BaseException:
            await self._running.aclose()
            raise
        _log.info(
            "node.started",
            address=self._address,
            admin_address=self._admin_address,
            name=self.identity.name,
            cluster_id=self.identity.cluster_id,
            boots=self.identity.boots,
            durable=self.durable,
        )

    async def _start(self) -> None:
        if self._switch_interval_s is not None:
            sys.setswitchinterval(self._switch_interval_s)
        clock, observed = self._clock, self._observed
        if self._data_dir is not None:
            # Before the ports: a second node on the directory has the same ports, too.
            await asyncio.to_thread(check_unlocked, self._data_dir)
        admin_server = await self._start_admin()
        credentials = dial_tls = None
        if self._tls is not None:
            files = CertificateFiles(self._tls)
            credentials = await asyncio.to_thread(server_credentials, files)
            observed.certificates["clients"] = lambda: files.expires_at_s
            dial_tls = await asyncio.to_thread(Dialing, self._tls)
        # What may be wrong with the settings of this machine is found before the node joins: a
        # member that ends has got replicas.
        await asyncio.to_thread(check_listening, self._listens_at())
        environment = await asyncio.to_thread(self._open)
        self._environment = observed.environment = environment
        observed.identity = self._identity
        telemetry.bind(node=self.identity.name, cluster_id=self.identity.cluster_id)
        self._running.push_async_callback(asyncio.to_thread, environment.close)
        if admin_server is not None:
            self._running.push_async_callback(admin_server.forget_storage)
        peers = observed.peers = await self._join(environment, clock)
        observed.identity = self._identity
        telemetry.bind(node=self.identity.name, cluster_id=self.identity.cluster_id)
        forwarding = self._make_forwarding(dial_tls)
        self._core = core = NodeCore(
            environment,
            clock=clock,
            bootstrap=ClusterBootstrap(
                cluster_id=self.identity.cluster_id,
                node=self._said(),
                replicas=self.identity.replicas,
                founders=self.identity.founders,
            ),
            on_failure=self.on_failure,
            on_hand_off=self._on_hand_off,
            peers=peers,
            peer_services=self._membership,
            waiting=tuple if self._membership is None else self._membership.waiting,
            certificates=lambda: certificates(observed),
            forwarding=forwarding,
            log_bytes_kept=self._log_bytes_kept,
            scrub_bytes_per_s=self._scrub_bytes_per_s,
        )
        placement, service = core.placement, core.service
        observed.host, observed.placement, observed.service = core.host, placement, service
        observed.conditions, observed.scrub = core.conditions, core.scrub
        if self._trust_clock:
            core.host.trust_clock()
        await core.start(self._running)
        self._watch(core, environment)
        await self._until_formed(placement)
        self._server = server = GrpcServer(
            service,
            core.admin,
            core.cluster,
            listen=self._listen,
            readers=service.readers,
            forwarding=forwarding,
            credentials=credentials,
        )
        self._running.push_async_callback(self._stop_serving, server, service)
        self._address = await server.start()
        observed.calls, observed.incoming = server.counts, server.incoming
        placement.say(self._said())
        if self._membership is not None:
            self._membership.say(self._said())
            # Owned: ended and awaited with the other parts.
            watch = asyncio.get_running_loop().create_task(self._membership.watch())
            self._running.push_async_callback(_ended, watch)
            self._running.push_async_callback(self._hand_over, placement)

    def _watch(self, core: NodeCore, environment: Environment) -> None:
        """Starts what reads the storage at intervals."""
        core.service.rates.start()
        self._running.push_async_callback(core.service.rates.stop)
        storage_watch = StorageWatch(environment, core.conditions)
        storage_watch.start()
        self._running.push_async_callback(storage_watch.stop)

        async def refresh() -> None:
            await storage_watch.refresh()
            core.conditions.check()

        core.cluster.before_status = refresh

    def _listens_at(self) -> dict[str, str]:
        """Addresses without the admin port's, which is open already, by their settings."""
        peers = {} if self._cluster is None else {"listen_peers": self._cluster.listen_peers}
        return {"listen": self._listen, **peers}

    async def _on_hand_off(self) -> None:
        """The node will stop soon: clients should use other nodes."""
        self._observed.handed_off = True
        if self._server is not None:
            await self._server.wants_no_clients()

    def _make_forwarding(self, tls: Dialing | None) -> Forwarding | None:
        """Links to the other nodes; None for a single node."""
        if self._cluster is None:
            return None
        connect = grpc_connect(None if tls is None else tls.newest)
        return Forwarding(self.identity.name, token=self._cluster.token, connect=connect)

    async def _hand_over(self, placement: Placement) -> None:
        if self._failure is None:
            handed = await placement.hand_over(HAND_OVER_S_MAX)
            _log.info("node.handed_off", moved=handed.moved, remaining=len(handed.left))

    # --- the cluster -------------------------------------------------------------------

    def _said(self) -> PlacedNode:
        """This node's description of itself."""
        cluster, identity = self._cluster, self.identity
        client_address = self._address or ("" if cluster is None else self._listen)
        return PlacedNode(
            identity.name,
            identity.incarnation,
            peer_address="" if cluster is None else cluster.peers[identity.name],
            client_address=(cluster and cluster.client_address) or client_address,
            zone="" if cluster is None else cluster.zone,
            boots=identity.boots,
            version=VERSION,
        )

    async def _join(self, environment: Environment, clock: Clock) -> TcpPeers | None:
        """Finds the other nodes, and joins their cluster if this node is not a member yet. Returns
        the peer port, or None for a single node.
        """
        membership = self._membership
        if membership is None:
            placed = await asyncio.to_thread(stored_map, environment)
            check_alone(self.identity, placed)
            return None
        self._listen = await asyncio.to_thread(with_port, self._listen)
        self._observed.certificates["nodes"] = lambda: membership.certificate_expires_at_s
        self._running.push_async_callback(asyncio.to_thread, membership.close)
        identity = await membership.start(
            environment, self.identity, self._said(), clock=clock, stop=self._end_wanted
        )
        if identity is None:
            raise StoppedEarlyError
        self._identity = identity
        return membership.peers

    async def _until_formed(self, placement: Placement) -> None:
        """Waits until the map names this node. The first leader writes the founding nodes into the
        map; a node that joins later already finds itself there.
        """
        self._wait_for("the placement group to have a leader")
        async with asyncio.TaskGroup() as tasks:
            formed = tasks.create_task(placement.until_formed())
            ended = tasks.create_task(self._end_wanted.wait())
            await asyncio.wait((formed, ended), return_when=asyncio.FIRST_COMPLETED)
            formed.cancel()
            ended.cancel()
        self._wait_for("")
        if isinstance(self._failure, DirectoryRefused):
            raise self._failure
        if self._failure is not None:
            raise self._failed()
        if self._end_wanted.is_set():
            raise StoppedEarlyError

    def _wait_for(self, reason: str) -> None:
        self._observed.waits_for = reason

    # --- parts of the start ------------------------------------------------------------

    async def _start_admin(self) -> "AdminServer | None":
        if not self._listen_admin:
            return None
        server = await asyncio.to_thread(self._make_admin)
        self._admin_address = await server.start()
        self._running.push_async_callback(server.stop)
        return server

    def _make_admin(self) -> "AdminServer":
        """Blocks: it loads libraries that only a node with an admin port needs."""
        from querator.server.admin.admin_server import AdminServer

        return AdminServer(self._observed, listen=self._listen_admin)

    def _open(self) -> Environment:
        """Opens the storage. Blocks meanwhile."""
        environment, self._identity = opening.opened(
            self._environment,
            self._data_dir,
            quota_bytes=self._quota_bytes,
            name=self._name,
            empty=self._empty,
            make_id=lambda: uuid_utils.uuid7().hex,
        )
        return environment

    async def _stop_serving(self, server: GrpcServer, service: QueueService) -> None:
        """Stops both at once: the server waits for calls, and the service answers waiting ones."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(self._shutdown_timeout_ms / 1000))
            tasks.create_task(service.stop())

    def request_stop(self) -> None:
        """Ends `run_until_stopped`. On the event loop. The owner of the block stops the node."""
        self._end_wanted.set()

    async def run_until_stopped(self) -> None:
        """Returns after `request_stop`. Raises NodeFailedError as soon as the node has failed."""
        await self._end_wanted.wait()
        if self._failure is not None:
            raise self._failed()

    async def stop(self) -> None:
        """Ends all parts in the order above. Returns when the directory is free. Idempotent."""
        self._observed.stopping = True
        await self._running.aclose()
        _log.info("node.stopped")

    def _failed(self) -> NodeFailedError:
        assert self._failure is not None
        failed = NodeFailedError(why_failed(self._failure))
        failed.__cause__ = self._failure
        return failed

    def on_failure(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = self._observed.failure = error
            if isinstance(error, DirectoryRefused):
                _log.critical("node.failed", reason=str(error))
            else:
                _log.critical("node.failed", exc_info=error)
        if self._core is not None:
            self._core.placement.end()
        self._end_wanted.set()


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait((task,))
