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

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from querator.cli.shared.connection import output_option
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import count, write_json
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


class Problem(msgspec.Struct, frozen=True):
    """`place` names a partition, a group, or the placement."""

    place: str
    sentence: str


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
    """`items` is the partitions' own count. `attachments` is the number that was read and
    checked.
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
                        "placement", f"{queue.name} has group {group}, which was never assigned"
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
                self._wrong(place, "there are items that belong to no queue")
        elif queue.state is QueueState.DELETING:
            return  # Its rows are deleted in several steps, between which they are inconsistent.
        try:
            for sentence in invariants.check(view, group):
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
            self._wrong(place, str(error))

    def _check_attachments(self, view: ReadTransaction, group: int, place: str) -> None:
        for key, _ in ATTACHMENTS.rows(view, group):
            index, part = ATTACHMENTS.parts(key)
            assert isinstance(index, int)
            assert isinstance(part, int)
            self.attachments += 1
            try:
                attachments.read(view, group, index, part)
            except StorageCorrupt as error:
                self._wrong(place, str(error))

    def _check_incoming(self, group: int, place: str) -> None:
        try:
            incoming.read_row(self._txn, group)
        except (StorageCorrupt, msgspec.DecodeError) as error:
            self._wrong(place, str(error))

    def _check_starts(self) -> None:
        try:
            starts.read(self._txn)
        except StorageCorrupt as error:
            self._wrong("starts of nodes", str(error))

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

    def _wrong(self, place: str, sentence: str) -> None:
        self.problems.append(Problem(place, sentence))


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
    there is a problem; each problem is a sentence.

    \b
    Example:
      querator verify --data-dir ./data
    """
    try:
        view = _verify(data_dir)
    except StorageError as error:
        raise Failure(f"{str(error).rstrip('.')}.", ExitCode.WRONG) from error
    if as_json:
        write_json(view)
    else:
        _write(view)
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
        if problems := check_pages(data_dir):
            return _damaged(data_dir, problems)
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
    )


def _damaged(data_dir: Path, problems: list[str]) -> VerifyView:
    return VerifyView(
        data_dir=str(data_dir),
        cluster_id="",
        queues=0,
        partitions=0,
        items=0,
        log_entries=0,
        attachments=0,
        problems=[Problem("data file", sentence) for sentence in problems],
    )


def _check_all(scan: _Scan) -> None:
    groups = scan.groups()
    with click.progressbar(
        groups, label="verifying", show_pos=True, file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as tracked:
        for group in tracked:
            scan.check(group)


def _write(view: VerifyView) -> None:
    seen = (
        f"{count(view.queues, 'queue')}, {count(view.partitions, 'partition')}, "
        f"{count(view.items, 'item')}, {count(view.log_entries, 'log entry')}"
    ).replace("entrys", "entries")
    if not view.problems:
        click.echo(f"{view.data_dir}: all is well ({seen}).")
        return
    click.echo(f"{view.data_dir}: {count(len(view.problems), 'problem')} found ({seen}).")
    for problem in view.problems[:PROBLEMS_SHOWN_MAX]:
        click.echo(f"  {problem.place}: {problem.sentence}")
    if len(view.problems) > PROBLEMS_SHOWN_MAX:
        click.echo(f"  … and {len(view.problems) - PROBLEMS_SHOWN_MAX:,} more (see --output json).")
