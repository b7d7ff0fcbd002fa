"""The error of all modules of this package."""


class ConfigError(Exception):
    """A setting is invalid. The message is one line with the setting, its source and the reason."""
