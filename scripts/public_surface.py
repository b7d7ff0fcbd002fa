"""What programs may use of `import querator`, as text: `python -m scripts.public_surface`.

The text is in tests/unit/public_surface.txt, and a test compares it: a name, a parameter or a
default changes only together with that file. `--write` writes the file.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

import querator
from querator import errors

MADE_BY_PROGRAMS = ("Client", "Item", "Node", "SyncClient", "Tls")
"""The other classes are what calls return: their parameters may change."""
FILE = Path(__file__).parents[1] / "tests" / "unit" / "public_surface.txt"


def surface() -> str:
    lines: list[str] = []
    for name in sorted(querator.__all__, key=str.lower):
        value = getattr(querator, name)
        if inspect.isclass(value):
            lines += _class(name, value)
        elif not inspect.ismodule(value):
            lines.append(name)
    lines += [f"errors.{line}" for line in _errors()]
    return "\n".join(lines) + "\n"


def _class(name: str, value: type) -> Iterator[str]:
    yield f"{name}{_parameters(value) if name in MADE_BY_PROGRAMS else ''}"
    if issubclass(value, Exception):
        return
    for member in sorted(dir(value)):
        if member.startswith("_"):
            continue
        found = inspect.getattr_static(value, member)
        if isinstance(found, classmethod | staticmethod):
            found = found.__func__
        yield f"{name}.{member}{_parameters(found) if inspect.isfunction(found) else ''}"


def _errors() -> Iterator[str]:
    for name in sorted(errors.__all__):
        [base, *_] = getattr(errors, name).__bases__
        yield f"{name}({base.__name__})"


def _parameters(value: Any) -> str:
    """Names and defaults, without the types."""
    empty = inspect.Parameter.empty
    given = inspect.signature(value)
    kept = [
        each.replace(annotation=empty)
        for each in given.parameters.values()
        if each.name not in ("self", "cls")
    ]
    text = str(given.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    for each in given.parameters.values():
        if each.kind is inspect.Parameter.VAR_KEYWORD and get_origin(each.annotation) is Unpack:
            [options] = get_args(each.annotation)
            text += f" {each.name}: {', '.join(options.__annotations__)}"
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(surface())
    else:
        print(surface(), end="")
