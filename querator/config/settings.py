"""All settings of a node. The typed fields of `Config` are the one source of flags, variables, keys
of the file, and `docs/configuration.md`.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from querator.config.addresses import parse_peers
from querator.config.errors import ConfigError
from querator.model.limits import LOG_BYTES_KEPT, LOG_BYTES_KEPT_MIN, SCRUB_BYTES_PER_S

ENVIRONMENT_PREFIX: Final = "QUERATOR_"


LogFormat = Literal["auto", "json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


STORAGE_QUOTA_BYTES_MIN = 512 * 1024 * 1024
"""An eighth of the quota, 64 MiB at most, is reserved for completes and deletes. With a smaller
quota, the leases of many partitions in one turn may not fit into the reserve.
"""


NODES_INITIAL_MAX = 7
"""Each founding node has a replica of the placement group. More nodes would slow it and not make it
safer.
"""
TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 4096


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with their defaults. Descriptions go into `--help` and the docs."""

    data_dir: Annotated[
        str, Meta(description="Directory of the node's data. Required unless `memory` is set.")
    ] = ""
    memory: Annotated[
        bool, Meta(description="Keep everything in memory. Nothing survives the process.")
    ] = False
    new: Annotated[
        bool,
        Meta(
            description="Make a new cluster of this node alone when `data_dir` is empty or "
            "missing. Without `new` and `peers` the node refuses such a directory, because a "
            "mistyped path would silently become a new cluster. With `cluster_token_file` "
            "and `listen_peers` other nodes can join it."
        ),
    ] = False
    trust_clock: Annotated[
        bool,
        Meta(
            description="The machine's clock is right, although it is far ahead of the data. For "
            "ten minutes after the start the node leads without a second clock to compare "
            "with. For a single node that was off for more than 14 days."
        ),
    ] = False
    name: Annotated[
        str,
        Meta(
            description="Name of the node, stored permanently with its data. Letters, digits, "
            "`.`, `-` and `_`; default: the name in the data, or `node-1` for new data. "
            "Required with `peers` and with `cluster_token_file`."
        ),
    ] = ""
    peers: Annotated[
        str,
        Meta(
            description="All nodes of the cluster with the addresses at which they reach each "
            "other, `NAME=HOST:PORT,…`. The list is the same for every node, and includes "
            "the node itself. Empty: a node that was started alone; other nodes join it if "
            "it has `cluster_token_file` and `listen_peers`."
        ),
    ] = ""
    initial_nodes: Annotated[
        int,
        Meta(
            ge=0,
            le=NODES_INITIAL_MAX,
            description="How many of `peers`, counted from the first, form a new cluster when "
            "all of them answer; 0 means all. The same for every node.",
        ),
    ] = 0
    cluster_token_file: Annotated[
        str,
        Meta(
            description="File with the secret of the cluster, at least 16 bytes. The nodes prove "
            "to each other that they know it. Required with `peers`."
        ),
    ] = ""
    listen: Annotated[
        str,
        Meta(description="Address and port for clients, `HOST:PORT`; port 0 takes a free one."),
    ] = "127.0.0.1:4470"
    advertise_client: Annotated[
        str,
        Meta(
            description="Address at which clients and the other nodes reach `listen`, `HOST:PORT`. "
            "Empty: `listen` itself."
        ),
    ] = ""
    listen_peers: Annotated[
        str,
        Meta(
            description="Address and port for the other nodes, `HOST:PORT`. Empty: the node's own "
            "address in `peers`. Without `peers` it is also the address at which the other "
            "nodes reach this node."
        ),
    ] = ""
    peer_tls_cert_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate that this node shows to the other nodes, on "
            "`listen_peers` and when it connects to theirs, followed by the intermediate "
            "certificates. Empty: nodes talk to each other without TLS. All nodes have it, "
            "or none. Changed files take effect for new connections."
        ),
    ] = ""
    peer_tls_key_file: Annotated[
        str, Meta(description="PEM file with the key of `peer_tls_cert_file`, not encrypted.")
    ] = ""
    peer_tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate authorities of the other nodes, which "
            "must show a certificate. Required with `peer_tls_cert_file`."
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(
            description="Zone of the node: nodes in the same zone fail together, as in a rack. The "
            "replicas of a partition are put into different zones as far as there are "
            "enough."
        ),
    ] = ""
    listen_admin: Annotated[
        str,
        Meta(
            description="Address and port of `/metrics`, `/livez` and `/readyz` over HTTP, "
            "written as `listen`; empty: none. A second node on the machine needs another "
            "port."
        ),
    ] = "127.0.0.1:4471"
    tls_cert_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate that the node shows on `listen` and when it "
            "connects to other nodes: its own first, then the intermediate certificates. "
            "Empty: no TLS. Changed files take effect for new connections."
        ),
    ] = ""
    tls_key_file: Annotated[
        str, Meta(description="PEM file with the key of `tls_cert_file`, not encrypted.")
    ] = ""
    tls_client_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate authorities of clients and other nodes, "
            "which must show a certificate at `listen` (mutual TLS). Empty: no certificate "
            "is required."
        ),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate authorities that this node trusts when it "
            "connects to the client ports of other nodes. Required with `tls_cert_file` in "
            "a cluster."
        ),
    ] = ""
    insecure: Annotated[
        bool,
        Meta(
            description="Allow `listen` and `listen_admin` to be addresses that are not "
            "loopback. A client that reaches `listen` may do everything (unless "
            "`tls_client_ca_file` authenticates it); a client that reaches `listen_admin` "
            "reads the names and counts of all queues."
        ),
    ] = False
    insecure_admin: Annotated[
        bool,
        Meta(
            description="Allow `listen_admin` alone to be an address that is not loopback. "
            "`listen` still needs `tls_client_ca_file` then."
        ),
    ] = False
    storage_quota_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Most bytes that data may take, for example `10GiB`; 0 means the space of "
            "the disk (with `memory`: 1 GiB), else at least 512 MiB. Beyond it the node refuses "
            "produce with STORAGE_FULL.",
        ),
    ] = 0
    log_bytes_kept: Annotated[
        int,
        Meta(
            ge=LOG_BYTES_KEPT_MIN,
            description="Bytes of log that the node keeps behind the state of its partitions, "
            "which share them; one partition keeps at most 64 MiB. The node keeps up to four "
            "times as much while nodes that answer need it. A node that was away while more "
            "bytes went through a partition gets the partition's whole state.",
        ),
    ] = LOG_BYTES_KEPT
    scrub_bytes_per_s: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of payload per second that the node checks in the background, to "
            "find damage before a consumer does. The rate is lower while the node is busy. "
            "0: none.",
        ),
    ] = SCRUB_BYTES_PER_S
    shutdown_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="How long running calls may take to end at shutdown, ms.",
        ),
    ] = 5_000
    log_format: Annotated[
        LogFormat, Meta(description="`json`, `text`, or `auto`: text on a terminal, else JSON.")
    ] = "auto"
    log_level: Annotated[
        LogLevel,
        Meta(description="Least level that is logged: `debug`, `info`, `warning` or `error`."),
    ] = "info"


class PeerTlsSettings(msgspec.Struct, frozen=True):
    """PEM files of a node's peer port."""

    cert_file: str
    key_file: str
    ca_file: str


class ClusterSettings(msgspec.Struct, frozen=True):
    """The settings of a node in a cluster. `peers` has the addresses of all nodes by name, its own
    included; `founds_with` the names of the nodes that form a new cluster, empty for a node that
    others only join. `tls` None: nodes communicate without TLS.
    """

    name: str
    peers: Mapping[str, str]
    founds_with: tuple[str, ...]
    token: bytes
    listen_peers: str
    client_address: str
    zone: str = ""
    tls: PeerTlsSettings | None = None


class TlsSettings(msgspec.Struct, frozen=True):
    """PEM files of a node's client port; `client_ca_file` and `ca_file` may be empty."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    ca_file: str = ""


class Setting(msgspec.Struct, frozen=True):
    """Description of one setting. `name` is its key in the file."""

    name: str
    type: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def in_bytes(self) -> bool:
        """Whether the value is a number of bytes, which may be written with a unit."""
        return "bytes" in self.name.split("_")


def _settings() -> tuple[Setting, ...]:
    info = msgspec.inspect.type_info(Config)
    assert isinstance(info, msgspec.inspect.StructType)
    hints = {field.name: field for field in msgspec.structs.fields(Config)}
    settings = []
    for field in info.fields:
        type_ = field.type
        assert isinstance(type_, msgspec.inspect.Metadata)
        assert type_.extra_json_schema is not None
        description = type_.extra_json_schema["description"]
        settings.append(Setting(field.name, hints[field.name].type, field.default, description))
    return tuple(settings)


SETTINGS: Final = _settings()


def in_cluster(config: Config) -> bool:
    """Whether the node is a member of a cluster of several, or can become one."""
    return bool(config.peers or config.cluster_token_file)


def tls_settings(config: Config) -> TlsSettings | None:
    """The TLS settings of the client port; None: no TLS."""
    if not config.tls_cert_file:
        return None
    return TlsSettings(
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
        client_ca_file=config.tls_client_ca_file,
        ca_file=config.tls_ca_file,
    )


def cluster_settings(config: Config) -> ClusterSettings | None:
    """The cluster settings, with the token read; None for a node that is alone."""
    if not in_cluster(config):
        return None
    peers = parse_peers(config.peers or f"{config.name}={config.listen_peers}")
    founds = tuple(list(peers)[: config.initial_nodes or None]) if config.peers else ()
    return ClusterSettings(
        name=config.name,
        peers=peers,
        founds_with=founds,
        token=_read_token(Path(config.cluster_token_file)),
        listen_peers=config.listen_peers or peers[config.name],
        client_address=config.advertise_client,
        zone=config.zone,
        tls=_peer_tls(config),
    )


def _peer_tls(config: Config) -> PeerTlsSettings | None:
    if not config.peer_tls_cert_file:
        return None
    return PeerTlsSettings(
        config.peer_tls_cert_file, config.peer_tls_key_file, config.peer_tls_ca_file
    )


def _read_token(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise ConfigError(f"cluster_token_file: {path}: {error.strerror}") from error
    if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
        raise ConfigError(
            f"cluster_token_file: {path} holds {len(token)} bytes; it must be {TOKEN_BYTES_MIN} to "
            f"{TOKEN_BYTES_MAX}, for example from: openssl rand -hex 32"
        )
    return token


GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Data": ("data_dir", "memory", "new", "trust_clock", "storage_quota_bytes"),
    "Cluster": ("name", "peers", "initial_nodes", "cluster_token_file", "zone"),
    "Addresses": (
        "listen",
        "advertise_client",
        "listen_peers",
        "listen_admin",
        "insecure",
        "insecure_admin",
    ),
    "TLS for clients": ("tls_cert_file", "tls_key_file", "tls_client_ca_file", "tls_ca_file"),
    "TLS between nodes": ("peer_tls_cert_file", "peer_tls_key_file", "peer_tls_ca_file"),
    "Operation": (
        "log_bytes_kept",
        "scrub_bytes_per_s",
        "shutdown_timeout_ms",
        "log_format",
        "log_level",
    ),
}
"""The headings of the docs, each with the names of its settings."""

_LINE_CHARS: Final = 100


def markdown() -> str:
    """All settings for the docs, by `GROUPS`."""
    by_name = {setting.name: setting for setting in SETTINGS}
    parts = []
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += (_section(by_name[name]) for name in names)
    return "\n".join(parts)


def _section(setting: Setting) -> str:
    description = textwrap.fill(
        setting.description, _LINE_CHARS, break_long_words=False, break_on_hyphens=False
    )
    return (
        f"### `{setting.name}`\n\n"
        f"Environment `{setting.variable}`, flag `{setting.flag}`, "
        f"default `{_toml(setting.default)}`.\n\n"
        f"{description}\n"
    )


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else msgspec.json.encode(value).decode()
