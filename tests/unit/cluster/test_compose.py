"""The compose file and the Dockerfile agree with the program and with each other."""

import re
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from querator.config import Config, load, parse_address
from querator.config.addresses import parse_peers
from tests.kustomize import ROOT

NODES = ("node-1", "node-2", "node-3")
DOCKERFILE = ROOT / "cluster" / "image" / "Dockerfile"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "cluster" / "compose" / "compose.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def settings(service: dict[str, Any]) -> Config:
    assert service["command"] == ["querator", "serve"]
    return load(flags={}, environment=service["environment"])


def test_three_nodes_form_one_cluster(compose: dict[str, Any]):
    nodes = {name: settings(compose["services"][name]) for name in NODES}
    assert {node.peers for node in nodes.values()} == {nodes["node-1"].peers}
    addresses = parse_peers(nodes["node-1"].peers)
    assert tuple(addresses) == NODES
    for name, node in nodes.items():
        assert (node.name, node.initial_nodes) == (name, len(NODES))
        assert node.advertise_client == f"{name}:{parse_address(node.listen)[1]}"
        assert addresses[name] == f"{name}:{parse_address(node.listen_peers)[1]}"
        service = compose["services"][name]
        [volume] = service["volumes"]
        assert volume == f"{name}:/var/lib/querator"
        assert name in compose["volumes"]
        assert node.data_dir.startswith("/var/lib/querator/")
        assert node.cluster_token_file == f"/run/secrets/{service['secrets'][0]}"
        admin_port = parse_address(node.listen_admin)[1]
        assert f"127.0.0.1:{admin_port}/readyz" in service["healthcheck"]["test"][-1]


def test_the_images_are_of_this_version(compose: dict[str, Any]):
    tag = f"querator:{version('querator')}"
    assert {service["image"] for service in compose["services"].values()} == {tag}
    assert f"--tag {tag} " in DOCKERFILE.read_text()
    built = compose["services"]["node-1"]["build"]
    folder = (ROOT / "cluster" / "compose" / built["context"]).resolve()
    assert folder / built["dockerfile"] == DOCKERFILE


def test_the_dockerfile_runs_the_script_and_what_it_copies_is_sent():
    text = DOCKERFILE.read_text()
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) /from/$", text)[0].split()
    assert "RUN /from/install /from/querator-*.whl /from /opt/querator\n" in text
    sent = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    assert sent[0] == "*"
    allowed = {path for pattern in sent[1:] for path in ROOT.glob(pattern.removeprefix("!"))}
    for path in copied:
        made_later = path.startswith("dist/")
        assert f"!{path}" in sent if made_later else ROOT / path in allowed
