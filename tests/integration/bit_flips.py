"""Damage to the data file of a node that runs."""

from pathlib import Path

import lmdb

from querator.storage.data_file import LMDB_ENGINE


def flip(data_dir: Path, payload: bytes) -> int:
    """Flips a bit of each copy of the payload in the data file, where the running node reads it.
    Returns the number of copies.

    The node must not write meanwhile: a page that it has copied into memory and not yet written
    would be whole again.
    """
    found = 0
    with (
        lmdb.open(str(data_dir), lib_version=LMDB_ENGINE) as environment,
        environment.begin(write=True),
        (data_dir / "data.mdb").open("r+b") as file,
    ):
        data = file.read()
        at = data.find(payload)
        while at >= 0:
            found += 1
            file.seek(at)
            file.write(bytes([payload[0] ^ 1]))
            at = data.find(payload, at + 1)
    return found
