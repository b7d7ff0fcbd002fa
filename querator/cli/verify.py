"""`querator verify`: a full scan of a data directory that no node is using.

First the pages of the data file are checked. If they are damaged, only that is reported, because
rows in damaged pages are unreliable. Then the scan checks, for each group (a partition's, or the
placement group's):

- its log: every entry from the first to the last is there, and its checksum is correct;
- its attachments: their checksums are correct;
- its tables: `partition.invariants`, which computes all counts and indexes again;
- its place: each group is a partition of one queue;
- the stored part of a snapshot that it receives.

It also checks the node's records of its own starts and of other nodes' starts.

The JSON output has a digest of each group's tables, which allows a comparison of replicas on
several nodes. Nothing is changed, and the directory is locked during the scan.
"""

import errno
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import click
import msgspec

from querator.cli.shared.connection import output_option
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import BULLET, count, write_json, write_picture
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.queues import QueueState
from querator.partition import invariants
from querator.partition.digest import digest
from querator.partition.rows import decode_settings, decode_state
from querator.placement.map import rows as placement_rows
from querator.raft.log.journal import GroupDeleted, Journal
from querator.raft.log.rows import read_applied
from querator.raft.snapshot import incoming
from querator.storage import attachments, generations, identity, starts
from querator.storage.data_file import check_pages
from querator.storage.environment import (
    ReadTransaction,
    StorageCorrupt,
    StorageError,
    StorageLocked,
)
from querator.storage.identity import DirectoryRefused, Empty
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.tables import ATTACHMENTS, SETTINGS, STATE

PROBLEMS_SHOWN_MAX = 50
_GROUPS_MAX = 2**64 - 1


class Kind(StrEnum):
    """What is wrong, by what an operator does."""

    FILE = "file"
    """Pages of the data file: no row can be relied on."""
    LOG = "log"
    """The log of a group lacks entries, or has damaged ones."""
    PAYLOAD = "payload"
    """The payload of items."""
    STATE = "state"
    """The tables of a group contradict each other, or cannot be read."""
    PLACEMENT = "placement"
    """The placement map, or the records of the starts of nodes."""
    LEFTOVER = "leftover"
    """Rows of a group that belongs to no queue."""


_REBUILD = (
    "In a cluster, rebuild the node from the others: keep this directory aside, start the node "
    "with an empty one, and when it waits: querator node replace {name}. A node that is alone "
    "needs a copy of the directory from before the damage; what came after the copy is lost."
)
_ACTIONS: Final = {
    Kind.FILE: f"Damaged pages of the data file: check the disk. {_REBUILD}",
    Kind.LOG: f"A damaged log: do not start the node with it. {_REBUILD}",
    Kind.PAYLOAD: (
        "Damaged payload: start the node. It sets these items aside and fetches them from the "
        "other replicas; querator cluster status names those that no replica has whole. To drop "
        "these: querator queue give-up QUEUE."
    ),
    Kind.STATE: (
        f"A contradiction in the tables: this is a defect of Querator or of the disk. {_REBUILD} "
        "Report it with this output."
    ),
    Kind.PLACEMENT: f"A damaged placement map or record of starts. {_REBUILD}",
    Kind.LEFTOVER: (
        "Rows without a queue: start the node, which removes groups that its map does not have. "
        "Stop it and verify again. If they are still there, report it with this output."
    ),
}


class Problem(msgspec.Struct, frozen=True):
    """`place` names a partition, a group, or the placement. `kind` says which action it needs."""

    place: str
    sentence: str
    kind: Kind = Kind.STATE


class GroupDigest(msgspec.Struct, frozen=True):
    """Digest of a group's state on this node, in hexadecimal. Replicas that have applied the same
    commands have the same digest. Entries without commands, such as those of elections, count in
    `applied_index` and do not change it.
    """

    group: int
    place: str
    applied_index: int
    digest: str


class VerifyView(msgspec.Struct, frozen=True):
    """`items` is the partitions' own count. `attachments` is the number that was read and checked.
    `actions` says what to do, for each kind of the problems.
    """

    data_dir: str
    cluster_id: str
    queues: int
    partitions: int
    items: int
    log_entries: int
    attachments: int
    problems: list[Problem]
    digests: list[GroupDigest] = []
    actions: dict[Kind, str] = {}


class _Scan:
    """Scans the groups of one snapshot and collects the results."""

    def __init__(self, txn: ReadTransaction) -> None:
        self._txn = txn
        self.problems: list[Problem] = []
        self.digests: list[GroupDigest] = []
        self.items = 0
        self.log_entries = 0
        self.attachments = 0
        view = placement_rows.load(txn)
        self._map = view.map
        for queue in view.map:
            for group in queue.groups:
                if group == PLACEMENT_GROUP or group >= view.map.next_group:
                    self._wrong(
                        "placement",
                        f"{queue.name} has group {group}, which was never assigned",
                        Kind.PLACEMENT,
                    )
        self._check_starts()

    @property
    def queues(self) -> int:
        return len(self._map)

    @property
    def partitions(self) -> int:
        return self._map.partitions

    def groups(self) -> list[int]:
        """Every group that the placement names or that has a state."""
        placed = (group for queue in self._map for group in queue.groups)
        return sorted({PLACEMENT_GROUP, *placed, *_stored_groups(self._txn)})

    def check(self, group: int) -> None:
        queue, partition = self._map.by_group(GroupId(group)) or (None, 0)
        if queue is None:
            place = "placement" if group == PLACEMENT_GROUP else f"group {group}"
        else:
            place = f"{queue.namespace}/{queue.name} partition {partition}"
        try:
            view = generations.view(self._txn, group)
        except (StorageCorrupt, msgspec.DecodeError) as error:
            self._wrong(place, str(error))
            return
        self._check_log(view, group, place)
        self._check_attachments(view, group, place)
        self._check_incoming(group, place)
        self._sum_up(view, group, place)
        if group == PLACEMENT_GROUP:
            return
        if queue is None:
            if not self._has_closed(view, group):
                self._wrong(place, "there are items that belong to no queue", Kind.LEFTOVER)
        elif queue.state is QueueState.DELETING:
            return  # Its rows are deleted in several steps, between which they are inconsistent.
        try:
            # Damaged payloads are found among the attachments.
            for sentence in invariants.check(view, group, checksums=False):
                self._wrong(place, sentence)
        except (StorageCorrupt, msgspec.DecodeError) as error:
            self._wrong(place, f"a row cannot be read: {error}")
        if (raw := STATE.get(view, group)) is not None:
            self.items += decode_state(raw).items

    @staticmethod
    def _has_closed(view: ReadTransaction, group: int) -> bool:
        """Whether it is a partition that left its queue empty: its rows are deleted at the next
        start.
        """
        row = SETTINGS.get(view, group)
        state = STATE.get(view, group)
        if row is None or state is None:
            return False
        return decode_settings(row).closing and not decode_state(state).items

    def _check_log(self, view: ReadTransaction, group: int, place: str) -> None:
        try:
            journal = Journal.open(view, GroupId(group))
            for index in range(journal.first_index, journal.last_index + 1):
                journal.record(view, index)
                self.log_entries += 1
        except GroupDeleted:
            return
        except (StorageCorrupt, msgspec.DecodeError) as error:
            self._wrong(place, str(error), Kind.LOG)

    def _check_attachments(self, view: ReadTransaction, group: int, place: str) -> None:
        for key, _ in ATTACHMENTS.rows(view, group):
            index, part = ATTACHMENTS.parts(key)
            assert isinstance(index, int)
            assert isinstance(part, int)
            self.attachments += 1
            try:
                attachments.read(view, group, index, part)
            except StorageCorrupt as error:
                self._wrong(place, str(error), Kind.PAYLOAD)

    def _check_incoming(self, group: int, place: str) -> None:
        try:
            incoming.read_row(self._txn, group)
        except (StorageCorrupt, msgspec.DecodeError) as error:
            self._wrong(place, str(error))

    def _check_starts(self) -> None:
        try:
            starts.read(self._txn)
        except StorageCorrupt as error:
            self._wrong("starts of nodes", str(error), Kind.PLACEMENT)

    def _sum_up(self, view: ReadTransaction, group: int, place: str) -> None:
        try:
            applied = read_applied(view, GroupId(group))
            if applied is None:
                return
            of = placement_rows.digest(view) if group == PLACEMENT_GROUP else digest(view, group)
        except StorageCorrupt as error:
            self._wrong(place, str(error))
        else:
            self.digests.append(GroupDigest(group, place, applied[0], of.hex()))

    def _wrong(self, place: str, sentence: str, kind: Kind = Kind.STATE) -> None:
        self.problems.append(Problem(place, sentence, kind))


def _stored_groups(txn: ReadTransaction) -> Iterator[int]:
    """Groups that have a state in any generation, with one look-up each."""
    storage = 0
    while storage <= _GROUPS_MAX:
        start, _ = STATE.bounds(storage)
        _, stop = STATE.bounds(_GROUPS_MAX)
        row = next(iter(txn.scan(start, stop)), None)
        if row is None:
            return
        storage = int.from_bytes(row[0][1:9], "big")
        yield generations.group_of(storage)
        storage += 1


@click.command()
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of a node that is not running.",
)
@output_option
def verify(data_dir: Path, as_json: bool) -> None:
    """Check everything in a data directory by a full scan: logs, checksums, indexes, counts.

    Nothing is changed. A directory in use is refused: stop the node first. The exit code is 1 if
    there is a problem; each problem is a sentence, followed by what to do for each kind.

    \b
    Example:
      querator verify --data-dir ./data
    """
    try:
        view = _verify(data_dir)
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EROFS:
            raise Failure(
                f"{data_dir} is on a read-only file system, and the scan locks the directory by a "
                "file in it. Mount it writable, or verify a copy of the directory.",
                ExitCode.WRONG,
            ) from error
        raise Failure(f"{str(error).rstrip('.')}.", ExitCode.WRONG) from error
    if as_json:
        write_json(view)
    else:
        write_report(view)
    if view.problems:
        raise click.exceptions.Exit(ExitCode.WRONG)


def _verify(data_dir: Path) -> VerifyView:
    try:
        identity.check_directory(data_dir, empty=Empty.REFUSED)
    except DirectoryRefused:
        raise Failure(f"{data_dir}: no data of Querator there.", ExitCode.USAGE) from None
    try:
        environment = open_lmdb(data_dir, used_by="querator verify")
    except StorageLocked as error:
        raise Failure(f"{error}. Stop it first.", ExitCode.REFUSED) from None
    try:
        if sentences := check_pages(data_dir):
            return _damaged(data_dir, sentences)
        with environment.snapshot() as txn:
            owner = identity.read(txn)
            try:
                scan = _Scan(txn)
            except (AssertionError, msgspec.DecodeError) as error:
                raise StorageCorrupt(f"the placement cannot be read: {error}") from error
            _check_all(scan)
    finally:
        environment.close()
    return VerifyView(
        data_dir=str(data_dir),
        cluster_id="" if owner is None else owner.cluster_id,
        queues=scan.queues,
        partitions=scan.partitions,
        items=scan.items,
        log_entries=scan.log_entries,
        attachments=scan.attachments,
        problems=scan.problems,
        digests=scan.digests,
        actions=actions_for(scan.problems, "" if owner is None else owner.name),
    )


def actions_for(problems: Iterable[Problem], name: str) -> dict[Kind, str]:
    """What to do, by kind, in the order of the kinds. `name` empty: that of the node is unknown."""
    found = {problem.kind for problem in problems}
    return {kind: _ACTIONS[kind].format(name=name or "NAME") for kind in Kind if kind in found}


def _damaged(data_dir: Path, sentences: list[str]) -> VerifyView:
    problems = [Problem("data file", sentence, Kind.FILE) for sentence in sentences]
    return VerifyView(
        data_dir=str(data_dir),
        cluster_id="",
        queues=0,
        partitions=0,
        items=0,
        log_entries=0,
        attachments=0,
        problems=problems,
        actions=actions_for(problems, ""),
    )


def _check_all(scan: _Scan) -> None:
    groups = scan.groups()
    with click.progressbar(
        groups, label="verifying", show_pos=True, file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as tracked:
        for group in tracked:
            scan.check(group)


def write_report(view: VerifyView) -> None:
    seen = (
        f"{count(view.queues, 'queue')}, {count(view.partitions, 'partition')}, "
        f"{count(view.items, 'item')}, {count(view.log_entries, 'log entry')}"
    ).replace("entrys", "entries")
    if not view.problems:
        write_picture([f"{view.data_dir}: all is well ({seen})."])
        return
    more = len(view.problems) - PROBLEMS_SHOWN_MAX
    write_picture(
        [
            f"{view.data_dir}: {count(len(view.problems), 'problem')} found ({seen}).",
            *(f"{BULLET}{one.place}: {one.sentence}" for one in view.problems[:PROBLEMS_SHOWN_MAX]),
            *([f"{BULLET}and {more:,} more (see --output json)."] if more > 0 else []),
            "What to do:",
            *(f"{BULLET}{action}" for action in view.actions.values()),
        ]
    )
