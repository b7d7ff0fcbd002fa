"""Every setting of a node: `settings` has them, `loading` says where they come from, `checks` what
they demand of each other, `addresses` what addresses may be, `files` whether files have changed.
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
