"""The manifests are valid for the API, and agree with the program."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import click
import kubernetes_validate
import pytest

from querator.cli import querator
from querator.config import Config, ConfigError, load, parse_address
from querator.config.addresses import parse_peers
from tests.kustomize import MANIFESTS, VARIANTS, PodSpec, one, rendered

SECURE = tuple(sorted({*VARIANTS} - {"insecure"}))
OLDEST, NEWEST = "1.27", "1.37"
"""Versions of Kubernetes. Older versions have no retention policy of claims."""


def pod(variant: str) -> PodSpec:
    return PodSpec.of(rendered(variant))


def environment(variant: str, ordinal: int = 0) -> dict[str, str]:
    return pod(variant).environment(name=f"querator-{ordinal}", namespace="queues")


def parsed(words: Sequence[str]) -> click.Context:
    """Parses a command line of `querator`. Raises click.UsageError."""
    context = querator.make_context(words[0], list(words[1:]))
    command: click.Command = querator
    while isinstance(command, click.Group):
        left = [*context._protected_args, *context.args]
        name, found, left = command.resolve_command(context, left)
        assert found is not None
        command, context = found, found.make_context(name, left, parent=context)
    return context


def settings(variant: str, ordinal: int = 0, *, other: Mapping[str, str] | None = None) -> Config:
    """Settings that `querator serve` reads from the container's command line and environment."""
    variables = environment(variant, ordinal)
    context = parsed(pod(variant).command(variables))
    assert context.command_path == "querator serve"
    flags = {name: value for name, value in context.params.items() if value is not None}
    return load(flags=flags, environment={**variables, **(other or {})})


def test_there_is_a_base_and_variants():
    assert VARIANTS == ("base", "insecure", "production")
    assert {path.parent.name for path in MANIFESTS.glob("*/*.yaml")} == {*VARIANTS}


@pytest.mark.parametrize("kubernetes", [OLDEST, NEWEST])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_valid(variant: str, kubernetes: str):
    objects = rendered(variant)
    for each in objects:
        assert kubernetes_validate.validate(each, kubernetes, strict=True) == kubernetes
    assert sorted(each["kind"] for each in objects) == [
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "Service",
        "StatefulSet",
    ]


def test_what_the_api_does_not_know_is_found():
    stateful_set = one(rendered("base"), "StatefulSet")
    stateful_set["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(stateful_set, NEWEST, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_settings_are_accepted_and_form_one_cluster(variant: str):
    replicas = one(rendered(variant), "StatefulSet")["spec"]["replicas"]
    nodes = [settings(variant, ordinal) for ordinal in range(replicas)]
    assert {node.initial_nodes for node in nodes} == {replicas}
    addresses = parse_peers(nodes[0].peers)
    assert [*addresses] == [node.name for node in nodes]
    for node in nodes:
        assert parse_peers(node.peers) == addresses
        assert node.advertise_client == f"{node.name}.querator-peers.queues.svc:4470"
        host, port = parse_address(addresses[node.name])
        assert host == f"{node.name}.querator-peers"
        assert parse_address(node.listen_peers)[1] == port == pod(variant).port("peers")
        assert parse_address(node.listen)[1] == pod(variant).port("clients")
        assert parse_address(node.listen_admin)[1] == pod(variant).port("admin")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_later_pod_knows_the_first_ones_and_itself(variant: str):
    first, later = settings(variant), settings(variant, 7)
    assert later.initial_nodes == first.initial_nodes
    addresses = parse_peers(later.peers)
    assert [*addresses] == [*parse_peers(first.peers), "querator-7"]
    assert addresses["querator-7"] == "querator-7.querator-peers:4472"


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_left_to_be_expanded(variant: str):
    assert not [value for value in environment(variant).values() if "$(" in value]


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_are_where_volumes_are(variant: str):
    spec = pod(variant)
    volumes = {*spec.claims, *(volume["name"] for volume in spec.pod["volumes"])}
    mounts = {mount["name"]: mount for mount in spec.container["volumeMounts"]}
    assert mounts.keys() == volumes
    names = {
        variable
        for variable, value in environment(variant).items()
        if value.startswith("/") and not any(
            Path(value).is_relative_to(mount["mountPath"]) for mount in mounts.values()
        )
    }  # fmt: skip
    assert not names
    writable = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"data"}


@pytest.mark.parametrize("variant", SECURE)
def test_nothing_starts_without_certificates(variant: str):
    config = settings(variant)
    assert not config.insecure
    assert config.tls_cert_file
    assert config.tls_key_file
    assert config.tls_ca_file
    assert config.tls_client_ca_file
    assert config.peer_tls_cert_file
    secrets = {volume["secret"]["secretName"] for volume in pod(variant).pod["volumes"]}
    assert secrets == {"querator-token", "querator-tls", "querator-peer-tls"}
    # Without these settings the node does not start in plain text.
    without = {f"QUERATOR_TLS_{name}_FILE": "" for name in ("CERT", "KEY", "CA", "CLIENT_CA")}
    with pytest.raises(ConfigError, match="listen: "):
        settings(variant, other=without)


def test_only_the_insecure_variant_has_no_certificates():
    config = settings("insecure")
    assert config.insecure
    assert not config.tls_cert_file
    assert not config.tls_client_ca_file
    assert not config.peer_tls_cert_file
    assert not {"QUERATOR_CA", "QUERATOR_CERT", "QUERATOR_KEY"} & environment("insecure").keys()


@pytest.mark.parametrize("variant", VARIANTS)
def test_probes_and_scrapes_ask_the_admin_port(variant: str):
    spec = pod(variant)
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        asked = spec.container[probe]["httpGet"]
        assert (asked["path"], spec.port(asked["port"])) == (path, spec.port("admin"))
    template = one(rendered(variant), "StatefulSet")["spec"]["template"]
    scraped = template["metadata"]["annotations"]
    assert int(scraped["prometheus.io/port"]) == spec.port("admin")
    assert scraped["prometheus.io/path"] == "/metrics"


@pytest.mark.parametrize("variant", VARIANTS)
def test_before_the_end_the_node_hands_off(variant: str):
    hook = pod(variant).container["lifecycle"]["preStop"]["exec"]
    assert parsed(hook["command"]).command_path == "querator node handoff"
    variables = environment(variant)
    assert variables["QUERATOR_ADDRESS"] == variables["QUERATOR_ADVERTISE_CLIENT"]
    took_s = 10 + settings(variant).shutdown_timeout_ms / 1000
    assert pod(variant).pod["terminationGracePeriodSeconds"] >= 2 * took_s


@pytest.mark.parametrize("variant", VARIANTS)
def test_services_and_budget_are_for_the_pods(variant: str):
    objects = rendered(variant)
    spec = PodSpec.of(objects)
    stateful_set = one(objects, "StatefulSet")["spec"]
    clients, peers = one(objects, "Service"), one(objects, "Service", "querator-peers")
    assert stateful_set["serviceName"] == peers["metadata"]["name"]
    assert stateful_set["podManagementPolicy"] == "Parallel"
    assert (peers["spec"]["clusterIP"], peers["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in clients["spec"]
    for service in (clients, peers):
        assert service["spec"]["selector"] == spec.labels
        for port in service["spec"]["ports"]:
            assert spec.port(port["targetPort"]) == port["port"]
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == spec.labels
    assert budget["maxUnavailable"] == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_nodes_reach_the_peer_port(variant: str):
    objects = rendered(variant)
    spec = PodSpec.of(objects)
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == spec.labels
    assert policy["policyTypes"] == ["Ingress"]
    open_to = {
        spec.port(port["port"]): rule.get("from")
        for rule in policy["ingress"]
        for port in rule["ports"]
    }
    nodes = [{"podSelector": {"matchLabels": spec.labels}}]
    assert open_to == {
        spec.port("peers"): nodes,
        spec.port("clients"): None,
        spec.port("admin"): None,
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_container_has_no_more_rights_than_it_needs(variant: str):
    spec = pod(variant)
    assert spec.pod["securityContext"]["runAsNonRoot"]
    assert spec.pod["securityContext"]["runAsUser"] != 0
    assert not spec.pod["automountServiceAccountToken"]
    rights = spec.container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("variant", SECURE)
def test_nodes_are_apart(variant: str):
    spec = pod(variant)
    [term] = spec.pod["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == spec.labels
    [spread] = spec.pod["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    strict = variant == "production"
    assert spread["whenUnsatisfiable"] == ("DoNotSchedule" if strict else "ScheduleAnyway")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_image_is_of_this_version(variant: str):
    assert pod(variant).container["image"].endswith(f"querator:{version('querator')}")


def test_the_page_says_from_which_release_on_nodes_know_their_zones():
    page = (MANIFESTS.parents[1] / "docs" / "kubernetes.md").read_text()
    manifest = (MANIFESTS / "base" / "stateful-set.yaml").read_text()
    label = "topology.kubernetes.io/zone"
    said = page.partition("**Zones.**")[2]
    assert label in said.partition("\n\n")[0]
    assert "Kubernetes 1.35 and newer copy this label" in said
    assert "Kubernetes 1.35 and newer" in manifest.split(f"metadata.labels['{label}']")[0]
