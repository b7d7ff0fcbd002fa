"""The settings of a node: their definitions, sources and checks.

Command-line parsing is in `querator.cli`.

    addresses     parsing and checks of node names and addresses
    certificates  when the certificates of a PEM file expire
    checks        rules that a single setting's type cannot express
    errors        ConfigError
    files         detection of changed files that settings name
    listening     whether a node can listen at its addresses, and why not
    loading       the sources of settings: flags, environment, TOML file
    settings      the fields of `Config` with defaults and descriptions
    sizes         sizes in bytes, with units
"""

from querator.config.addresses import parse_address, with_port
from querator.config.certificates import EXPIRY_WARNED_S, expires_at_s, expiry_words
from querator.config.errors import ConfigError
from querator.config.files import times_of
from querator.config.listening import ListenError, check_listening, listen_error
from querator.config.loading import load, wanted_log_format
from querator.config.settings import (
    GROUPS,
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
    "EXPIRY_WARNED_S",
    "GROUPS",
    "SETTINGS",
    "ClusterSettings",
    "Config",
    "ConfigError",
    "ListenError",
    "LogFormat",
    "LogLevel",
    "PeerTlsSettings",
    "Setting",
    "TlsSettings",
    "check_listening",
    "cluster_settings",
    "expires_at_s",
    "expiry_words",
    "listen_error",
    "load",
    "markdown",
    "parse_address",
    "times_of",
    "tls_settings",
    "wanted_log_format",
    "with_port",
]
