"""Follow-ups among the items of a Move: which of them are repeats, wait, or belong elsewhere.

A follow-up with a key belongs to the partition of the key's slot. Its target was chosen when it was
produced, and the number of partitions may have changed since. So a move with such items names the
routing of the queue and the groups of its partitions, as the carrier knows them. A partition takes
the items only if it has the same routing. Those of slots that belong to another partition go into
its own outbox. So items of one key wait for each other (`partition.held_keys`), and repeats of a
dedup key are found, as with produced items.

Redriven items of a keyed queue name the slots of their keys as well, and are treated alike. A
partition that sends one on sends it as a follow-up. So do items that go to the partition of their
key (`partition.key_homes`); those are sent on as what they are.
"""

from collections.abc import Sequence
from struct import pack

from querator.model.commands import NO_SLOT, Move, Produce, Refusal
from querator.model.errors import ErrorCode
from querator.model.item_options import FollowUpFields, ItemSpecial
from querator.partition import held_keys, masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import send
from querator.partition.dedup import (
    Duplicates,
    known_keys,
    no_room_for_keys,
    remember_keys,
    unsure,
)
from querator.partition.follow_ups import fields_of, send_follow_ups
from querator.partition.produce import by_priority
from querator.partition.rows import DeadCause, FollowUps


def fitting(
    context: ApplyContext, command: Move, known: int, upto: int
) -> tuple[int, int] | Refusal:
    """`known`, and the last move up to `upto` that can be taken. The refusal if that is none of
    them, and there are some.
    """
    keys = 0
    share = context.share
    routed = share.open and share.routing == command.routing
    for move in range(known + 1, upto + 1):
        fields = command.items[move - command.first_move].follow_up
        if fields is None:
            continue
        refusal: Refusal | None = None
        if fields.slot != NO_SLOT and not (routed and command.homes):
            refusal = Refusal(
                ErrorCode.UNAVAILABLE,
                f"the partitions of the queue have changed, or are being changed: routing version "
                f"{command.routing} is not the one of the partition, {share.routing}",
                field="routing",
                limit=str(share.routing),
                value=str(command.routing),
            )
        elif fields.dedup_key:
            keys += 1
            refusal = no_room_for_keys(context, keys) or _unsure(context, command, move, fields)
        if refusal is not None:
            return refusal if move == known + 1 else (known, move - 1)
    return known, upto


def _unsure(
    context: ApplyContext, command: Move, move: int, fields: FollowUpFields
) -> Refusal | None:
    """As `dedup.unsure`, for one follow-up."""
    if _home(context, command, fields.slot) is not None or not context.state.away_keys:
        return None
    ordinal = move - command.first_move
    holder = next((tuple(place) for at, *place in command.holders if at == ordinal), ())
    specials = (ItemSpecial(ordinal, dedup_key=fields.dedup_key, holder=holder),)
    return unsure(context, specials, known_keys(context, specials, 0))


def _home(context: ApplyContext, command: Move, slot: int) -> int | None:
    """The other partition that a slot belongs to. None: the item stays here."""
    if slot == NO_SLOT:
        return None
    home = slot % len(command.homes)
    return None if home == context.queue.partition else home


class Arrivals:
    """The items of a Move that are stored, `alive`, and those of them that go on, `away`: masks
    over all items of the command. `held` has the items that wait for their key, by lane.
    """

    __slots__ = ("_by_home", "_slots", "_specials", "alive", "away", "held")

    def __init__(self, context: ApplyContext, command: Move, alive: int, base: int) -> None:
        """`alive`: the items that the partition takes. Remembers their dedup keys; repeats of a
        known key are counted, and not alive.
        """
        self.alive = alive
        self.away = 0
        self.held: dict[int, int] = {}
        self._specials: tuple[ItemSpecial, ...] = ()
        self._slots = b""
        self._by_home: dict[int, int] = {}
        if alive and any(item.follow_up is not None for item in command.items):
            self._judge(context, command, base)

    def _judge(self, context: ApplyContext, command: Move, base: int) -> None:
        specials = []
        for ordinal in masks.ordinals(self.alive):
            fields = command.items[ordinal].follow_up
            if fields is None:
                continue
            home = _home(context, command, fields.slot)
            if home is not None:
                self._by_home[home] = self._by_home.get(home, 0) | 1 << ordinal
            if fields.dedup_key or fields.enqueue_at_ms:
                special = ItemSpecial(ordinal, fields.enqueue_at_ms, dedup_key=fields.dedup_key)
                specials.append(special)
        for mask in self._by_home.values():
            self.away |= mask
        slots = [
            NO_SLOT if item.follow_up is None else item.follow_up.slot for item in command.items
        ]
        if any(slot != NO_SLOT for slot in slots):
            self._slots = pack(f"<{len(slots)}H", *slots)
        self._specials = tuple(specials)
        here = Produce(
            lengths=command.lengths,
            specials=tuple(one for one in specials if not self.away >> one.ordinal & 1),
            slots=self._slots,
        )
        duplicates: Duplicates = known_keys(context, here.specials, base)
        remember_keys(context, here, base, duplicates)
        context.state.duplicates += len(duplicates)
        for duplicate in duplicates:
            self.alive &= ~(1 << duplicate[0])
        self.held = held_keys.lanes(context, self._slots, self.alive & ~self.away)

    def send_on(
        self,
        context: ApplyContext,
        command: Move,
        first_seq: int,
        start: int,
        length: int,
        flow_of: Sequence[int],
    ) -> None:
        """Puts those of the `length` items from `start` on into the outbox that belong to another
        partition. They are in the block that begins at `first_seq`. `flow_of` is as in
        `flows.by_flow`, for the command.
        """
        for home, all_items in sorted(self._by_home.items()):
            mask = (all_items >> start) & masks.full(length)
            for ordinal in masks.ordinals(mask):
                item = command.items[start + ordinal]
                if item.reason == DeadCause.HOME:
                    mask &= ~(1 << ordinal)
                    send(
                        context, first_seq, 1 << ordinal,
                        attempt=item.attempts, reason=DeadCause.HOME,
                        target_group=command.homes[home], priority=0,
                        flow=flow_of[start + ordinal] if flow_of else 0,
                    )  # fmt: skip
            priorities: dict[int, int] = {}
            for ordinal in masks.ordinals(mask):
                priority = command.items[start + ordinal].priority
                priorities[priority] = priorities.get(priority, 0) | 1 << ordinal
            fields = fields_of(
                self._specials, self._slots, range(start, start + length), base=start
            )
            for priority, items in by_priority(mask, priorities):
                send_follow_ups(
                    context,
                    first_seq,
                    items,
                    priority=priority,
                    target_group=command.homes[home],
                    follow_ups=FollowUps(context.queue.queue, home, fields),
                )
