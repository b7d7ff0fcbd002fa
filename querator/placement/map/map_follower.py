"""The map of a node that does not lead the placement group.

The leader's node receives the map through the effects of its host, once they are synced. The other
nodes receive it from their machine, at once, and also check the stored rows now and then: a
snapshot installed from another replica is not announced, and effects around a change of leaders may
be dropped. What the machine reports is committed in the group, though this node may not have synced
it. Clients get no answer because of it that the leader does not vouch for.
"""

import asyncio
from collections.abc import Callable

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.placement.map import rows
from querator.placement.map.machine import PlacementEffects, stored_effects
from querator.raft.host import Host
from querator.raft.log.rows import is_being_deleted
from querator.storage import generations
from querator.storage.environment import Environment, ReadTransaction, StorageCorrupt

LOOK_S = 1.0


class MapFollower:
    """Belongs to one event loop. `heard` receives effects that may be new, and ignores those that
    are not.
    """

    def __init__(
        self, host: Host, environment: Environment, heard: Callable[[PlacementEffects], None]
    ) -> None:
        self._host = host
        self._environment = environment
        self._heard = heard
        self._applied_index = 0
        """Applied index of the placement group at the last check of the stored rows."""
        self._epoch = -1
        """Epoch of the newest map that was passed on here."""

    def listener(self, loop: asyncio.AbstractEventLoop) -> Callable[[PlacementEffects], None]:
        """Returns the callback for the machine, which calls it on the raft thread."""

        def tell(effects: PlacementEffects) -> None:
            loop.call_soon_threadsafe(self._on_change, effects)

        return tell

    def _on_change(self, effects: PlacementEffects) -> None:
        if not self._host.leads(PLACEMENT_GROUP):
            self._pass_on(effects)

    async def run(self) -> None:
        """Checks the stored rows whenever entries were applied since the last check."""
        while True:
            await asyncio.sleep(LOOK_S)
            status = self._host.status(PLACEMENT_GROUP)
            if status is not None and status.applied_index != self._applied_index:
                self._applied_index = status.applied_index
                await self.refresh()

    async def refresh(self) -> None:
        effects = await asyncio.to_thread(self._stored)
        if effects is not None:
            self._pass_on(effects)

    async def stored_groups(self) -> dict[GroupId, bool]:
        """The groups with a replica stored here, and whether its deletion is unfinished."""
        return await asyncio.to_thread(self._stored_groups)

    def _stored_groups(self) -> dict[GroupId, bool]:
        with self._environment.snapshot() as snapshot:
            found = map(GroupId, generations.stored_groups(snapshot))
            return {group: _is_half_deleted(snapshot, group) for group in found}

    def _stored(self) -> PlacementEffects | None:
        """The stored effects, if they are new."""
        with self._environment.snapshot() as snapshot:
            return stored_effects(snapshot) if rows.epoch(snapshot) > self._epoch else None

    def _pass_on(self, effects: PlacementEffects) -> None:
        self._epoch = max(self._epoch, effects.map.epoch)
        self._heard(effects)


def _is_half_deleted(snapshot: ReadTransaction, group: GroupId) -> bool:
    try:
        return is_being_deleted(generations.view(snapshot, group), group)
    except StorageCorrupt:
        # Opening the group reports the error.
        return False
