"""Whether a file fits the format that was given for it, by its first bytes.

Spark reads a Parquet file as text without an error, and JSON as CSV, and makes items of it.
"""

import posixpath
import re
from collections.abc import Collection
from typing import Final

HEAD_BYTES: Final = 256
"""How much of a file is looked at."""
_SHOWN: Final = 20
_MAGIC: Final = (
    (b"PAR1", "Parquet"),
    (b"PARE", "Parquet"),
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"PK\x03\x04", "ZIP"),
    (b"SQLite format 3\x00", "SQLite"),
)
_GZIP: Final = b"\x1f\x8b"
_COMPRESSED: Final = re.compile(r"\.(gz|bz2|zst|zstd|lz4|snappy|deflate|xz)$", re.IGNORECASE)
"""Names of files that Spark decompresses, or that only Spark can judge."""
_CHOOSING: Final = {
    "pathglobfilter", "modifiedafter", "modifiedbefore", "encoding", "charset",
    "ignorecorruptfiles",
}  # fmt: skip
"""Options of Spark's readers with which the bytes of some file decide nothing."""
_LENIENT: Final = {"mode", "allowcomments"}
"""Options with which JSON may begin with something else."""
_BOM: Final = b"\xef\xbb\xbf"


def is_hidden(name: str) -> bool:
    """Whether Spark ignores a file of this name."""
    return name.startswith(("_", "."))


def misfit(chosen: str, head: bytes, name: str, options: Collection[str]) -> str:
    """What the file is instead of the chosen format; empty if nothing speaks against it. `options`
    are the names of the options of Spark's reader.
    """
    given = {option.lower() for option in options}
    if _CHOOSING & given or _COMPRESSED.search(name):
        return ""
    kind = next((kind for magic, kind in _MAGIC if head.startswith(magic)), "")
    if chosen == "parquet":
        if kind == "Parquet":
            return ""
        return f"is no Parquet file: it {_begins(head)}"
    if kind:
        article = "an" if kind[0] in "AO" else "a"
        return f"is {article} {kind} file"
    if head.startswith(_GZIP):
        return "is compressed by gzip, and its name does not end with .gz"
    if b"\0" in head:
        return f"is not text: it {_begins(head)}"
    text = head.removeprefix(_BOM).lstrip()
    if chosen == "json" and not _LENIENT & given and text and text[:1] not in b"{[":
        return f"is not JSON: it {_begins(head)}"
    if chosen == "csv" and text.startswith(b'{"') and "header" not in given:
        return f"is not CSV with a header: it {_begins(head)}"
    return ""


def wrong_format(chosen: str, name: str, words: str, head: bytes) -> str:
    """The message about a file that is not of the chosen format; `words` are from `misfit`."""
    better = _suggestion(chosen, head)
    way_out = f"give {better}" if better else "give the format of the files"
    return f"format is {chosen}: file {name} {words}; {way_out}"


def no_stream_of(path: str) -> str:
    """The message about a single file, of which Spark cannot make a stream."""
    return (
        f"path is {path}, one file: with a checkpoint it must be a directory, or a pattern such as "
        f"{posixpath.join(posixpath.dirname(path) or '.', '*')}; or leave the checkpoint out"
    )


def _suggestion(chosen: str, head: bytes) -> str:
    """The format that the first bytes are of, if it is another one that can be read."""
    found = "parquet" if head.startswith((b"PAR1", b"PARE")) else ""
    text = head.removeprefix(_BOM).lstrip()
    if not found and text[:1] == b"{":
        found = "json"
    return "" if found == chosen else found


def _begins(head: bytes) -> str:
    if not head:
        return "is empty"
    shown = "".join(
        letter if letter.isprintable() else "."
        for letter in head[:_SHOWN].decode("utf-8", "replace").replace("\ufffd", ".")
    )
    return f"begins with {shown!r}"
