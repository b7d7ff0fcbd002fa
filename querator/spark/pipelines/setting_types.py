"""Types of settings, because programs are not always checked by mypy: one text where a list is
expected would be taken for a list of letters.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_origin, get_type_hints

import msgspec

_LISTS: Final = (list, tuple, set, frozenset)


def find_fault(settings: msgspec.Struct) -> str:
    """What is wrong with the types of the fields, with the field and the value; empty if nothing
    is.
    """
    hints = get_type_hints(type(settings))
    faults = (
        _fault(name, getattr(settings, name), hints[name]) for name in settings.__struct_fields__
    )
    return next(filter(None, faults), "")


def _fault(name: str, value: Any, hint: Any) -> str:
    if hint is str:
        return "" if isinstance(value, str) else _not_a_text(name, value)
    if get_origin(hint) is tuple:
        return next(_in_list(name, value), "")
    if get_origin(hint) is not None and issubclass(_class(hint), Mapping):
        return next(_in_mapping(name, value), "")
    if hint in (int, float):
        whole = hint is int
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        kind = "a whole number" if whole else "a number"
        return "" if good else f"{name} is {value!r}: give {kind}"
    if hint is bool:
        return "" if isinstance(value, bool) else f"{name} is {value!r}: give True or False"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "" if isinstance(value, hint) else f"{name} is {value!r}: give a {hint.__name__}"
    return ""


def _class(hint: Any) -> type:
    origin = get_origin(hint)
    return origin if isinstance(origin, type) else object


def _not_a_text(name: str, value: Any) -> str:
    way_out = "one text, not a list" if isinstance(value, _LISTS) else "a text"
    return f"{name} is {value!r}: give {way_out}"


def _in_list(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield f"{name} is {value!r}: give a list of texts, [{value!r}]"
    elif not isinstance(value, (list, tuple)):
        yield f"{name} is {value!r}: give a list of texts"
    else:
        for each in value:
            if not isinstance(each, str):
                yield f"{name} has {each!r}: give a list of texts"


def _in_mapping(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{name} is {value!r}: give a dict of texts by name"
        return
    for key, each in value.items():
        if not (isinstance(key, str) and isinstance(each, str)):
            yield f"{name} has {key!r}: {each!r}; give a dict of texts by name"
