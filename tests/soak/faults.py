"""The faults of chaos, and slower ones: clocks that jump, a disk that fills and empties, and
damaged rows of payload.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from querator import Client
from querator.client.errors import QueueNotFound, RequestError, StorageFull
from tests.chaos.faults import Faults
from tests.checkers.history import Recorder
from tests.integration.bit_flips import flip
from tests.integration.faulty_cluster import FaultyCluster
from tests.integration.wall_clocks import WallClocks

STEADY = "c"
"""The node whose process never ends, so that what it holds can be compared over the hour."""
DAMAGED = "b"
"""The node with damaged rows: the others have them whole."""
JUMPS_MS = (-86_400_000, -3_600_000, -2_000, 2_000, 3_600_000, 86_400_000)
STOCK = "stock"
STOCK_ITEMS = 60
BALLAST = "ballast"
BALLAST_BYTES = 256 * 1024


def stocked(number: int) -> bytes:
    """The payload of an item that stays for the whole run."""
    return b"item %03d of the stock, whose payload is in no other item" % number


@dataclass
class Ballast:
    """The queue that fills the disk. `filling`: some of its items are there, or may be."""

    filling: bool = False


class SoakFaults(Faults):
    def __init__(
        self,
        cluster: FaultyCluster,
        recorder: Recorder,
        seed: int,
        clocks: WallClocks,
        ballast: Ballast,
    ) -> None:
        super().__init__(cluster, recorder, seed)
        self._clocks = clocks
        self._ballast = ballast
        self.mortal = cluster.names.replace(STEADY, "")
        self.kinds = [(weight, kind) for weight, kind in self.kinds if kind != self.kill_all]
        self.kinds += [(2, self.jump_clock), (1, self.fill_disk), (2, self.damage_rows)]

    async def jump_clock(self) -> None:
        name = self.one()
        self._clocks.step(name, self.chance.choice(JUMPS_MS))
        await self.last()
        self._clocks.step(name, 0)

    async def fill_disk(self) -> None:
        """Fills the disk until the nodes take nothing more; then deletes everything."""
        self._ballast.filling = True
        async with Client(self.cluster.addresses, request_timeout=timedelta(seconds=3)) as client:
            await client.create_queue(BALLAST, max_attempts=0, dead_queue="")
            try:
                while True:
                    await client.produce(BALLAST, bytes(BALLAST_BYTES))
            except StorageFull:
                self.recorder.note("the disks are full")
            await self.last()
        async with asyncio.timeout(60), Client(self.cluster.addresses) as client:
            await emptied(client, BALLAST)
        self._ballast.filling = False

    async def damage_rows(self) -> None:
        """Flips one bit of some payloads of the stock, where a node reads them."""
        room = self.cluster[DAMAGED].data_dir
        for number in self.chance.sample(range(STOCK_ITEMS), 3):
            found = await asyncio.to_thread(flip, room, stocked(number))
            self.recorder.note(f"item {number} of the stock is damaged in {found} places")


async def emptied(client: Client, queue: str) -> None:
    """Deletes the queue, also when it is unknown whether that has been done."""
    while True:
        try:
            await client.delete_queue(queue)
        except QueueNotFound:
            return
        except RequestError:
            await asyncio.sleep(0.2)
        else:
            return
