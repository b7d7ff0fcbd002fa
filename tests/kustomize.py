"""The manifests of cluster/kubernetes as the API server would receive them, and what the kubelet
would make of a pod's container.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "cluster" / "kubernetes"
VARIANTS = tuple(sorted(path.parent.name for path in MANIFESTS.glob("*/kustomization.yaml")))

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z0-9_.-]+)\))")
_LABEL = re.compile(r"metadata\.labels\['(.+)'\]")


def rendered(variant: str) -> list[dict[str, Any]]:
    """All objects of a folder. Skips the test when kubectl is missing."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    return list(yaml.safe_load_all(_kustomized(variant)))


@cache
def _kustomized(variant: str) -> str:
    command = ["kubectl", "kustomize", str(MANIFESTS / variant)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def one(objects: list[dict[str, Any]], kind: str, name: str = "querator") -> dict[str, Any]:
    [found] = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


class PodSpec(msgspec.Struct, frozen=True):
    """The pods of a StatefulSet with one container."""

    pod: dict[str, Any]
    container: dict[str, Any]
    labels: dict[str, str]
    claims: tuple[str, ...]
    """Names of the volumes that are claimed for each pod."""

    @classmethod
    def of(cls, objects: list[dict[str, Any]]) -> "PodSpec":
        spec = one(objects, "StatefulSet")["spec"]
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        claims = tuple(claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"])
        return cls(pod, container, spec["template"]["metadata"]["labels"], claims)

    def environment(self, *, name: str, namespace: str) -> dict[str, str]:
        """Environment of the container, in a pod of this name."""
        values: dict[str, str] = {}
        for entry in self.container["env"]:
            if "value" in entry:
                values[entry["name"]] = _expanded(entry["value"], values)
                continue
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            if label := _LABEL.fullmatch(path):
                values[entry["name"]] = self.labels.get(label[1], "")
            else:
                fields = {"metadata.name": name, "metadata.namespace": namespace}
                values[entry["name"]] = fields[path]
        return values

    def command(self, environment: Mapping[str, str]) -> list[str]:
        words = [*self.container["command"], *self.container.get("args", [])]
        return [_expanded(word, environment) for word in words]

    def port(self, named: str | int) -> int:
        """The number of a container's port, which a probe or a service names."""
        [port] = [
            port["containerPort"]
            for port in self.container["ports"]
            if named in (port["name"], port["containerPort"])
        ]
        assert isinstance(port, int)
        return port


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Expands `$(NAME)` of known variables; all other text stays, as in Kubernetes."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else known.get(found[2], found[0])

    return _REFERENCE.sub(value, text)
