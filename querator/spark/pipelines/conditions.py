"""Spark's error conditions in the words of the pipelines.

A condition is Spark's name of a kind of error, such as `UNRESOLVED_COLUMN.WITH_SUGGESTION`. It has
parameters by name, of which the sentences here are made.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Parameters = Mapping[str, str]
_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`")
_NAME: Final = re.compile(r"`(?:[^`]|``)+`(?:\.`(?:[^`]|``)+`)*")
_TYPES: Final = (
    "bigint", "binary", "boolean", "byte", "date", "decimal", "double", "float", "int", "integer",
    "long", "short", "smallint", "string", "timestamp", "timestamp_ntz", "tinyint",
)  # fmt: skip
_SIMILAR_MAX: Final = 3
_SHOWN_MAX: Final = 200
"""Characters of a record in a message."""


def in_words(condition: str, parameters: Parameters, functions: Callable[[], Sequence[str]]) -> str:
    """A sentence about the error; empty for a condition that has no words here. `functions` gives
    the names of SQL functions.
    """
    if condition == "UNRESOLVED_ROUTINE":
        return _no_function(parameters, functions())
    sentence = _SENTENCES.get(condition) or _SENTENCES.get(condition.partition(".")[0])
    try:
        return "" if sentence is None else sentence(parameters)
    except (KeyError, ValueError):
        # Another version of Spark has other parameters: its own message is shown.
        return ""


def _names(text: str) -> list[str]:
    """Names in Spark's quotes: "`a`, `b`.`c`" gives a and b.c. A name may have a comma."""
    quoted = [".".join(_QUOTED.findall(name)) for name in _NAME.findall(text)]
    return quoted or [name.strip() for name in text.strip("[]").split(", ")]


def _or(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]


def _no_column(parameters: Parameters) -> str:
    [name] = _names(parameters["objectName"])
    proposal = parameters.get("proposal", "")
    if not proposal:
        return f"there is no column {name}"
    return f"there is no column {name}; did you mean {_or(_names(proposal))}?"


def _no_field(parameters: Parameters) -> str:
    names = _names(parameters["fields"])
    return f"there is no field {_names(parameters['fieldName'])[0]}; there are {_or(names)}"


def _no_function(parameters: Parameters, functions: Sequence[str]) -> str:
    [name] = _names(parameters.get("routineName", "")) or [""]
    near = difflib.get_close_matches(name.lower(), functions, n=_SIMILAR_MAX, cutoff=0.7)
    words = f"there is no function {name}"
    return f"{words}; did you mean {_or(near)}?" if near else words


def _syntax(parameters: Parameters) -> str:
    return f"this is not SQL: syntax error at {parameters['error']}{parameters.get('hint', '')}"


def _no_type(parameters: Parameters) -> str:
    name = parameters["typeName"].strip('"')
    near = difflib.get_close_matches(name.lower(), _TYPES, n=_SIMILAR_MAX)
    return f"there is no type {name}" + (f"; did you mean {_or(near)}?" if near else "")


def _arguments(parameters: Parameters) -> str:
    [name] = _names(parameters["functionName"])
    return (
        f"function {name} has the wrong number of arguments: {parameters['actualNum']}; it takes "
        f"{parameters['expectedNum']}"
    )


def _not_a_condition(parameters: Parameters) -> str:
    kind = parameters["type"].strip('"').lower()
    return f"{_text(parameters['filter'])} is {kind}: it must be true or false, as a comparison is"


def _bad_cast(parameters: Parameters) -> str:
    kind = _type(parameters["targetType"])
    return (
        f"the value {_shown(parameters['expression'])} is no {kind}; try_cast(… AS {kind}) makes "
        "null of such a value"
    )


def _no_cast(parameters: Parameters) -> str:
    return f"{_type(parameters['srcType'])} cannot become {_type(parameters['targetType'])}"


def _wrong_type(parameters: Parameters) -> str:
    return (
        f"{_text(parameters['sqlExpr'])}: argument {_text(parameters['inputSql'])} is "
        f"{_type(parameters['inputType'])}; it must be {_type(parameters['requiredType'])}"
    )


def _raised(parameters: Parameters) -> str:
    return f"raise_error: {_shown(parameters['errorMessage'])}"


def _csv_record(parameters: Parameters) -> str:
    return f"a record does not have the columns of the others: {_shown(parameters['badRecord'])}"


def _no_path(parameters: Parameters) -> str:
    return f"there is nothing at {parameters['path']}"


def _no_files(parameters: Parameters) -> str:
    return f"there are no {parameters['format']} files"


def _no_java(_: Parameters) -> str:
    return (
        "Java has ended before Spark began. A setting such as spark.driver.memory may be wrong; "
        "with the setting spark.log.level=WARN Java says why"
    )


def _wrong_setting(parameters: Parameters) -> str:
    kind = parameters.get("confType", "")
    must_be = f"it must be {kind}" if kind else parameters.get("confRequirement", "it is wrong")
    return f"setting {_text(parameters['confName'])} is {parameters['confValue']!r}: {must_be}"


def _text(quoted: str) -> str:
    return quoted.strip('"')


def _type(quoted: str) -> str:
    return quoted.replace('"', "").lower()


def _shown(text: str) -> str:
    """A value of the user's data, on one line and of bounded length."""
    if "\ufffd" in text or any(not (each.isprintable() or each.isspace()) for each in text):
        return "bytes that are not text"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"


_SENTENCES: Final[dict[str, Callable[[Parameters], str]]] = {
    "UNRESOLVED_COLUMN": _no_column,
    "UNRESOLVED_MAP_KEY": _no_column,
    "FIELD_NOT_FOUND": _no_field,
    "PARSE_SYNTAX_ERROR": _syntax,
    "UNSUPPORTED_DATATYPE": _no_type,
    "WRONG_NUM_ARGS": _arguments,
    "DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN": _not_a_condition,
    "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE": _wrong_type,
    "DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION": _no_cast,
    "CAST_INVALID_INPUT": _bad_cast,
    "USER_RAISED_EXCEPTION": _raised,
    "MALFORMED_CSV_RECORD": _csv_record,
    "PATH_NOT_FOUND": _no_path,
    "UNABLE_TO_INFER_SCHEMA": _no_files,
    "INVALID_CONF_VALUE": _wrong_setting,
    "JAVA_GATEWAY_EXITED": _no_java,
}
