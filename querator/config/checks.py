"""Checks rules between settings, and rules that a setting's type cannot express."""

from typing import Final

from querator.config.addresses import (
    check_address,
    check_name,
    check_reachable,
    is_any,
    parse_address,
    parse_peers,
)
from querator.config.errors import ConfigError
from querator.config.settings import (
    NODES_INITIAL_MAX,
    STORAGE_QUOTA_BYTES_MIN,
    Config,
    in_cluster,
)


def check(config: Config) -> None:
    """Raises ConfigError."""
    if 0 < config.storage_quota_bytes < STORAGE_QUOTA_BYTES_MIN:
        raise ConfigError(
            f"storage_quota_bytes is {config.storage_quota_bytes}; the least is "
            f"{STORAGE_QUOTA_BYTES_MIN}, or 0 for the space of the disk"
        )
    if config.memory and config.data_dir:
        raise ConfigError("data_dir and memory exclude each other: choose --data-dir or --memory")
    if not config.memory and not config.data_dir:
        raise ConfigError("data_dir is missing: give --data-dir DIR (or --memory to keep nothing)")
    _check_tls(config)
    known = bool(config.tls_client_ca_file)
    check_address("listen", config.listen, insecure=config.insecure or known)
    if config.listen_admin:
        open_ = config.insecure or config.insecure_admin
        check_address("listen_admin", config.listen_admin, insecure=open_)
    if config.name:
        check_name("name", config.name)
    if in_cluster(config):
        _check_cluster(config)
    else:
        for name, needs in _OF_CLUSTERS.items():
            if getattr(config, name):
                raise ConfigError(f"{name} has no effect without {needs}: give that too")


_OF_CLUSTERS: Final = {
    "initial_nodes": "peers",
    "listen_peers": "cluster_token_file",
    "peer_tls_cert_file": "cluster_token_file",
}
"""Settings that apply only in a cluster, each with the setting that it needs."""


def _check_cluster(config: Config) -> None:
    given = "peers" if config.peers else "cluster_token_file"
    if config.memory:
        raise ConfigError(
            f"memory and {given} exclude each other: a cluster's nodes keep their data"
        )
    if not config.name:
        raise ConfigError(
            f"name is missing: with {given} say which node this is, --name NAME (a node that was "
            "started alone without a name is node-1)"
        )
    if config.peers:
        _check_peers(config)
    else:
        _check_joined(config)
    if config.listen_peers:
        parse_address(config.listen_peers, setting="listen_peers")
    if config.advertise_client:
        check_reachable("advertise_client", config.advertise_client)
    else:
        host, _ = parse_address(config.listen)
        if is_any(host):
            raise ConfigError(
                f"advertise_client is missing: clients cannot connect to {config.listen}; name "
                "the address at which clients and the other nodes reach this node"
            )


def _check_peers(config: Config) -> None:
    peers = parse_peers(config.peers)
    if config.name not in peers:
        raise ConfigError(
            f"peers: {config.name}, which is this node, is not among {', '.join(peers)}; "
            "the list has the node itself, and the nodes that form the cluster with it, or one "
            "that is in the cluster"
        )
    if config.new and len(peers) > 1:
        raise ConfigError(
            "new and peers exclude each other: --new makes a cluster of this node alone, nodes "
            "with --peers form one together; name only this node in peers if others are to join "
            "it later"
        )
    if config.initial_nodes > len(peers):
        raise ConfigError(
            f"initial_nodes is {config.initial_nodes}, and peers has only {len(peers)} nodes"
        )
    if not config.initial_nodes and len(peers) > NODES_INITIAL_MAX:
        raise ConfigError(
            f"initial_nodes is missing: peers has {len(peers)} nodes, and at most "
            f"{NODES_INITIAL_MAX} form a cluster"
        )
    if not config.cluster_token_file:
        raise ConfigError(
            "cluster_token_file is missing: with --peers give the file that holds the cluster's "
            "secret, the same for every node"
        )


def _check_joined(config: Config) -> None:
    """Checks a node that started alone and that others join."""
    if config.initial_nodes:
        raise ConfigError("initial_nodes has no effect without peers: give that too")
    if not config.listen_peers:
        raise ConfigError(
            "listen_peers is missing: with cluster_token_file and without peers give the "
            "address at which the other nodes reach this one"
        )
    host, port = parse_address(config.listen_peers, setting="listen_peers")
    if not port or is_any(host):
        raise ConfigError(
            f"listen_peers: {config.listen_peers} is not an address that others can connect to: "
            f"give --peers {config.name}=HOST:PORT too, with the address at which they reach "
            "this node"
        )


def _check_tls(config: Config) -> None:
    _check_peer_tls(config)
    if not config.tls_cert_file:
        for name in ("tls_key_file", "tls_client_ca_file", "tls_ca_file"):
            if getattr(config, name):
                raise ConfigError(f"{name} has no effect without tls_cert_file: give that too")
    elif not config.tls_key_file:
        raise ConfigError("tls_key_file is missing: tls_cert_file needs its key")
    elif in_cluster(config) and not config.tls_ca_file:
        raise ConfigError(
            "tls_ca_file is missing: in a cluster of nodes with tls_cert_file say which "
            "certificate authorities sign for the other nodes"
        )
    elif config.tls_ca_file and not in_cluster(config):
        raise ConfigError(
            "tls_ca_file has no effect without peers: the node connects to no other node"
        )


def _check_peer_tls(config: Config) -> None:
    for name in ("peer_tls_key_file", "peer_tls_ca_file"):
        if config.peer_tls_cert_file and not getattr(config, name):
            raise ConfigError(f"{name} is missing: peer_tls_cert_file needs it")
        if getattr(config, name) and not config.peer_tls_cert_file:
            raise ConfigError(f"{name} has no effect without peer_tls_cert_file: give that too")
