"""Every setting of a node, from flags, environment variables and a file.

Each setting is declared once, in `settings`.

    addresses  which addresses settings may have
    checks     what settings require of each other
    errors     the errors of all parts of the settings
    files      whether files that settings name have changed
    loading    where settings come from, and which source wins
    settings   every setting with its type, default and help
"""

from querator.config.addresses import parse_address, with_port
from querator.config.errors import ConfigError
from querator.config.files import times_of
from querator.config.loading import load
from querator.config.settings import (
    SETTINGS,
    ClusterSettings,
    Config,
    LogFormat,
    LogLevel,
    PeerTlsSettings,
    Setting,
    TlsSettings,
    cluster_settings,
    markdown,
    tls_settings,
)

__all__ = [
    "SETTINGS",
    "ClusterSettings",
    "Config",
    "ConfigError",
    "LogFormat",
    "LogLevel",
    "PeerTlsSettings",
    "Setting",
    "TlsSettings",
    "cluster_settings",
    "load",
    "markdown",
    "parse_address",
    "times_of",
    "tls_settings",
    "with_port",
]
