"""What every part of the settings raises."""


class ConfigError(Exception):
    """A setting cannot be used; the message is one line that says which, where and why."""
