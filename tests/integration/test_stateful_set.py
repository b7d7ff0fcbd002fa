"""The pods of cluster/kubernetes, as Linux alone can run them: the container's own command and
settings, names, certificates, probes and hooks, through a rolling restart in which every pod comes
back with another address.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
import trustme

from tests.integration.conftest import TOLD
from tests.integration.pod_users import Seen
from tests.integration.pods import NAMES_BY_THE_SYSTEM, START_S, Network, Pod, Room, network
from tests.integration.processes import verify
from tests.kustomize import ROOT, PodSpec, one, rendered

pytestmark = pytest.mark.timeout(420)

NAMESPACE = "queues"
SERVICE = f"querator.{NAMESPACE}.svc"
GROUP = 65532
GIVEN = re.compile(r"Node (\S+) has handed off (\d+) leaderships?")


class Papers:
    """Secrets, as folders of files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._authority = trustme.CA()
        self.token = home / "token"
        self.token.mkdir()
        _readable(self.token / "token", b"0123456789abcdef0123456789abcdef\n")

    def issue(self, folder: str, *names: str, authority: trustme.CA | None = None) -> Path:
        """Writes the files of a Secret of the type kubernetes.io/tls."""
        authority = authority or self._authority
        issued = authority.issue_cert(*names)
        made = self.home / folder
        made.mkdir()
        _readable(made / "ca.crt", authority.cert_pem.bytes())
        _readable(made / "tls.crt", b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        _readable(made / "tls.key", issued.private_key_pem.bytes())
        return made


def _readable(path: Path, content: bytes) -> None:
    """Writes a file that is readable by root and the pods' group, as the kubelet writes a Secret
    with `defaultMode: 0440`.
    """
    path.write_bytes(content)
    path.chmod(0o440)
    os.chown(path, 0, GROUP)


class StatefulSet:
    """Its pods and what they share; none of them started."""

    def __init__(self, home: Path, image: Path, network: Network) -> None:
        self.home = home
        self.network = network
        self.papers = Papers(home)
        self._image = image
        self._objects = rendered("base")
        stateful_set = one(self._objects, "StatefulSet")["spec"]
        self._service = stateful_set["serviceName"]
        self.ready_s = stateful_set["minReadySeconds"]
        self._tls = self.papers.issue("tls", f"*.{self._service}.{NAMESPACE}.svc", SERVICE)
        nodes_only = trustme.CA()
        self._peer_tls = self.papers.issue("peer-tls", self._service, authority=nodes_only)
        self.pods: list[Pod] = []
        for _ in range(stateful_set["replicas"]):
            self.add()

    def add(self) -> Pod:
        """Adds one pod, not started."""
        ordinal = len(self.pods)
        volume = self._volume(ordinal)
        pod = Pod(
            PodSpec.of(self._objects),
            f"querator-{ordinal}",
            namespace=NAMESPACE,
            service=self._service,
            network=self.network,
            image=self._image,
            volumes={
                "data": volume,
                "token": self.papers.token,
                "tls": self._tls,
                "peer-tls": self._peer_tls,
            },
            home=self.home,
        )
        self.pods.append(pod)
        return pod

    def _volume(self, ordinal: int) -> Path:
        """A volume that is empty except for what file systems put there."""
        volume = self.home / f"volume-{ordinal}"
        (volume / "lost+found").mkdir(parents=True, mode=0o700)
        os.chown(volume, 0, GROUP)
        volume.chmod(0o2775)
        return volume

    def start(self) -> None:
        """Starts all pods at once, as with `podManagementPolicy: Parallel`."""
        for pod in self.pods:
            pod.start()
        for pod in self.pods:
            pod.until_ready()
        self.serve(self.pods)

    def kill(self) -> None:
        for pod in self.pods:
            pod.kill()

    def serve(self, pods: list[Pod]) -> None:
        """The service for clients has these pods."""
        self.network.know(SERVICE, [pod.address for pod in pods])

    def restart_each(self) -> int:
        """Restarts the pods from the last to the first, as the controller does. Returns the number
        of leaderships that their hooks gave away.
        """
        given = 0
        for pod in reversed(self.pods):
            self.serve([other for other in self.pods if other is not pod])
            handed_off = pod.end()
            said = GIVEN.search(handed_off.stderr)
            assert handed_off.returncode == 0, handed_off.stderr
            assert said, handed_off.stderr
            assert said[1] == pod.name
            given += int(said[2])
            pod.start()
            pod.until_ready()
            self.serve(self.pods)
            pod.stays_ready(self.ready_s)
        return given

    def until_well(self) -> None:
        self.until(lambda asked: not asked.returncode)

    def until(self, condition: "Callable[[subprocess.CompletedProcess[str]], bool]") -> None:
        """Waits for a condition on the output of `querator cluster status` in a container."""
        end = time.monotonic() + START_S
        while not condition(asked := self.pods[0].execute("querator", "cluster", "status")):
            assert time.monotonic() < end, asked.stdout + asked.stderr
            time.sleep(1)

    def grow(self, number: int) -> None:
        """`kubectl scale`: more pods, all at once, on empty volumes."""
        added = [self.add() for _ in range(number)]
        for pod in added:
            pod.start()
        for pod in added:
            pod.until_ready()
        self.serve(self.pods)
        self.until_well()

    def shrink(self) -> None:
        """Removes the pod with the highest number, as described in docs/kubernetes.md."""
        pod = self.pods[-1]
        self.node("drain", pod.name)
        self.until(lambda asked: f"Node {pod.name} is drained" in asked.stdout)
        self.serve(self.pods[:-1])
        assert pod.end().returncode == 0
        self.node("remove", pod.name, "--yes")
        self.pods.pop()
        self.until_well()

    def node(self, command: str, *arguments: str) -> None:
        done = self.pods[0].execute("querator", "node", command, *arguments)
        assert done.returncode == 0, done.stderr


@contextmanager
def users(home: Path, papers: Papers, network: Network) -> "Iterator[subprocess.Popen[str]]":
    """The program of the users, in a room of its own."""
    room = Room("client", home, mounts=[(network.names, "/run/names", False)], checkout=True)
    network.join(room)
    shown = papers.issue("client", "client")
    files = [str(shown / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    command = [sys.executable, "-m", "tests.integration.pod_users", f"{SERVICE}:4470", *files]
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), **NAMES_BY_THE_SYSTEM}
    with subprocess.Popen(
        room.command(command, environment=environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            room.close()


def test_a_rolling_restart_is_not_noticed(
    tmp_path: Path, image: Path, request: pytest.FixtureRequest
):
    with running(tmp_path, image) as (stateful_set, load):
        before = [pod.address for pod in stateful_set.pods]
        assert stateful_set.restart_each() > 0
        assert not {*before} & {pod.address for pod in stateful_set.pods}
        stateful_set.until_well()
        seen = ended(load)
    assert (seen.completed, seen.twice) == (seen.produced, 0)
    for ordinal in range(len(stateful_set.pods)):
        asyncio.run(verify(tmp_path / f"volume-{ordinal}" / "data"))
    line = (
        f"rolling restart of pods: {seen.produced} items, longest produce {seen.stall_ms} ms, "
        f"batches completed too late {seen.late}"
    )
    request.node.user_properties.append((TOLD, line))


def test_users_follow_all_pods_to_other_addresses(tmp_path: Path, image: Path):
    with running(tmp_path, image) as (stateful_set, load):
        stateful_set.serve([])
        stateful_set.kill()
        stateful_set.start()
        seen = ended(load)
    assert (seen.completed, seen.twice) == (seen.produced, 0)


def test_the_set_is_scaled_to_five_and_back_to_three(tmp_path: Path, image: Path):
    with running(tmp_path, image) as (stateful_set, load):
        stateful_set.grow(2)
        stateful_set.shrink()
        stateful_set.shrink()
        seen = ended(load)
    assert (seen.completed, seen.twice) == (seen.produced, 0)


@contextmanager
def running(home: Path, image: Path) -> "Iterator[tuple[StatefulSet, subprocess.Popen[str]]]":
    """The running pods, and users that have had their first items."""
    with ExitStack() as stack:
        joined = stack.enter_context(network(home))
        stateful_set = StatefulSet(home, image, joined)
        stack.callback(stateful_set.kill)
        stateful_set.start()
        load = stack.enter_context(users(home, stateful_set.papers, joined))
        assert load.stdout is not None
        assert load.stdout.readline() == "served\n"
        yield stateful_set, load


def ended(load: "subprocess.Popen[str]") -> Seen:
    """Ends the users, and returns what they saw. None of them saw an error."""
    out, _ = load.communicate()
    assert load.returncode == 0
    return msgspec.json.decode(out, type=Seen)
