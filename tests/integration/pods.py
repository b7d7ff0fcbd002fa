"""Pods on this machine, as far as Linux alone provides them: network, mounts and host name of their
own, a read-only root, names in a hosts file, and a container without rights.

    Network        a bridge, and the names that all pods know
      Room, Room…  the namespaces of a pod, with an address; each start makes new ones
        Pod        a container in its room, and the actions of the kubelet on it

Namespaces vanish with the process that holds them, and that process with the tests.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.kustomize import ROOT, PodSpec

START_S: Final = 60
PROBE_PAUSE_S: Final = 0.2
"""Shorter than a kubelet's, so that a restart does not wait for it."""
_SUBNET: Final = "10.90.0"
_HOLD: Final = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount")
_NO_RIGHTS: Final = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_PROBE: Final = """
import http.client, sys
for line in sys.stdin:
    host, port, timeout_s, path = line.split()
    asked = http.client.HTTPConnection(host, int(port), timeout=float(timeout_s))
    try:
        asked.request("GET", path)
        status = asked.getresponse().status
    except (OSError, http.client.HTTPException):
        status = 0
    finally:
        asked.close()
    print(status, flush=True)
"""
"""Answers each line with the status of its request; 0: there was none."""

Mount = tuple[Path, str, bool]
"""The mounted path, the place where it is mounted, and whether it is writable."""


def need_namespaces() -> None:
    """Skips the test where namespaces cannot be created."""
    tools = ("unshare", "nsenter", "setpriv", "ip")
    bridge = ["ip", "link", "add", "pods", "type", "bridge"]
    if (
        not all(map(shutil.which, tools))
        or subprocess.run([*_HOLD, *bridge], capture_output=True, check=False).returncode
    ):
        pytest.skip("namespaces for network and mounts are not allowed")


def python_home() -> Path:
    """The interpreter on which virtual environments are based."""
    return Path(sys.base_prefix)


class Room:
    """Namespaces, and a root: this machine's, but with nothing of the checkout unless `checkout`.
    `reachable`: paths that users other than root can access, in this room alone.
    """

    def __init__(
        self,
        name: str,
        home: Path,
        *,
        mounts: Iterable[Mount] = (),
        reachable: Iterable[Path] = (),
        checkout: bool = False,
    ) -> None:
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=home))
        self.root = work / "root"
        above = {parent for path in reachable for parent in path.parents}
        lines = [
            ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(work)],
            ["mkdir", *(str(work / part) for part in ("root", "upper", "work"))],
            ["mount", "-t", "overlay", "overlay", "-o",
             f"lowerdir=/,upperdir={work}/upper,workdir={work}/work", str(self.root)],
            ["mount", "--bind", "/proc", self._at("/proc")],
            ["mount", "--rbind", "/dev", self._at("/dev")],
            *([["chmod", "o+x", *(self._at(path) for path in sorted(above))]] if above else []),
            *([] if checkout else [["mount", "-t", "tmpfs", "tmpfs", self._at(ROOT)]]),
            *_names_from_hosts(self._at("/etc")),
        ]  # fmt: skip
        for source, target, writable in mounts:
            lines.append(["mkdir", "-p", self._at(target)])
            lines.append(["mount", "--bind", str(source), self._at(target)])
            if not writable:
                lines.append(["mount", "-o", "remount,bind,ro", self._at(target)])
        lines += [
            ["mount", "-o", "remount,bind,ro", str(self.root)],
            ["hostname", name],
            ["ip", "link", "set", "lo", "up"],
            ["echo", "made"],
            ["exec", "sleep", "infinity"],
        ]
        self._holder = _hold("\n".join(map(shlex.join, lines)))

    def _at(self, path: Path | str) -> str:
        return f"{self.root}{path}"

    @property
    def pid(self) -> int:
        return self._holder.pid

    def command(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: int = 0,
        group: int = 0,
        more_groups: Sequence[int] = (),
    ) -> list[str]:
        """The command line that runs a command in the room, with these variables and no others. The
        process becomes that of the command. Users other than root have no rights.
        """
        groups = ",".join(map(str, more_groups))
        return [
            *("nsenter", f"--target={self.pid}", "--net", "--uts", "--mount"),
            *("chroot", str(self.root)),
            *("setpriv", f"--reuid={user}", f"--regid={group}"),
            f"--groups={groups}" if groups else "--clear-groups",
            *(_NO_RIGHTS if user else ()),
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
            *command,
        ]

    def close(self) -> None:
        _let_go(self._holder)


def _names_from_hosts(etc: str) -> list[list[str]]:
    """Names come from the network's hosts file alone."""
    return [
        ["ln", "-sfn", "/run/names/hosts", f"{etc}/hosts"],
        ["rm", "-f", f"{etc}/resolv.conf"],
        ["sh", "-c", "echo 'hosts: files' > $0", f"{etc}/nsswitch.conf"],
    ]


def _hold(script: str) -> "subprocess.Popen[str]":
    """Namespaces that a script sets up and holds; it prints the line `made` when they are ready."""
    holder = subprocess.Popen(
        [*_HOLD, "sh", "-ec", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "made\n":
        _let_go(holder)
        raise AssertionError("the namespaces were not made")
    return holder


def _let_go(holder: "subprocess.Popen[str]") -> None:
    holder.kill()
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()


NAMES_BY_THE_SYSTEM: Final = {"GRPC_DNS_RESOLVER": "native"}
"""gRPC's own resolver treats all names of a hosts file that share an address as one host with all
of their addresses: the name of a service would make its pods one.
"""


class Network:
    """Joins rooms, and is where probes come from. Every room gets a new address that was never used
    before, as pods do.
    """

    def __init__(self, home: Path) -> None:
        self.names = home / "names"
        """The folder with the hosts file, for the rooms."""
        self.names.mkdir()
        self._addresses: dict[str, list[str]] = {}
        self._rooms = 1
        self._holder = _hold(
            "ip link add pods type bridge; ip link set pods up; ip link set lo up; "
            f"ip addr add {_SUBNET}.1/24 dev pods; echo made; exec sleep infinity"
        )
        self._prober = subprocess.Popen(
            [*self._inside, sys.executable, "-ISc", _PROBE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.know("localhost", ["127.0.0.1"])

    def know(self, name: str, addresses: Sequence[str]) -> None:
        """From here on the name has these addresses; none: the name is unknown."""
        self._addresses[name] = [*addresses]
        lines = [
            f"{address} {name}\n" for name, all_ in self._addresses.items() for address in all_
        ]
        written = self.names / "written"
        written.write_text("".join(lines))
        written.replace(self.names / "hosts")

    def join(self, room: Room) -> str:
        """Returns the address that the room has from here on."""
        self._rooms += 1
        port, address = f"pod{self._rooms}", f"{_SUBNET}.{self._rooms}"
        inside = ["nsenter", f"--target={room.pid}", "--net", "ip"]
        for command in (
            [*self._inside, "ip", "link", "add", port, "type", "veth",
             "peer", "name", "eth0", "netns", str(room.pid)],
            [*self._inside, "ip", "link", "set", port, "master", "pods", "up"],
            [*inside, "addr", "add", f"{address}/24", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
        ):  # fmt: skip
            subprocess.run(command, check=True)
        return address

    def get(self, address: str, port: int, path: str, timeout_s: float) -> bool:
        """Whether it answers, and reports that all is well."""
        assert self._prober.stdin is not None
        assert self._prober.stdout is not None
        self._prober.stdin.write(f"{address} {port} {timeout_s} {path}\n")
        self._prober.stdin.flush()
        return 200 <= int(self._prober.stdout.readline()) < 400

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self._holder.pid}", "--net"]

    def close(self) -> None:
        self._prober.communicate()
        _let_go(self._holder)


class Pod:
    """One pod of a StatefulSet. `volumes`: the content of each of its volumes, by name."""

    def __init__(
        self,
        spec: PodSpec,
        name: str,
        *,
        namespace: str,
        service: str,
        network: Network,
        image: Path,
        volumes: Mapping[str, Path],
        home: Path,
    ) -> None:
        self.name = name
        self.log = home / f"{name}.log"
        self.address = ""
        self._spec = spec
        self._names = (f"{name}.{service}", f"{name}.{service}.{namespace}.svc")
        self._network = network
        self._image = image
        self._home = home
        self._mounts = [
            (volumes[mount["name"]], mount["mountPath"], not mount.get("readOnly", False))
            for mount in spec.container["volumeMounts"]
        ]
        self._environment = {
            "PATH": f"{image}/bin:{os.defpath}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **NAMES_BY_THE_SYSTEM,
            **spec.environment(name=name, namespace=namespace),
        }
        self._room: Room | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the container in a new room with a new address. Does not wait for anything."""
        assert self._spec.container["securityContext"]["readOnlyRootFilesystem"]
        self._room = Room(
            self.name,
            self._home,
            mounts=[
                (self._network.names, "/run/names", False),
                (self._image, str(self._image), False),
                *self._mounts,
            ],
            reachable=[self._image, python_home()],
        )
        self.address = self._network.join(self._room)
        for name in self._names:
            self._network.know(name, [self.address])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(self._spec.command(self._environment)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _command(self, command: Sequence[str]) -> list[str]:
        assert self._room is not None
        rights = self._spec.pod["securityContext"]
        return self._room.command(
            command,
            environment=self._environment,
            user=rights["runAsUser"],
            group=rights["runAsGroup"],
            more_groups=[rights["fsGroup"]],
        )

    def execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the container, as `kubectl exec` does."""
        return subprocess.run(
            self._command(command), capture_output=True, text=True, check=False, timeout=START_S
        )

    def passes(self, probe: str) -> bool:
        asked = self._spec.container[probe]
        port = self._spec.port(asked["httpGet"]["port"])
        path, timeout_s = asked["httpGet"]["path"], asked["timeoutSeconds"]
        return self._network.get(self.address, port, path, timeout_s)

    def until_ready(self) -> None:
        """Waits until its probes succeed. Raises AssertionError when the container ends, or takes
        too long.
        """
        assert self._process is not None
        end = time.monotonic() + START_S
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            while not self.passes(probe):
                code = self._process.poll()
                assert code is None, f"{self.name} ended with {code}:\n{self.said()}"
                assert time.monotonic() < end, f"{probe} of {self.name} fails:\n{self.said()}"
                time.sleep(PROBE_PAUSE_S)

    def stays_ready(self, seconds: float) -> None:
        """Probes for `seconds`. Raises AssertionError when a probe fails once."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.passes("readinessProbe"), f"{self.name} is ready no more:\n{self.said()}"
            time.sleep(PROBE_PAUSE_S)

    def end(self) -> "subprocess.CompletedProcess[str]":
        """Ends the pod as the kubelet does: preStop, SIGTERM, SIGKILL when the grace period has
        passed. Returns the result of preStop. Raises AssertionError when the container does not end
        well in time.
        """
        assert self._process is not None
        end = time.monotonic() + self._spec.pod["terminationGracePeriodSeconds"]
        stopped = self.execute(*self._spec.container["lifecycle"]["preStop"]["exec"]["command"])
        self._process.terminate()
        try:
            code = self._process.wait(max(0.0, end - time.monotonic()))
            assert code == 0, f"{self.name} ended with {code}:\n{self.said()}"
        finally:
            self.kill()
        return stopped

    def kill(self) -> None:
        """Ends the pod at once, and drops its address; its volumes stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._room is not None:
            for name in self._names:
                self._network.know(name, [])
            self._room.close()
            self._room = None

    def said(self) -> str:
        """The end of the container's output."""
        return self.log.read_text()[-4000:]


@contextmanager
def network(home: Path) -> Iterator[Network]:
    made = Network(home)
    try:
        yield made
    finally:
        made.close()
