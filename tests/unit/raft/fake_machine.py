"""A small machine for the tests of the raft package, and a recorder of the events of a host.

The machine is a register that counts: commands add to it, or are words with a special meaning. It
holds the attachments of the last `HELD` adds and drops older ones.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from querator.model.entries import Applied, Entry, Need, Proposal, Tier, TimeBack
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.keys import Table
from querator.storage.tables import ATTACHMENTS

REGISTER = Table("test_register", b"\x01", "")
HELD_PARTS = Table("test_held", b"\x02", "QI")
HELD = 2

_ROW = struct.Struct(">qQq")


class Packed(msgspec.Struct, array_like=True):
    now_ms: int
    commands: list[int | str]
    parts: list[int]
    """The attachment part of each command, or -1."""


class Register(msgspec.Struct, frozen=True):
    value: int
    applied_index: int
    now_ms: int


class RegisterMachine:
    """Commands are a number to add, or one of these words: `raise`, at which the machine fails; `no
    pack`, which does not pack; `fired`, the machine's own command when its time has come; `at N`,
    which is due at N ms of state time; `promptly at N`, which does not wait for the grace period of
    a new leader; `late`, of which nothing may be reported before the sync. TimeBack adds nothing.

    A result is (value, index); a result with a negative value is not reported before the sync. The
    effects are the value. `applied` lists the indexes of the entries that this object was asked to
    apply.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self.applied: list[int] = []
        self.recovered = 0
        self.stamps: list[int] = []
        self.commands: list[int | str] = []
        """All commands in the order in which they were applied."""
        self._due_ms: int | None = None
        self._prompt_ms: int | None = None

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        parts: list[int] = []
        kept: list[bytes] = []
        for proposal in proposals:
            if proposal.command == "no pack":
                raise ValueError("no pack")
            parts.append(len(kept) if proposal.attachment else -1)
            if proposal.attachment:
                kept.append(proposal.attachment)
        commands = [
            0 if isinstance(proposal.command, TimeBack) else proposal.command
            for proposal in proposals
        ]
        packed = Packed(now_ms, commands, parts)
        return Entry(msgspec.msgpack.encode(packed), tuple(kept))

    def need(self, txn: ReadTransaction, command: Any) -> Need:
        return Need(Tier.FREES, 0)

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        packed = msgspec.msgpack.decode(command, type=Packed)
        row = read(txn, self.group)
        assert row.applied_index < index
        assert row.now_ms <= packed.now_ms
        self.applied.append(index)
        self.stamps.append(packed.now_ms)
        value, results = row.value, []
        for what, part in zip(packed.commands, packed.parts, strict=True):
            if part >= 0:
                # The bytes of the attachment may be damaged on this node, and are not checked.
                assert ATTACHMENTS.get(txn, self.group, index, part) is not None
                HELD_PARTS.put(txn, self.group, index, part, value=b"")
            self.commands.append(what)
            match what:
                case int():
                    value += what
                case "raise":
                    value += self.poison()
                case "late":
                    pass
                case "fired":
                    value += 1000
                    self._due_ms = self._prompt_ms = None
                case str() if what.startswith("promptly at "):
                    self._due_ms = self._prompt_ms = int(what.removeprefix("promptly at "))
                case str():
                    self._due_ms = int(what.removeprefix("at "))
            results.append((value, index))
        self._let_go(txn, log_first)
        REGISTER.put(txn, self.group, value=_ROW.pack(value, index, packed.now_ms))
        early = "late" not in packed.commands
        return Applied(tuple(results), value, self._due_ms, early=early, prompt_ms=self._prompt_ms)

    def poison(self) -> int:
        raise RuntimeError("the machine raised")

    def _let_go(self, txn: WriteTransaction, log_first: int) -> None:
        for key in [key for key, _ in HELD_PARTS.rows(txn, self.group)][:-HELD]:
            index, part = HELD_PARTS.parts(key)
            assert isinstance(index, int)
            assert isinstance(part, int)
            attachments.drop(txn, self.group, index, part, log_first=log_first)
            txn.delete(key)

    def tells_early(self, result: Any) -> bool:
        return bool(result[0] >= 0)

    def recover(self, txn: ReadTransaction) -> Applied:
        self.recovered += 1
        value = read(txn, self.group).value
        return Applied((), value, self._due_ms, prompt_ms=self._prompt_ms)

    def due_commands(self, now_ms: int, *, prompt: bool = False) -> Sequence[Any]:
        return ("fired",)

    def digest(self, txn: ReadTransaction) -> bytes:
        return _ROW.pack(*msgspec.structs.astuple(read(txn, self.group)))


class MendedMachine(RegisterMachine):
    """Applies the command at which `RegisterMachine` fails as an add of 100."""

    def poison(self) -> int:
        return 100


def read(txn: ReadTransaction, group: int) -> Register:
    stored = REGISTER.get(txn, group)
    return Register(0, 0, 0) if stored is None else Register(*_ROW.unpack(stored))


class EventRecorder:
    """Records what a host reports, in order, and lets a test wait for it."""

    def __init__(self) -> None:
        self.effects: list[tuple[GroupId, Any]] = []
        self.leadership: list[tuple[GroupId, bool]] = []
        self.failures: list[BaseException] = []
        self.hangs: list[bool] = []
        self.quarantined: list[tuple[GroupId, BaseException]] = []
        self._waiters: list[asyncio.Event] = []

    def on_effects(self, group: GroupId, effects: Any) -> None:
        self.effects.append((group, effects))
        self._wake()

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None: ...

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        self.leadership.append((group, leads))
        self._wake()

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self._wake()

    def on_damage(self, group: GroupId, index: int, part: int) -> None: ...

    def on_quarantine(self, group: GroupId, error: BaseException) -> None:
        self.quarantined.append((group, error))
        self._wake()

    def on_hang(self, hangs: bool) -> None:
        self.hangs.append(hangs)
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def until(self, what: Any) -> None:
        """Returns when `what()` is true. It is checked after each report of the host."""
        waiter = asyncio.Event()
        self._waiters.append(waiter)
        try:
            while not what():
                waiter.clear()
                await waiter.wait()
        finally:
            self._waiters.remove(waiter)
