"""Reads that wait until the leader has confirmed its leadership (ReadIndex; Ongaro, section 6.4).

    waiting ──next send──► in a round ──a majority answers──► confirmed ──applied and synced──► done

A leader may have been deposed without knowing it. So a read notes the commit index when it arrives,
and all reads that wait at the next send form one round. Only when a majority answers a message sent
after that, no other leader can have acknowledged anything since. Heartbeats between nodes do not
count. The no-op of the own term must have been applied before (`Group.is_serving`).
"""

import asyncio


class ReadIndex:
    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._index = 0
        """Commit index when the last of the waiting reads came."""
        self._rounds: list[tuple[int, int, list[asyncio.Future[None]]]] = []
        """(round, commit index, futures), rounds ascending."""
        self._confirmed: list[tuple[int, list[asyncio.Future[None]]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._rounds or self._confirmed)

    @property
    def wants_round(self) -> bool:
        return bool(self._waiting)

    @property
    def first_round(self) -> int | None:
        """The oldest round that is not confirmed."""
        return self._rounds[0][0] if self._rounds else None

    def add(self, future: "asyncio.Future[None]", commit_index: int) -> None:
        self._waiting.append(future)
        self._index = commit_index

    def begun(self, round_: int) -> None:
        """All voters are asked, for all waiting reads."""
        self._rounds.append((round_, self._index, self._waiting))
        self._waiting = []

    def confirm(self, round_: int) -> None:
        """A majority has answered the round: that confirms the earlier rounds as well."""
        while self._rounds and self._rounds[0][0] <= round_:
            _, index, futures = self._rounds.pop(0)
            self._confirmed.append((index, futures))

    def done(self, synced_index: int) -> "list[asyncio.Future[None]]":
        """Takes the reads that a current snapshot answers; it contains the entries up to
        `synced_index`.
        """
        ready = [futures for index, futures in self._confirmed if index <= synced_index]
        self._confirmed = [one for one in self._confirmed if one[0] > synced_index]
        return [future for futures in ready for future in futures]

    def take_all(self) -> "list[asyncio.Future[None]]":
        futures = [*self._waiting]
        for _, _, some in self._rounds:
            futures += some
        for _, some in self._confirmed:
            futures += some
        self._waiting, self._rounds, self._confirmed = [], [], []
        return futures
