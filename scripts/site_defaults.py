"""An extension of the site's signatures: defaults that are constants are shown by their values."""

import re
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from griffe import Extension, Function

_PUBLIC: Final = ("querator.client", "querator.node", "querator.sync_node", "querator.testing")
"""Packages and modules with names of the page. Others may need what is not installed."""
_CONSTANT: Final = re.compile(r"(?:\w+\.)?[A-Z][A-Z0-9_]+")


class Defaults(Extension):
    def on_function(self, *, func: Function, **_: Any) -> None:
        if not func.module.path.startswith(_PUBLIC):
            return
        for parameter in func.parameters:
            default = str(parameter.default)
            if _CONSTANT.fullmatch(default):
                value: Any = import_module(func.module.path)
                for name in default.split("."):
                    value = getattr(value, name)
                parameter.default = shown(value)


def shown(value: object) -> str:
    """The value as a program writes it."""
    if isinstance(value, timedelta):
        return repr(value).removeprefix("datetime.")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return repr(value)
