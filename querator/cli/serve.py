"""`querator serve`: one node in a process of its own.

    exit code
    0    stopped by SIGTERM or SIGINT: everything accepted was answered, or nothing was accepted
    1    did not start: the directory, the port, or the stored data
    2    a setting is wrong
    6    stopped by a failure, of the disk or of Querator itself; acknowledged items are on disk,
         and a new start continues from there
    7    removed from its cluster: no start on this data will succeed

The first signal begins an orderly stop, a second one ends the process at once. When clients are
served, standard output has one line, `querator ready address=HOST:PORT` (and ` admin=HOST:PORT` if
there is an admin port). Everything else goes to standard error: log lines, and a line for people
with the address or the error. With `log_format` json that line is JSON, too (`serve.ready`,
`serve.ended`).
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click

from querator import telemetry
from querator.config import (
    SETTINGS,
    ClusterSettings,
    Config,
    ConfigError,
    Setting,
    cluster_settings,
    load,
    tls_settings,
    wanted_log_format,
)
from querator.model.errors import QueratorError
from querator.node import SWITCH_INTERVAL_S, Node, NodeFailedError, StoppedEarlyError
from querator.raft.tcp.channel import PeerTlsError
from querator.storage.environment import StorageError
from querator.storage.identity import NodeRemoved
from querator.wire.tls import TlsError

_METAVARS: Final = {
    "data_dir": "DIR",
    "listen": "HOST:PORT",
    "listen_admin": "HOST:PORT",
    "listen_peers": "HOST:PORT",
    "advertise_client": "HOST:PORT",
    "name": "NAME",
    "peers": "NAME=HOST:PORT,…",
    "cluster_token_file": "FILE",
    "peer_tls_ca_file": "FILE",
    "peer_tls_cert_file": "FILE",
    "peer_tls_key_file": "FILE",
    "tls_ca_file": "FILE",
    "tls_cert_file": "FILE",
    "tls_client_ca_file": "FILE",
    "tls_key_file": "FILE",
    "zone": "ZONE",
}


_log = telemetry.logger(__name__)


class NotStarted(click.ClickException):
    exit_code = 1


class BadSetting(click.ClickException):
    exit_code = 2


class Failed(click.ClickException):
    exit_code = 6


class Removed(click.ClickException):
    exit_code = 7


def _option(setting: Setting) -> Callable[[Any], Any]:
    """A setting as an option. None means not given: then the environment or the file decides."""
    bare = get_args(setting.type)[0]
    text = setting.description.replace("`", "")
    if bare is bool:
        flags = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.option(flags, setting.name, default=None, help=text)
    return click.option(
        setting.flag, setting.name, default=None, metavar=_metavar(setting, bare), help=text
    )


def _metavar(setting: Setting, bare: Any) -> str:
    if get_origin(bare) is Literal:
        return f"[{'|'.join(get_args(bare))}]"
    if bare is int:
        return "SIZE" if setting.in_bytes else "N"
    return _METAVARS[setting.name]


def _options(command: Any) -> Any:
    for setting in reversed(SETTINGS):
        command = _option(setting)(command)
    return command


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="TOML file with settings; QUERATOR_CONFIG names it too.",
)
@_options
def serve(file: Path | None, **flags: Any) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Every option can also be set in the environment (--data-dir as QUERATOR_DATA_DIR) or in the file
    (as data_dir). A new cluster of one node needs --new once. Nodes that are given --peers form a
    cluster together.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        config, cluster = _settings(given, file)
        telemetry.set_up(format_=config.log_format, level=config.log_level, stream=sys.stderr)
        asyncio.run(_serve(config, cluster))
    except (BadSetting, NotStarted, Failed, Removed) as error:
        if wanted_log_format(flags=given, file=file) != "json":
            raise
        if isinstance(error, BadSetting):
            telemetry.set_up(format_="json", stream=sys.stderr)
        # A program reads the lines: the last one is no exception.
        _log.critical("serve.ended", reason=error.message, exit_code=error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from error


def _settings(given: Mapping[str, Any], file: Path | None) -> tuple[Config, ClusterSettings | None]:
    """Raises BadSetting."""
    try:
        config = load(flags=given, file=file)
        return config, cluster_settings(config)
    except ConfigError as error:
        raise BadSetting(str(error)) from error


async def _serve(config: Config, cluster: ClusterSettings | None) -> None:
    node = Node(
        config.data_dir or None,
        memory=config.memory,
        new=config.new,
        name=config.name,
        cluster=cluster,
        listen=config.listen,
        listen_admin=config.listen_admin,
        tls=tls_settings(config),
        storage_quota_bytes=config.storage_quota_bytes,
        log_bytes_kept=config.log_bytes_kept,
        scrub_bytes_per_s=config.scrub_bytes_per_s,
        trust_clock=config.trust_clock,
        shutdown_timeout_ms=config.shutdown_timeout_ms,
        switch_interval_s=SWITCH_INTERVAL_S,
    )
    _stop_by_signal(node)
    try:
        await node.start()
    except StoppedEarlyError:
        return
    except NodeFailedError as error:
        raise _failed(error) from error
    except NodeRemoved as error:
        raise Removed(str(error)) from error
    except (StorageError, OSError, QueratorError, TlsError, PeerTlsError) as error:
        raise NotStarted(str(error)) from error
    # Objects of the start live as long as the process. Frozen, they no longer add 30 ms without
    # answers to each full collection.
    gc.collect()
    gc.freeze()
    try:
        _announce(node, config)
        await node.run_until_stopped()
    except NodeFailedError as error:
        raise _failed(error) from error
    finally:
        await node.stop()


def _changed(config: Config) -> dict[str, Any]:
    """The settings that differ from their defaults. None of them is a secret: secrets are files."""
    values = {one.name: getattr(config, one.name) for one in SETTINGS}
    return {one.name: values[one.name] for one in SETTINGS if values[one.name] != one.default}


def _failed(error: NodeFailedError) -> click.ClickException:
    if isinstance(error.__cause__, NodeRemoved):
        return Removed(str(error))
    return Failed(str(error))


def _stop_by_signal(node: Node) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        node.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _announce(node: Node, config: Config) -> None:
    _log.info("serve.settings", **_changed(config))
    if node.durable:
        where = f"data in {Path(config.data_dir).resolve()}, durable"
    else:
        where = "in memory, NOT DURABLE: everything is lost when this process ends"
    release = version("querator")
    if config.log_format == "json":
        _log.info("serve.ready", release=release, address=node.address, storage=where)
    else:
        click.echo(f"querator {release} on {node.address}, {where}", err=True)
    admin = f" admin={node.admin_address}" if node.admin_address else ""
    click.echo(f"querator ready address={node.address}{admin}")
