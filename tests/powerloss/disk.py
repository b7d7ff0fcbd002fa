"""A disk that forgets what was not synced.

`Disk` follows one directory. Processes that are started with its environment, under the shim of
shadow.c, write below it as always, and a journal records what they did. `lose_power`, once all of
them have been killed, makes the directory what a disk may hold after a power loss at that moment.

Certainly kept: bytes and length of a file up to the beginning of its last fsync or fdatasync that
returned; the range of each write to a descriptor with O_DSYNC or O_SYNC that returned, in whole
pages; names in a directory up to its last fsync. The sync of a file does not keep its name.

Chance decides about the rest, between none and all of it (`Kept`):

* of each page of 4 KiB any of the versions since, also mixed by sectors of 512 bytes between two
  that follow each other, independently of all other pages and files;
* any of the lengths since: pages kept beyond it are cut, holes below it read as zeros;
* of the names in a directory the first few changes, independently of other directories.
"""

import os
import shutil
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from tests.powerloss.journal import Kind, NotFollowed, Record, read

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
MAPPED_NAME: Final = "lock.mdb"
"""LMDB maps its table of readers to write into it. It holds nothing that must survive."""
_TORN_SHARE: Final = 0.2
"""Share of the kept pages that are mixed of two versions."""


class Kept(Enum):
    """What a power loss leaves of unsynced writes."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


@dataclass(slots=True)
class Loss:
    """What was not synced when the power failed, and how much of it is lost."""

    pages: int = 0
    pages_lost: int = 0
    pages_torn: int = 0
    names: int = 0
    names_lost: int = 0


class _File:
    """`store` holds what is durable; newer versions of pages, and lengths, wait for a sync.

    Versions and lengths carry the position of their record in the journal.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.bytes_durable = store.stat().st_size if store.exists() else 0
        store.touch()
        self._pages: dict[int, list[tuple[int, bytes]]] = {}
        self._lengths: list[tuple[int, int]] = []

    def write(self, position: int, offset: int, data: bytes) -> None:
        end = offset + len(data)
        for number in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)):
            start = number * PAGE_BYTES
            low, high = max(offset, start), min(end, start + PAGE_BYTES)
            page = data[low - offset : high - offset]
            if len(page) < PAGE_BYTES:
                old = self._newest(number)
                page = old[: low - start] + page + old[high - start :]
            self._pages.setdefault(number, []).append((position, page))
        if data and end > self._length:
            self._lengths.append((position, end))

    def set_length(self, position: int, length: int) -> None:
        """Bytes that are cut off read as zeros if the file grows again."""
        old = self._length
        if length < old:
            self.write(position, length, bytes(old - length))
        self._lengths.append((position, length))

    def sync(self, until: int, first: int = 0, last: int | None = None) -> None:
        """Makes durable what was recorded before `until`, of the pages `first` to `last`."""
        pages = self._pages
        chosen = pages if last is None else range(first, last + 1)
        synced = {}
        for number in [number for number in chosen if number in pages]:
            done = [page for position, page in pages[number] if position < until]
            if done:
                synced[number] = done[-1]
                pages[number] = pages[number][len(done) :]
            if not pages[number]:
                del pages[number]
        lengths = [length for position, length in self._lengths if position < until]
        self._lengths = self._lengths[len(lengths) :]
        self._keep(synced, lengths[-1] if lengths else self.bytes_durable)

    def lose_power(self, kept: Kept, random: Random, loss: Loss) -> None:
        chance = {Kept.NONE: 0.0, Kept.SOME: random.choice((0.1, 0.5, 0.9)), Kept.ALL: 1.0}[kept]
        chosen = {}
        loss.pages += len(self._pages)
        for number, versions in self._pages.items():
            if random.random() >= chance:
                loss.pages_lost += 1
            elif kept is Kept.ALL:
                chosen[number] = versions[-1][1]
            else:
                pages = [page for _, page in versions]
                chosen[number] = self._a_version(number, pages, random, loss)
        lengths = [self.bytes_durable, *(length for _, length in self._lengths)]
        length = {Kept.NONE: lengths[0], Kept.SOME: random.choice(lengths), Kept.ALL: lengths[-1]}
        self._pages, self._lengths = {}, []
        self._keep(chosen, length[kept])

    def _a_version(self, number: int, pages: list[bytes], random: Random, loss: Loss) -> bytes:
        index = random.randrange(len(pages))
        if random.random() >= _TORN_SHARE:
            return pages[index]
        loss.pages_torn += 1
        pair = pages[index - 1] if index else self._durable(number), pages[index]
        return b"".join(
            pair[random.randrange(2)][start : start + SECTOR_BYTES]
            for start in range(0, PAGE_BYTES, SECTOR_BYTES)
        )

    @property
    def _length(self) -> int:
        return self._lengths[-1][1] if self._lengths else self.bytes_durable

    def _newest(self, number: int) -> bytes:
        versions = self._pages.get(number)
        return versions[-1][1] if versions else self._durable(number)

    def _durable(self, number: int) -> bytes:
        with self.store.open("rb") as file:
            return os.pread(file.fileno(), PAGE_BYTES, number * PAGE_BYTES).ljust(PAGE_BYTES, b"\0")

    def _keep(self, pages: dict[int, bytes], length: int) -> None:
        with self.store.open("r+b") as file:
            # Bytes beyond the length do not exist: they must not come back when the file grows.
            file.truncate(min(length, self.bytes_durable))
            file.truncate(length)
            for number, page in pages.items():
                start = number * PAGE_BYTES
                if start < length:
                    os.pwrite(file.fileno(), page[: length - start], start)
        self.bytes_durable = length


@dataclass(slots=True)
class _Directory:
    """Durable names, and the changes since: each sets names, or removes them (None)."""

    names: dict[str, "_File | _Directory"] = field(default_factory=dict)
    changes: list[tuple[int, dict[str, "_File | _Directory | None"]]] = field(default_factory=list)

    def newest(self, name: str) -> "_File | _Directory":
        for _, change in reversed(self.changes):
            if name in change:
                node = change[name]
                assert node is not None
                return node
        return self.names[name]

    def sync(self, until: int) -> None:
        done = [change for position, change in self.changes if position < until]
        self.changes = self.changes[len(done) :]
        for change in done:
            self._apply(change)

    def lose_power(self, kept: Kept, random: Random, loss: Loss) -> None:
        most = len(self.changes)
        count = {Kept.NONE: 0, Kept.SOME: random.randint(0, most), Kept.ALL: most}[kept]
        loss.names += most
        loss.names_lost += most - count
        for _, change in self.changes[:count]:
            self._apply(change)
        self.changes = []

    def _apply(self, change: dict[str, "_File | _Directory | None"]) -> None:
        for name, node in change.items():
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node


class Disk:
    """`root` and its content at the begin are durable; `room` is a directory to work in."""

    def __init__(self, root: Path, room: Path, shim: Path) -> None:
        self.root = root.resolve()
        self._journal = room.resolve() / "journal"
        self._stores = room.resolve() / "stores"
        self._stores.mkdir(parents=True)
        self._shim = shim
        self._count = 0
        self._nodes: dict[int, _File | _Directory] = {}
        self._tree = self._take(self.root)

    def environment(self, *lies: str) -> dict[str, str]:
        """Variables for a process that writes to this disk.

        With `lies` ("fsync", "dsync", "directory") such syncs do nothing and report success.
        """
        return {
            "LD_PRELOAD": str(self._shim),
            "POWERLOSS_ROOT": str(self.root),
            "POWERLOSS_JOURNAL": str(self._journal),
            "POWERLOSS_MAPPED": MAPPED_NAME,
            "POWERLOSS_LIES": " ".join(lies),
        }

    def lose_power(self, kept: Kept, random: Random) -> Loss:
        """Makes the directory what remains. No process may have anything open in it.

        Raises NotFollowed if a process did something that the journal cannot follow.
        """
        for record in read(self._journal):
            self._follow(record)
        self._journal.unlink(missing_ok=True)
        loss = Loss()
        for node in self._nodes.values():
            node.lose_power(kept, random, loss)
        for entry in self.root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self._nodes = {}
        self._put(self._tree, self.root)
        stores = {node.store for node in self._nodes.values() if isinstance(node, _File)}
        for store in self._stores.iterdir():
            if store not in stores:
                store.unlink()
        return loss

    def _follow(self, record: Record) -> None:
        node = self._nodes.get(record.inode)
        match record.kind, node:
            case Kind.WRITE, _File():
                node.write(record.position, record.a, record.text)
            case Kind.LENGTH, _File():
                node.set_length(record.position, record.a)
            case Kind.SYNC, _File() | _Directory():
                node.sync(record.a)
            case Kind.SYNC_RANGE, _File():
                last = (record.a + record.b - 1) // PAGE_BYTES
                node.sync(record.position, record.a // PAGE_BYTES, last)
            case Kind.MADE | Kind.GONE | Kind.RENAMED, _Directory():
                node.changes.append((record.position, self._change(record, node)))
            case _:
                raise NotFollowed(f"{record.kind.name} of inode {record.inode}, unknown so far")

    def _change(
        self, record: Record, directory: _Directory
    ) -> dict[str, "_File | _Directory | None"]:
        names = [os.fsdecode(name) for name in record.text.split(b"\0")]
        if record.kind is Kind.GONE:
            return {names[0]: None}
        if record.kind is Kind.RENAMED:
            return {names[0]: None, names[1]: directory.newest(names[0])}
        node = _Directory() if record.b else _File(self._new_store())
        self._nodes[record.a] = node
        return {names[0]: node}

    def _new_store(self) -> Path:
        self._count += 1
        return self._stores / str(self._count)

    def _take(self, path: Path) -> _Directory:
        directory = _Directory()
        self._nodes[path.stat().st_ino] = directory
        for entry in path.iterdir():
            if entry.is_dir():
                directory.names[entry.name] = self._take(entry)
                continue
            store = self._new_store()
            shutil.copyfile(entry, store)
            file = _File(store)
            self._nodes[entry.stat().st_ino] = directory.names[entry.name] = file
        return directory

    def _put(self, directory: _Directory, path: Path) -> None:
        self._nodes[path.stat().st_ino] = directory
        for name, node in directory.names.items():
            target = path / name
            if isinstance(node, _Directory):
                target.mkdir()
                self._put(node, target)
            else:
                shutil.copyfile(node.store, target)
                self._nodes[target.stat().st_ino] = node
