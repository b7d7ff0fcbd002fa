"""Every setting of a node, from one typed source.

A setting comes from the first of: flag of `querator serve`, environment (`QUERATOR_` and its name
in capitals), TOML file, default. The fields of `Config` are the source of all of them and of
`docs/configuration.md`. What is unknown or malformed is refused with one line that names the place:

* unknown keys of the file and unknown flags are errors;
* an unknown `QUERATOR_…` in the environment is an error when it is nearly a setting, and ignored
  otherwise, for others put variables there too (Kubernetes does for every service).
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from querator.config.addresses import (
    check_address,
    check_name,
    check_reachable,
    is_any,
    parse_address,
    parse_peers,
)
from querator.config.errors import ConfigError
from querator.model.limits import LOG_BYTES_KEPT, LOG_BYTES_KEPT_MIN

ENVIRONMENT_PREFIX: Final = "QUERATOR_"
FILE_VARIABLE: Final = "QUERATOR_CONFIG"
NEAR: Final = 0.6
MISTAKEN: Final = 0.8
"""How alike two names are, 0 to 1, when one may be meant for the other, and when it surely is."""


LogFormat = Literal["auto", "json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


STORAGE_QUOTA_BYTES_MIN = 512 * 1024 * 1024
"""An eighth of the quota, 64 MiB at most, is kept free for completes and deletes: with less, what
many partitions lease in one turn may not fit into it."""


NODES_INITIAL_MAX = 7
"""Each founding node has a replica of the placement group: more would slow it and make it no safer.
"""
TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 4096


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with their defaults. Descriptions go into `--help` and the docs."""

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
            "missing. Without it (or `peers`) such a directory is refused, for a mistyped one "
            "would become a new cluster silently."
        ),
    ] = False
    name: Annotated[
        str,
        Meta(
            description="Name of the node, kept with its data for ever. Letters, digits, `.`, `-` "
            "and `_`; default: that of the data, `node-1` for new data. Required with `peers`."
        ),
    ] = ""
    peers: Annotated[
        str,
        Meta(
            description="All nodes of the cluster with the addresses at which they reach each "
            "other, `NAME=HOST:PORT,…`, the same for every node, itself included. Empty: a node "
            "that is alone."
        ),
    ] = ""
    initial_nodes: Annotated[
        int,
        Meta(
            ge=0,
            le=NODES_INITIAL_MAX,
            description="How many of `peers`, counted from the first, form a new cluster when they "
            "are all there; 0 means all. The same for every node.",
        ),
    ] = 0
    cluster_token_file: Annotated[
        str,
        Meta(
            description="File with the secret that the nodes prove to each other that they know, "
            "at least 16 bytes. Required with `peers`."
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
            "in `peers`."
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(
            description="Where the node is, in your words: what fails together, as a rack does. "
            "It is shown with the node."
        ),
    ] = ""
    listen_admin: Annotated[
        str,
        Meta(
            description="Address and port of `/metrics`, `/livez` and `/readyz` over HTTP, as "
            "`listen`; empty: none. A second node on the machine needs another port."
        ),
    ] = "127.0.0.1:4471"
    tls_cert_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate that `listen` shows, and the node where it "
            "connects to others: the node's own first, then those that lead to the authority. "
            "Empty: no TLS. When the files change, new connections to the node see that."
        ),
    ] = ""
    tls_key_file: Annotated[
        str, Meta(description="PEM file with the key of `tls_cert_file`, not encrypted.")
    ] = ""
    tls_client_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities whose certificates clients and the other "
            "nodes must show at `listen` (mutual TLS). Empty: none is asked for."
        ),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities that this node trusts where it connects to "
            "the clients' ports of other nodes. Required with `peers` and `tls_cert_file`."
        ),
    ] = ""
    insecure: Annotated[
        bool,
        Meta(
            description="Allow addresses to listen on that are not loopback, although whoever "
            "reaches `listen` may do everything (unless `tls_client_ca_file` asks who it is), and "
            "whoever reaches `listen_admin` reads the names and counts of all queues."
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
            description="Most bytes that data may take; 0 means what the disk has (with `memory`: "
            "1 GiB), else at least 512 MiB. Beyond it produce is refused with STORAGE_FULL.",
        ),
    ] = 0
    log_bytes_kept: Annotated[
        int,
        Meta(
            ge=LOG_BYTES_KEPT_MIN,
            description="Bytes of log that a copy of a partition keeps behind its state; up to "
            "four times as much while a node that answers needs it. A node that was away while "
            "more went through a partition gets the partition's whole state.",
        ),
    ] = LOG_BYTES_KEPT
    shutdown_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="How long calls that are under way may take to end at shutdown, ms.",
        ),
    ] = 5_000
    log_format: Annotated[
        LogFormat, Meta(description="`json`, `text`, or `auto`: text on a terminal, else JSON.")
    ] = "auto"
    log_level: Annotated[
        LogLevel,
        Meta(description="Least level that is logged: `debug`, `info`, `warning` or `error`."),
    ] = "info"


class ClusterSettings(msgspec.Struct, frozen=True):
    """What a node of several must know. `peers` are the addresses of all nodes by name, its own
    included; `founds_with` the names of those that form a new cluster.
    """

    name: str
    peers: Mapping[str, str]
    founds_with: tuple[str, ...]
    token: bytes
    listen_peers: str
    client_address: str
    zone: str = ""


class TlsSettings(msgspec.Struct, frozen=True):
    """PEM files of a node; `client_ca_file` and `ca_file` may be empty."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    ca_file: str = ""


class Setting(msgspec.Struct, frozen=True):
    """One setting, described. `name` is its key in the file."""

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
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def load(
    *,
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Config:
    """The settings in force. `flags` has those that were given, by name. `file` None: the one that
    QUERATOR_CONFIG names, if any.

    Raises ConfigError.
    """
    path = file or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    values: dict[str, Any] = {}
    if path is not None:
        values |= _from_file(path)
    values |= _from_environment(environment)
    for name, value in flags.items():
        values[name] = _converted(_BY_NAME[name], value, _BY_NAME[name].flag, strict=False)
    config = Config(**values)
    _check(config)
    return config


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    values = {}
    for name, value in table.items():
        if name not in _BY_NAME:
            raise ConfigError(f"{path}: there is no setting {name!r}{_hint(name, _BY_NAME, NEAR)}")
        values[name] = _converted(_BY_NAME[name], value, f"{path}: {name}", strict=True)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {setting.variable: setting for setting in SETTINGS}
    values = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FILE_VARIABLE:
            continue
        if variable in known:
            setting = known[variable]
            values[setting.name] = _converted(setting, text, variable, strict=False)
        elif hint := _hint(variable, known, MISTAKEN):
            raise ConfigError(f"{variable}: there is no such setting{hint}")
    return values


def _hint(name: str, known: Mapping[str, Any], alike: float) -> str:
    """Names what may have been meant; empty when nothing is near. What all variables begin with
    makes none of them alike.
    """
    bare = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in known}
    found = difflib.get_close_matches(
        name.removeprefix(ENVIRONMENT_PREFIX), bare, n=3, cutoff=alike
    )
    near = [bare[each] for each in found]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _converted(setting: Setting, value: Any, place: str, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, setting.type, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {error}{_choices(setting)}") from error


def _choices(setting: Setting) -> str:
    """What a setting may be, if that is one of a few words; else empty."""
    bare = get_args(setting.type)[0]
    return f"; it is one of {', '.join(get_args(bare))}" if get_origin(bare) is Literal else ""


def _check(config: Config) -> None:
    """What one setting demands of another, and what its type cannot say."""
    if 0 < config.storage_quota_bytes < STORAGE_QUOTA_BYTES_MIN:
        raise ConfigError(
            f"storage_quota_bytes is {config.storage_quota_bytes}; "
            f"the least is {STORAGE_QUOTA_BYTES_MIN}, or 0 for what the disk has"
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
    if config.peers:
        _check_cluster(config)
    else:
        for name in _OF_CLUSTERS:
            if getattr(config, name):
                raise ConfigError(f"{name} says nothing without peers: give --peers too")


_OF_CLUSTERS: Final = ("initial_nodes", "cluster_token_file", "listen_peers")


def _check_cluster(config: Config) -> None:
    peers = parse_peers(config.peers)
    if config.memory:
        raise ConfigError("memory and peers exclude each other: a cluster's nodes keep their data")
    if config.new:
        raise ConfigError(
            "new and peers exclude each other: --new makes a cluster of this node alone, nodes "
            "with --peers form one together"
        )
    if not config.name:
        raise ConfigError("name is missing: with --peers say which of them this is, --name NAME")
    if config.name not in peers:
        raise ConfigError(
            f"peers: {config.name}, which is this node, is not among {', '.join(peers)}; every "
            "node gets the same list, itself included"
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
    if config.listen_peers:
        parse_address(config.listen_peers, setting="listen_peers")
    if config.advertise_client:
        check_reachable("advertise_client", config.advertise_client)
    else:
        host, _ = parse_address(config.listen)
        if is_any(host):
            raise ConfigError(
                f"advertise_client is missing: nobody can connect to {config.listen}; name the "
                "address at which clients and the other nodes reach this node"
            )


def _check_tls(config: Config) -> None:
    if not config.tls_cert_file:
        for name in ("tls_key_file", "tls_client_ca_file", "tls_ca_file"):
            if getattr(config, name):
                raise ConfigError(f"{name} says nothing without tls_cert_file: give that too")
    elif not config.tls_key_file:
        raise ConfigError("tls_key_file is missing: tls_cert_file needs its key")
    elif config.peers and not config.tls_ca_file:
        raise ConfigError(
            "tls_ca_file is missing: with peers and tls_cert_file say which authorities vouch for "
            "the other nodes"
        )
    elif config.tls_ca_file and not config.peers:
        raise ConfigError("tls_ca_file says nothing without peers: the node dials nobody")


def tls_settings(config: Config) -> TlsSettings | None:
    """None: no TLS."""
    if not config.tls_cert_file:
        return None
    return TlsSettings(
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
        client_ca_file=config.tls_client_ca_file,
        ca_file=config.tls_ca_file,
    )


def cluster_settings(config: Config) -> ClusterSettings | None:
    """What the settings say of the cluster, with the token read; None for a node that is alone.

    Blocks. Raises ConfigError.
    """
    if not config.peers:
        return None
    peers = parse_peers(config.peers)
    return ClusterSettings(
        name=config.name,
        peers=peers,
        founds_with=tuple(list(peers)[: config.initial_nodes or None]),
        token=_read_token(Path(config.cluster_token_file)),
        listen_peers=config.listen_peers or peers[config.name],
        client_address=config.advertise_client,
        zone=config.zone,
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


def markdown() -> str:
    """The table of all settings for the docs."""
    lines = [
        "| key in the file | environment | flag | default | |",
        "|---|---|---|---|---|",
    ]
    lines.extend(
        f"| `{setting.name}` | `{setting.variable}` | `{setting.flag}` "
        f"| `{_toml(setting.default)}` | {setting.description} |"
        for setting in SETTINGS
    )
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else msgspec.json.encode(value).decode()
