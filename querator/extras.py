"""The extras of the package: the modules that each brings, and the command that installs it.

    querator[server]    a node: `querator serve`, `querator.Node`, commands on a data directory
    querator[spark]     the data source and the pipelines of Spark
    querator[reload]    `querator worker --reload`

An installation without an extra is complete for programs that only produce and consume. This module
imports nothing that an extra brings.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, Literal

Extra = Literal["server", "spark", "reload"]

MODULES: Final[dict[Extra, tuple[str, ...]]] = {
    "server": (
        "cronsim",
        "grpc_health",
        "grpc_reflection",
        "lmdb",
        "pysyncobj",
        "sortedcontainers",
        "starlette",
        "structlog",
        "uvicorn",
        "zlib_ng",
    ),
    "spark": ("matplotlib", "pyarrow", "pyspark"),
    "reload": ("watchfiles",),
}
"""Root modules of the packages of each extra."""


class MissingExtra(ImportError):
    """The packages of an extra are not installed. The message has the command that installs
    them. `extra` is the name of the extra, `module` the missing module.
    """

    def __init__(self, extra: Extra, what: str, module: str) -> None:
        super().__init__(
            f"{what} needs querator[{extra}] ({module} is not installed): {install_command(extra)}",
            name=module,
        )
        self.extra: Final = extra
        self.module: Final = module


def install_command(extra: Extra) -> str:
    """The shell command that adds the extra to the environment of this process."""
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} 'querator[{extra}]'"
    return f"{python} -m pip install 'querator[{extra}]'"


def require(extra: Extra, what: str) -> None:
    """Raises MissingExtra if a module of the extra is not installed. Imports none of them. `what`
    begins the message.
    """
    for module in MODULES[extra]:
        if find_spec(module) is None:
            raise MissingExtra(extra, what, module)


@contextmanager
def needed(extra: Extra, what: str) -> Iterator[None]:
    """For imports of code that needs an extra. Raises MissingExtra for a missing module of it;
    other errors pass. `what` begins the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in MODULES[extra]:
            raise
        raise MissingExtra(extra, what, module) from error
