"""Every setting of a node, from one typed source.

A setting comes from the first of: flag of `querator serve`, environment (`QUERATOR_` and its name
in capitals), TOML file, default. The fields of `Config` are the source of all of them and of
`docs/configuration.md`. What is unknown or malformed is refused with one line that names the place:

* unknown keys of the file and unknown flags are errors;
* an unknown `QUERATOR_…` in the environment is an error when it is nearly a setting, and ignored
  otherwise, for others put variables there too (Kubernetes does for every service).
"""

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

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


class ConfigError(Exception):
    """A setting cannot be used; the message is one line that says which, where and why."""


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
            description="Make a new cluster when `data_dir` is empty or missing. Without it such "
            "a directory is refused, for a mistyped one would become a new cluster silently."
        ),
    ] = False
    listen: Annotated[
        str,
        Meta(description="Address and port for clients, `HOST:PORT`; port 0 takes a free one."),
    ] = "127.0.0.1:4470"
    listen_admin: Annotated[
        str,
        Meta(
            description="Address and port of `/metrics`, `/livez` and `/readyz` over HTTP, as "
            "`listen`; empty: none. A second node on the machine needs another port."
        ),
    ] = "127.0.0.1:4471"
    insecure: Annotated[
        bool,
        Meta(
            description="Allow addresses to listen on that are not loopback, although whoever "
            "reaches `listen` may do everything, and whoever reaches `listen_admin` reads the "
            "names and counts of all queues."
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
    """Names what may have been meant; empty when nothing is near."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=alike)
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
    _check_address("listen", config.listen, insecure=config.insecure)
    if config.listen_admin:
        _check_address("listen_admin", config.listen_admin, insecure=config.insecure)


def _check_address(setting: str, text: str, *, insecure: bool) -> None:
    host, _ = parse_address(text, setting=setting)
    if not _is_loopback(host) and not insecure:
        raise ConfigError(
            f"{setting}: {text} can be reached from other machines, and there is no "
            "authentication; add --insecure if that is what you want"
        )


def parse_address(text: str, *, setting: str = "listen") -> tuple[str, int]:
    """Host (without brackets) and port of `HOST:PORT`. Raises ConfigError, naming `setting`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{setting}: {text!r}: write an IPv6 address as [ADDRESS]:PORT")
    if not host or not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{setting}: {text!r} is not HOST:PORT, for example 127.0.0.1:4470")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    """Names other than `localhost` may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
