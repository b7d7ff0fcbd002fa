"""Options of Spark's readers of files: which ones exist, and which ones `ingest` sets by itself.

Spark ignores an option that a reader does not know. A misspelt one would change the items silently.
"""

import difflib
from collections.abc import Mapping
from typing import Final

_DEFAULTS: Final[dict[str, dict[str, str]]] = {
    "csv": {"header": "true", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}
_OF_FILES: Final = (
    "basePath", "ignoreCorruptFiles", "ignoreMissingFiles", "modifiedAfter", "modifiedBefore",
    "pathGlobFilter", "recursiveFileLookup",
)  # fmt: skip
_OF_STREAMS: Final = (
    "cleanSource", "discardCachedInputRatio", "fileNameOnly", "latestFirst", "maxBytesPerTrigger",
    "maxCachedFiles", "maxFileAge", "maxFilesPerTrigger", "sourceArchiveDir",
)  # fmt: skip
_OF_FORMATS: Final[dict[str, tuple[str, ...]]] = {
    "csv": (
        "charset", "charToEscapeQuoteEscaping", "codec", "columnNameOfCorruptRecord",
        "columnPruning", "comment", "compression", "dateFormat", "delimiter", "emptyValue",
        "enableDateTimeParsingFallback", "encoding", "enforceSchema", "escape", "escapeQuotes",
        "extension", "header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace",
        "inferSchema", "inputBufferSize", "lineSep", "locale", "maxCharsPerColumn", "maxColumns",
        "mode", "multiLine", "nanValue", "negativeInf", "nullValue", "positiveInf", "preferDate",
        "quote", "quoteAll", "samplingRatio", "sep", "singleVariantColumn", "timeFormat",
        "timestampFormat", "timestampNTZFormat", "timeZone", "unescapedQuoteHandling",
    ),
    "json": (
        "allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers",
        "allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars",
        "allowUnquotedFieldNames", "charset", "columnNameOfCorruptRecord", "compression",
        "dateFormat", "dropFieldIfAllNull", "enableDateTimeParsingFallback", "encoding",
        "explodeEmbeddedArray", "ignoreNullFields", "inferTimestamp", "lineSep", "locale",
        "maxNestingDepth", "maxNumLen", "maxStringLen", "mode", "multiLine", "prefersDecimal",
        "pretty", "primitivesAsString", "samplingRatio", "singleVariantColumn", "sortKeys",
        "timeFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "useUnsafeRow",
        "writeNonAsciiCharacterAsCodePoint",
    ),
    "parquet": ("compression", "datetimeRebaseMode", "int96RebaseMode", "mergeSchema"),
    "text": ("compression", "encoding", "lineSep", "wholetext"),
}  # fmt: skip
"""By format. Source: `CSVOptions.getAllOptions` and its siblings in Spark 4.3, which also name old
spellings, and three limits of JSON that they do not name. A test compares them with the installed
version.
"""
_SIMILAR_MAX: Final = 2
_WAYS_OUT: Final = {
    "csv": (
        "if a quoted text has line breaks, read it by option multiLine=true (each file is then "
        "read by one task)"
    ),
    "json": (
        "if a record has several lines, read it by option multiLine=true (each file is then read "
        "by one task)"
    ),
}


def names_of(chosen: str) -> tuple[str, ...]:
    """The names of all options of a format's reader; none for a format that is not known here."""
    names = _OF_FORMATS.get(chosen)
    return () if names is None else (*names, *_OF_FILES, *_OF_STREAMS)


def find_unknown(chosen: str, options: Mapping[str, str]) -> str:
    """What is wrong with the name of an option; empty if all are known. A name with a dot is a
    setting of Hadoop or of a library, and is not checked.
    """
    known = {name.lower(): name for name in names_of(chosen)}
    for name in options:
        if not known or name.lower() in known or "." in name:
            continue
        near = difflib.get_close_matches(name.lower(), known, n=_SIMILAR_MAX, cutoff=0.7)
        meant = " or ".join(known[each] for each in near)
        listed = ", ".join((*_OF_FORMATS[chosen], *_OF_FILES))
        way_out = f"did you mean {meant}?" if meant else f"there are {listed}"
        return f"Spark's reader of {chosen} has no option {name!r}: {way_out}"
    return ""


def with_defaults(chosen: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options for Spark's reader. Those of the user come first."""
    given = {name.lower(): value for name, value in options.items()}
    defaults = dict(_DEFAULTS.get(chosen, {}))
    if chosen == "csv" and (quote := given.get("quote", '"')):
        # CSV doubles a quote within quotes (RFC 4180). Spark expects a backslash before it.
        defaults["escape"] = quote
    return {name: value for name, value in defaults.items() if name not in given} | dict(options)


def ways_out(chosen: str, options: Mapping[str, str]) -> str:
    """What to do about a record that cannot be read."""
    said = f"format is {chosen}: give the format of the files"
    if chosen not in _WAYS_OUT:
        return said
    given = {name.lower(): value.lower() for name, value in options.items()}
    if given.get("multiline") == "true":
        return f"{said}, or make nulls of such records by option mode=PERMISSIVE"
    return (
        f"{said}; {_WAYS_OUT[chosen]}; option mode=PERMISSIVE makes nulls of what cannot be read, "
        "and an item of each line"
    )
