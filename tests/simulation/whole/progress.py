"""The checkpoints of items, as clients know them.

    a delivered item has the last checkpoint that was saved before its lease, or none
    of one lease, that of the highest revision counts
    nothing is saved under a lease that is known to have ended when the call begins
    the first two also hold after its death, and after its return from the dead queue

A checkpoint without a certain answer may have been saved, or not; so may one that was refused as
lost, by an attempt before the refused one. All is judged at the end, when the answers are known.
The places of an item are those of `tries`.
"""

from collections.abc import Iterator

from querator.model.calls import LeasedRun
from querator.model.ids import parse_lease_id
from tests.simulation.whole.tries import Place, Tries

NONE = b""


class Save:
    """A checkpoint for an item under a lease. `executed` None: it is not known."""

    def __init__(self, data: bytes, revision: int, *, late: bool) -> None:
        self.data = data
        self.revision = revision
        self.late = late
        """Its lease was known to have ended."""
        self.executed: bool | None = False if late else None


class _OfLease:
    """What one lease did to the checkpoint of an item. `cleared` None: it may be cleared."""

    def __init__(self) -> None:
        self.saves: list[Save] = []
        self.cleared: bool | None = False


class Progress:
    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._leases: dict[Place, dict[int, _OfLease]] = {}
        self._ended: dict[Place, int] = {}
        """The highest lease of each place that is known to have ended."""
        self._seen: list[tuple[Place, int, str, bytes]] = []
        self._found: list[str] = []
        self.compared = 0
        """Deliveries of items that had a checkpoint, or may have had one."""

    # --- what clients know -------------------------------------------------------------------

    def _of(self, lease_id: str, seq: int) -> tuple[Place, int, _OfLease]:
        group, _, lease = parse_lease_id(lease_id, field="lease_id")
        place = Place(group, seq)
        return place, lease, self._leases.setdefault(place, {}).setdefault(lease, _OfLease())

    def saving(self, lease_id: str, seq: int, data: bytes, revision: int) -> Save:
        """A checkpoint is about to be sent."""
        place, lease, of_lease = self._of(lease_id, seq)
        save = Save(data, revision, late=lease <= self._ended.get(place, 0))
        of_lease.saves.append(save)
        return save

    def saved(self, save: Save) -> None:
        """It was accepted."""
        if save.late:
            self._found.append(f"{save.data!r}: saved under a lease that had ended")
        save.executed = True

    def settled(self, lease_id: str, seq: int, *, cleared: bool, executed: bool | None) -> None:
        """A retry of the item has ended, and the lease, too, if it was executed."""
        place, lease, of_lease = self._of(lease_id, seq)
        if cleared and executed is not False:
            of_lease.cleared = executed
        if executed:
            self._ended[place] = max(lease, self._ended.get(place, 0))

    def delivered(self, batch: LeasedRun, items: dict[int, str]) -> None:
        group, _, lease = parse_lease_id(batch.lease_id, field="lease_id")
        later = {overlay.index: overlay.checkpoint for overlay in batch.loaded.overlays}
        for index, (seq, reference) in enumerate(items.items()):
            place = Place(group, seq)
            self._seen.append((place, lease, reference, later.get(index, NONE)))
            self._ended[place] = max(lease - 1, self._ended.get(place, 0))

    # --- what follows at the end -------------------------------------------------------------

    def judge(self) -> Iterator[str]:
        yield from self._found
        for place, lease, reference, data in self._seen:
            possible = self._possible(reference, place, lease, frozenset())
            self.compared += possible != {NONE}
            if data not in possible:
                yield f"{reference}: delivered with checkpoint {data!r}, has {sorted(possible)}"

    def _possible(
        self, reference: str, place: Place, lease: int | None, passed: frozenset[Place]
    ) -> set[bytes]:
        """The checkpoints that the item may have under a lease, or when it leaves the place."""
        possible: set[bytes] = set()
        by_lease = self._leases.get(place, {})
        for number in sorted(by_lease, reverse=True):
            if lease is not None and number >= lease:
                continue
            of_lease = by_lease[number]
            if of_lease.cleared is not False:
                possible.add(NONE)
                if of_lease.cleared:
                    return possible
            for save in sorted(of_lease.saves, key=lambda one: -one.revision):
                if save.executed is not False:
                    possible.add(save.data)
                    if save.executed:
                        return possible
        before, first = self._tries.whence(reference, place, passed | {place})
        brought: set[bytes] = set()
        for other in before:
            brought |= self._possible(reference, other, None, passed | {place})
        if first or (before and not brought):
            brought.add(NONE)
        return possible | brought
