"""Loads settings. The first source with a value wins: flag of `querator serve`, environment
(`QUERATOR_` and the name in capitals), TOML file, default. Unknown or malformed values are refused
with one line that names the place:

* unknown keys of the file and unknown flags are errors;
* an unknown `QUERATOR_…` in the environment is an error when it is similar to a setting, and
  ignored otherwise, because other programs set variables too (Kubernetes does for every service).
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from querator.config.checks import check
from querator.config.errors import ConfigError
from querator.config.settings import ENVIRONMENT_PREFIX, SETTINGS, Config, Setting
from querator.config.sizes import parse_size

FILE_VARIABLE: Final = "QUERATOR_CONFIG"
NEAR: Final = 0.6
MISTAKEN: Final = 0.8
"""Similarity of two names, 0 to 1: from NEAR on one may be meant for the other, from MISTAKEN on it
surely is.
"""

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def load(
    *,
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Config:
    """Returns the effective settings. `flags` has the given flags by name. `file` None: the file
    that QUERATOR_CONFIG names, if any.

    Raises ConfigError.
    """
    path = file or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    values: dict[str, Any] = {}
    if path is not None:
        values |= _from_file(path)
    values |= _from_environment(environment)
    for name, value in flags.items():
        values[name] = _converted(_BY_NAME[name], value, _BY_NAME[name].flag, strict=False)
    config = Config(**values)
    check(config)
    return config


def wanted_log_format(
    *,
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> str:
    """The value of `log_format` in these sources, also if other settings are wrong; empty if no
    source has one that can be read. For the report of wrong settings.
    """
    setting = _BY_NAME["log_format"]
    for given in (flags.get(setting.name), environment.get(setting.variable)):
        if given:
            return str(given)
    path = file or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    if path is None:
        return ""
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8")).get(setting.name, ""))
    except (OSError, ValueError):
        return ""


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    values = {}
    for name, value in table.items():
        if name not in _BY_NAME:
            raise ConfigError(f"{path}: there is no setting {name!r}{_hint(name, _BY_NAME, NEAR)}")
        values[name] = _converted(_BY_NAME[name], value, f"{path}: {name}", strict=True)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {setting.variable: setting for setting in SETTINGS}
    values = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FILE_VARIABLE:
            continue
        if variable in known:
            setting = known[variable]
            values[setting.name] = _converted(setting, text, variable, strict=False)
        elif hint := _hint(variable, known, MISTAKEN):
            raise ConfigError(f"{variable}: there is no such setting{hint}")
    return values


def _hint(name: str, known: Mapping[str, Any], alike: float) -> str:
    """Suggests similar names; empty when there are none. The common prefix of variables does not
    count as similarity.
    """
    bare = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in known}
    found = difflib.get_close_matches(
        name.removeprefix(ENVIRONMENT_PREFIX), bare, n=3, cutoff=alike
    )
    near = [bare[each] for each in found]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _converted(setting: Setting, value: Any, place: str, *, strict: bool) -> Any:
    if setting.in_bytes and isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from error
    try:
        return msgspec.convert(value, setting.type, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place} is {value!r}; write {_allowed(setting)}") from error


def _allowed(setting: Setting) -> str:
    """What values the setting may have."""
    bare, *rules = get_args(setting.type)
    if bare is bool:
        return "true or false"
    if get_origin(bare) is Literal:
        return f"one of {', '.join(get_args(bare))}"
    if bare is str:
        return "a text"
    least, most = rules[0].ge, rules[0].le
    unit = " of bytes, or for example 10GiB," if setting.in_bytes else ""
    upto = "" if most is None else f" to {most}"
    return f"a whole number{unit} from {least}{upto}{'' if upto else ' on'}"
