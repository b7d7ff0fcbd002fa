"""Mutants: the packages above the raft package, broken on purpose. The simulator must find each.

A mutant is a context manager: within it the real classes do one thing wrong.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec

from querator.durable.activation_run import ActivationRun
from querator.durable.attempts import Attempts
from querator.durable.folds import CodeEvent
from querator.durable.kept_leases import KeptLease
from querator.durable.machine import ExecutionMachine
from querator.durable.producing import Production
from querator.model.commands import (
    Configure,
    Done,
    HalfOpen,
    LeaseGrant,
    LeaseResult,
    LetterFilter,
    Moved,
    PartitionSettings,
    Refill,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.event_calls import EventKind
from querator.model.execution_commands import RecordProgress
from querator.model.executions import Close
from querator.model.limits import BLOCK_ITEMS_MAX
from querator.partition import (
    breaker,
    checkpoints,
    dead,
    duplicates,
    execution_arrivals,
    executions,
    feed,
    feed_queries,
    flows,
    follow_ups,
    lease,
    limit_rows,
    limits,
    machine,
    masks,
    named_lease,
    outbox,
    prioritize,
    produce,
    recording,
    recurrences,
    redrive,
    removals,
    reschedule,
    results,
    settle,
)
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import send
from querator.partition.execution_items import send_items
from querator.partition.flow_choice import _Chooser
from querator.partition.flow_rows import FlowRow
from querator.partition.flows import ROOT, Flows
from querator.partition.look_ahead import look_ahead
from querator.partition.outbox import outbox_batch
from querator.partition.overlays import drop_data, load_overlay
from querator.partition.rows import Block, RowState, decode_lease, decode_overlay, encode
from querator.partition.segments import find_item, ready_rows
from querator.placement.map.commands import GiveUpTarget
from querator.placement.tasks import balancing
from querator.placement.tasks.leader_tasks import LeaderTasks
from querator.raft.starts import StartMemory
from querator.server.link.node_calls import NodeCalls
from querator.service import moves, schedules
from querator.service.execution_waits import ExecutionWaits
from querator.service.feed import waits
from querator.service.lease.calls import LeaseService
from querator.service.lease.dispatcher import LeaseDispatcher
from querator.service.lease.pinned import PinnedLeases
from querator.service.produce import calls
from querator.service.reading import browsing
from querator.service.recurring import planning
from querator.service.routing.router import Router
from querator.storage.tables import ENDED, OVERLAYS
from tests.simulation.mutants import replaced


def swallows_answers() -> Any:
    """Every fifth answer to another node is not sent."""
    answer, counted = NodeCalls._answer, [0]

    def swallow(self: NodeCalls, said: Any) -> None:
        counted[0] += 1
        if counted[0] % 5:
            answer(self, said)
        else:
            self._asked -= 1

    return replaced(NodeCalls, "_answer", swallow)


def lets_waiters_sleep() -> Any:
    """Waiting callers are not informed of what becomes ready."""

    def on_supply(self: LeaseDispatcher, supply: Any) -> None:
        if supply.ready and supply.route.is_reachable and not supply.in_flight:
            self._open.setdefault(supply)
        else:
            self._open.pop(supply, None)

    return replaced(LeaseDispatcher, "on_supply", on_supply)


def drops_grants() -> Any:
    """A grant of another node is neither delivered nor given back."""
    answered = LeaseDispatcher._on_lease_answered

    def drop(self: LeaseDispatcher, sent: Any, came: Any) -> None:
        if sent.asked and isinstance(came, LeaseResult):
            grants = tuple(
                msgspec.structs.replace(grant, lease=0) if isinstance(grant, LeaseGrant) else grant
                for grant in came.grants
            )
            came = msgspec.structs.replace(came, grants=grants)
        answered(self, sent, came)

    return replaced(LeaseDispatcher, "_on_lease_answered", drop)


def keeps_stale_routes() -> Any:
    """A node takes the first leader that it hears of for the leader for ever."""
    follow = Router._follow

    def keep(self: Router, route: Any, node: str) -> None:
        if route.leader:
            self._check_route(route)
        else:
            follow(self, route, node)

    return replaced(Router, "_follow", keep)


def skips_what_moves() -> Any:
    """The first of several moving items is passed over, and counts as moved."""

    def skip(*args: Any, **more: Any) -> Any:
        batch = outbox_batch(*args, **more)
        if batch is None or len(batch.items) < 2:
            return batch
        return msgspec.structs.replace(
            batch,
            first_move=batch.first_move + 1,
            lengths=batch.lengths[4:],
            items=batch.items[1:],
            attachment=batch.attachment[int.from_bytes(batch.lengths[:4], "little") :],
        )

    return replaced(moves, "outbox_batch", skip)


def never_gives_up_targets() -> Any:
    """A group whose new replica died for good waits for it for ever."""

    def settled(self: LeaderTasks, group: Any) -> Any:
        found = report(self, group)
        return None if isinstance(found, GiveUpTarget) else found

    report = LeaderTasks._report
    return replaced(LeaderTasks, "_report", settled)


def forgets_leaving_nodes() -> Any:
    """A node that is removed leaves the placement group first, and learns no map after that."""
    return replaced(balancing, "_needs_map", lambda placed, node, connected: False)


def keeps_what_is_cancelled() -> Any:
    """A cancel is answered, and its items stay."""
    return replaced(reschedule, "_cancel", lambda context, chosen: None)


def loses_what_is_moved() -> Any:
    """Items that are moved to another time are gone."""
    cancel = reschedule._cancel
    return replaced(reschedule, "_move", lambda context, chosen, due_ms: cancel(context, chosen))


def lists_a_page_again() -> Any:
    """The last item of a page is on the next one as well."""
    after = schedules._after

    def before(place: tuple[int, int, int], partition: int) -> Any:
        due_ms, at, seq = place
        return after((due_ms, at, max(0, seq - 1)), partition)

    return replaced(schedules, "_after", before)


def leases_the_least_urgent_first() -> Any:
    """A lease scans the lanes from that of the highest priority."""

    def by_lane(txn: Any, group: int, state: Any) -> Any:
        rows = list(ready_rows(txn, group, state))
        lanes = dict.fromkeys(key[-17:-9] for key, _ in rows)
        return (row for lane in reversed(lanes) for row in rows if row[0][-17:-9] == lane)

    return replaced(lease, "ready_rows", by_lane)


def overlooks_what_is_urgent() -> Any:
    """A lease does not know that items of a priority below 0 come first."""

    def in_key_order(txn: Any, group: int, state: Any) -> Any:
        return ready_rows(txn, group, msgspec.structs.replace(state, urgent=0))

    return replaced(lease, "ready_rows", in_key_order)


def forgets_priorities_of_retries() -> Any:
    """A retry gives the items priority 0."""
    give_back = settle._give_back

    def forget(*, command: Any, **more: Any) -> None:
        give_back(command=msgspec.structs.replace(command, priority=0), **more)

    return replaced(settle, "_give_back", forget)


def keeps_priorities_of_ready_items() -> Any:
    """A change of priorities is answered, and ready items keep theirs."""
    change = prioritize._change

    def keep(context: Any, first_seq: int, parts: Any, priority: int) -> None:
        waiting = [part for part in parts if part[0].state != RowState.READY]
        change(context, first_seq, waiting, priority)

    return replaced(prioritize, "_change", keep)


def forgets_priorities_of_dead_letters() -> Any:
    """Dead letters that are redriven have priority 0."""

    def forget(*args: Any, **more: Any) -> None:
        send(*args, **(more | {"priority": 0}))

    return replaced(redrive, "send", forget)


def keeps_what_is_purged() -> Any:
    """Purges and cancels are answered, and their items stay."""

    def keep(context: Any, first_seq: int, parts: Any) -> int:
        return sum(part.bit_count() for _, part in parts)

    return replaced(removals, "remove_parts", keep)


def purges_without_an_end() -> Any:
    """A step of a purge also removes items that came after its first call."""

    def purge(context: Any, command: Any) -> Any:
        last = context.state.next_seq - 1
        return removals.purge(context, msgspec.structs.replace(command, upto_seq=last))

    return replaced(machine, "purge", purge)


def chooses_any_dead_letter() -> Any:
    """A filter of dead letters chooses all of them."""
    return replaced(LetterFilter, "chooses", lambda self, letter: True)


def forgets_attributes_of_retries() -> Any:
    """A retry is answered, and its attributes are not kept."""
    note = settle._note

    def forget(context: Any, first_seq: int, mask: int, command: Any) -> None:
        note(context, first_seq, mask, msgspec.structs.replace(command, attributes=None))

    return replaced(settle, "_note", forget)


def keeps_the_first_attributes() -> Any:
    """An item whose attributes a retry has changed keeps these for ever."""
    note = settle._note

    def keep(context: Any, first_seq: int, mask: int, command: Any) -> None:
        start = OVERLAYS.key(context.group, first_seq)
        stop = OVERLAYS.key(context.group, first_seq + BLOCK_ITEMS_MAX)
        rows = [decode_overlay(row) for _, row in context.txn.scan(start, stop)]
        if any(overlay.attributes is not None for overlay in rows):
            command = msgspec.structs.replace(command, attributes=None)
        note(context, first_seq, mask, command)

    return replaced(settle, "_note", keep)


def forgets_errors_when_attributes_change() -> Any:
    """A retry with attributes removes the errors of the item."""
    note = settle._note

    def forget(context: Any, first_seq: int, mask: int, command: Any) -> None:
        if command.attributes is not None:
            for ordinal in masks.ordinals(mask):
                row = OVERLAYS.get(context.txn, context.group, first_seq + ordinal)
                if row is not None:
                    overlay = msgspec.structs.replace(decode_overlay(row), errors=())
                    OVERLAYS.put(
                        context.txn, context.group, first_seq + ordinal, value=encode(overlay)
                    )
        note(context, first_seq, mask, command)

    return replaced(settle, "_note", forget)


def saves_under_ended_leases() -> Any:
    """A lease that has ended saves checkpoints for its items that are still there."""
    held = checkpoints._held

    def granted(context: Any, number: int) -> dict[int, int]:
        row = ENDED.get(context.txn, context.group, number)
        found: dict[int, int] = held(context, number)
        for items in () if row is None else decode_lease(row).items:
            for ordinal in masks.ordinals(masks.from_bytes(items.granted)):
                if find_item(context.txn, context.group, items.first_seq + ordinal) is not None:
                    before = found.get(items.first_seq, 0)
                    found[items.first_seq] = before | 1 << ordinal
        return dict(sorted(found.items()))

    return replaced(checkpoints, "_held", granted)


def drops_the_data_of_results() -> Any:
    """Completed items answer with nothing."""
    completed = results.completed

    def without_data(context: Any, first_seq: int, mask: int, returned: Any) -> None:
        completed(context, first_seq, mask, results.NOTHING)

    return replaced(settle, "completed", without_data)


def mixes_up_results() -> Any:
    """Of several results in a command, each item gets that of the next one."""
    completed = results.completed

    def mixed(context: Any, first_seq: int, mask: int, returned: Any) -> None:
        data = [*returned.values()]
        shifted = dict(zip(returned, data[1:] + data[:1], strict=True))
        completed(context, first_seq, mask, shifted)

    return replaced(settle, "completed", mixed)


def lets_dead_items_be_silent() -> Any:
    """Items that die do not answer. When they are gone, they seem to be removed."""
    return replaced(dead, "died", lambda *args: None)


def keeps_the_first_checkpoint() -> Any:
    """An item that has a checkpoint keeps it, whatever is saved later."""
    save = checkpoints._save

    def keep(context: Any, item: Any, part: int, size: int) -> None:
        stored = load_overlay(context.txn, context.group, item.seq).checkpoint
        if stored is None or not stored.size:
            save(context, item, part, size)
        else:
            drop_data(context, context.index, part)

    return replaced(checkpoints, "_save", keep)


def forgets_checkpoints_of_moves() -> Any:
    """Items that move to another queue have no checkpoint."""
    return replaced(outbox, "read_checkpoint", lambda *args: b"")


def forgets_attributes_of_moves() -> Any:
    """Items that move to another queue have the attributes with which they were produced."""
    moved = outbox._moved_item

    def forget(*args: Any, **more: Any) -> Any:
        return msgspec.structs.replace(moved(*args, **more), attributes=None)

    return replaced(outbox, "_moved_item", forget)


def forgets_limits_of_moves() -> Any:
    """Dead letters that are redriven have the number of attempts that their queue allows."""
    moved = outbox._moved_item

    def forget(*args: Any, **more: Any) -> Any:
        return msgspec.structs.replace(moved(*args, **more), max_attempts=None)

    return replaced(outbox, "_moved_item", forget)


def lets_items_grow_old() -> Any:
    """No item dies of its age."""
    return replaced(Block, "expired", lambda self, mask, now_ms: 0)


def lets_items_die_young() -> Any:
    """Items die at half their age."""
    expire_at = produce.expire_at

    def half(base_ms: int, timeout_ms: int) -> int:
        return expire_at(base_ms, timeout_ms // 2)

    return replaced(produce, "expire_at", half)


def counts_attempts_by_the_queue_alone() -> Any:
    """What items say about their attempts does not count."""
    by_retry = Block.by_retry

    def by_queue(self: Block, mask: int, max_attempts: int, retry: Any) -> Any:
        pieces = by_retry(self, mask, max_attempts, retry)
        return [(max_attempts, policy, items) for _, policy, items in pieces]

    return replaced(Block, "by_retry", by_queue)


def waits_by_the_queue_alone() -> Any:
    """What items say about their waits does not count."""
    by_retry = Block.by_retry

    def by_queue(self: Block, mask: int, max_attempts: int, retry: Any) -> Any:
        pieces = by_retry(self, mask, max_attempts, retry)
        return [(most, retry, items) for most, _, items in pieces]

    return replaced(Block, "by_retry", by_queue)


def gives_groups_one_weight() -> Any:
    """All groups count alike, whatever their weights."""
    child = _Chooser._child

    def alike(self: Any, parent: Any, flow: int) -> Any:
        source = child(self, parent, flow)
        source.weight = 1
        return source

    return replaced(_Chooser, "_child", alike)


def overlooks_limits_of_groups() -> Any:
    """A lease takes any number of items of a group."""
    child = _Chooser._child

    def unlimited(self: Any, parent: Any, flow: int) -> Any:
        source = child(self, parent, flow)
        source.room = -1
        return source

    return replaced(_Chooser, "_child", unlimited)


def serves_one_group_on() -> Any:
    """A lease does not count what it has taken of a group."""
    return replaced(_Chooser, "_serve", lambda self, parent, source, got: None)


def forgets_groups_of_moves() -> Any:
    """Items that move to a fair queue have no group there."""
    return replaced(moves, "flows_of_moved", lambda *args: None)


def leases_a_key_twice() -> Any:
    """A key of which something is leased does not wait."""

    def leasable(self: Flows, flow: int, row: FlowRow) -> int:
        if not self.keyed or flow == ROOT:
            return row.ready
        return min(row.ready, self.settings.key_leased_max)

    return replaced(Flows, "own_leasable", leasable)


def puts_retried_items_of_keys_at_the_tail() -> Any:
    """Failed items of a key return as those of plain queues."""
    return replaced(dead, "is_of_key", lambda context, flow: False)


def keeps_due_items_of_moved_keys() -> Any:
    """Items that come due are ready where they are, although their key has moved."""
    return replaced(reschedule, "send_home", lambda context, first_seq, mask, **more: mask)


def forgets_keys_of_requests() -> Any:
    """Items of a keyed queue are stored without their keys."""
    return replaced(calls, "flows_of", lambda queue, call: None)


def lets_old_copies_in() -> Any:
    """A connecting node is not judged by its starts."""
    return replaced(StartMemory, "judge", lambda self, node, starts: None)


def fires_again() -> Any:
    """Of some decisions about a recurrence only the items are kept."""
    fire = recurrences.fire

    def forgetful(context: Any, command: Any, parts: Any) -> Any:
        if context.index % 3 or not command.due_ms:
            return fire(context, command, parts)
        with replaced(recurrences, "_move", lambda *_: None):
            return fire(context, command, parts)

    return replaced(machine, "fire", forgetful)


def overlooks_due_times() -> Any:
    """Every fourth due time is not seen."""
    coming = planning.coming

    def some(group: int, recurrence: Any, after_ms: int) -> Any:
        for due_ms, at_ms in coming(group, recurrence, after_ms):
            if due_ms // recurrence.row.spec.interval_ms % 4:
                yield due_ms, at_ms

    return replaced(planning, "coming", some)


def fires_while_paused() -> Any:
    """A recurrence that is paused stays in its place in the index of times."""
    begun = recurrences._begun

    def stay(context: Any, runs: Any, *, paused: bool, spans: Any) -> Any:
        return begun(context, runs, paused=False, spans=spans)

    return replaced(recurrences, "_begun", stay)


def produces_follow_ups_again() -> Any:
    """A repeat of a call stores its follow-ups once more."""
    return replaced(follow_ups, "_admit", _storing(lambda outcome: bool(outcome.repeated)))


def produces_follow_ups_of_lost_leases() -> Any:
    """A call whose lease has ended stores its follow-ups."""
    return replaced(follow_ups, "_admit", _storing(lambda outcome: not outcome.repeated))


def _storing(when: Any) -> Any:
    """`follow_ups._admit`, which also stores the follow-ups of other outcomes."""
    admit = follow_ups._admit

    def store(context: Any, command: Any, judged: Any, first_seq: int, settled: Any) -> Any:
        refusal = admit(context, command, judged, first_seq, settled)
        [outcome] = settled.outcomes
        judged.fresh = judged.fresh or (not outcome.done and when(outcome))
        return refusal

    return store


def forgets_what_full_queues_refuse() -> Any:
    """What a target has no space for leaves the outbox all the same."""
    arrived = moves.Mover._arrived

    def forget(self: moves.Mover, source: Any, batch: Any, outcome: Any) -> None:
        if isinstance(outcome, QueratorError) and outcome.code is ErrorCode.QUEUE_FULL:
            outcome = Moved(0, batch.first_move + len(batch.items) - 1)
        arrived(self, source, batch, outcome)

    return replaced(moves.Mover, "_arrived", forget)


def bumps_for_ever() -> Any:
    """The limit of a bumped item counts from its last produce."""
    holder = duplicates._holder

    def late(context: Any, key: bytes) -> Any:
        found = holder(context, key)
        return found and msgspec.structs.replace(found, since_ms=context.now_ms)

    return replaced(duplicates, "_holder", late)


def decides_about_distant_keys_alone() -> Any:
    """A partition does not have the partition of an item asked whether it is done."""
    return replaced(produce, "unsure", lambda *_: None)


def stores_beside_what_waits() -> Any:
    """No item repeats a key."""
    return replaced(produce, "known_keys", lambda context, specials, first_seq, stored=(): stored)


def _configures(changed: Callable[[ApplyContext, PartitionSettings], PartitionSettings]) -> Any:
    """Partitions take other settings than the operator's."""
    configure = machine.configure

    def take(context: ApplyContext, command: Configure) -> Done:
        settings = changed(context, command.settings)
        return configure(context, msgspec.structs.replace(command, settings=settings))

    return replaced(machine, "configure", take)


def leases_in_pauses() -> Any:
    """Partitions do not obey a pause of leases."""
    return _configures(lambda _, settings: msgspec.structs.replace(settings, lease_paused=False))


def stores_in_pauses() -> Any:
    """Partitions do not obey a pause of producers."""
    return _configures(lambda _, settings: msgspec.structs.replace(settings, produce_paused=False))


def pauses_for_ever() -> Any:
    """Leases that were paused once do not continue."""
    return _configures(
        lambda context, settings: msgspec.structs.replace(
            settings, lease_paused=settings.lease_paused or context.state.lease_paused
        )
    )


def leases_while_open() -> Any:
    """A breaker that is open does not keep callers from items."""
    return replaced(breaker, "admitted", lambda _, callers: callers)


def tries_many_items() -> Any:
    """A half-open breaker forgets the item that it tries."""
    return replaced(breaker, "leased", lambda *_: None)


def stays_open() -> Any:
    """Leaders do not propose that breakers try items."""
    due = machine.PartitionMachine.due_commands

    def without(one: machine.PartitionMachine, now_ms: int, *, prompt: bool = False) -> Any:
        return [each for each in due(one, now_ms, prompt=prompt) if not isinstance(each, HalfOpen)]

    return replaced(machine.PartitionMachine, "due_commands", without)


def leases_above_the_rate() -> Any:
    """A lease takes no tokens."""
    return replaced(limits, "leased", lambda *_: None)


def leases_above_the_limit() -> Any:
    """Leased items do not count."""
    leasable = limit_rows.LimitRow.leasable
    return replaced(
        limit_rows.LimitRow, "leasable", lambda row, ready, _, now: leasable(row, ready, 0, now)
    )


def never_refills() -> Any:
    """Leaders do not propose that tokens are there."""
    due = machine.PartitionMachine.due_commands

    def without(one: machine.PartitionMachine, now_ms: int, *, prompt: bool = False) -> Any:
        return [each for each in due(one, now_ms, prompt=prompt) if not isinstance(each, Refill)]

    return replaced(machine.PartitionMachine, "due_commands", without)


def forgets_tokens_of_flows() -> Any:
    """Leases take no tokens of groups and keys."""
    return replaced(flows.Flows, "took", lambda *_: None)


def forgets_tokens_of_groups_above() -> Any:
    """Leases take tokens of their group alone, and not of those above it."""
    took = flows.Flows.took

    def of_one(one: flows.Flows, flow: int, count: int) -> None:
        row = one.load(flow)
        parent, row.parent = row.parent, flows.ROOT
        took(one, flow, count)
        row.parent = parent

    return replaced(flows.Flows, "took", of_one)


def never_refills_flows() -> Any:
    """Groups and keys without tokens stay without a turn."""
    return replaced(flows.Flows, "refill", lambda *_, **__: 0)


def forgets_events_of_completes() -> Any:
    """Completed items leave no event."""
    items = feed.EventNotes.items

    def without(notes: feed.EventNotes, kind: EventKind, *args: Any, **more: Any) -> None:
        if kind is not EventKind.COMPLETED:
            items(notes, kind, *args, **more)

    return replaced(feed.EventNotes, "items", without)


def leaves_out_events_between_pages() -> Any:
    """A page that is full says that the next one begins one position later."""
    page = feed_queries.events_page

    def skipping(*args: Any, **more: Any) -> Any:
        found = page(*args, **more)
        if found.events and found.next < found.end:
            return msgspec.structs.replace(found, next=found.next + 1)
        return found

    return replaced(waits, "events_page", skipping)


def drops_events_too_early() -> Any:
    """Every entry deletes the oldest events."""
    delete = feed.delete_old

    def dropping(context: ApplyContext, rows_max: int) -> int:
        row = context.state.feed
        if row is not None and row.next > 20:
            row.first = max(row.first, row.next - 10)
        return delete(context, rows_max)

    return replaced(feed, "delete_old", dropping)


def leases_beside_the_choice() -> Any:
    """A lease by id takes the whole segments in which its items are."""
    named_candidates = named_lease.named_candidates

    def whole(context: ApplyContext, named: Any, aside: frozenset[int]) -> Any:
        found = named_candidates(context, named, aside)
        return [(first, block, segment, segment.mask) for first, block, segment, _ in found]

    return replaced(lease, "named_candidates", whole)


def chooses_any_kind() -> Any:
    """A look ahead finds items of all kinds."""
    return replaced(
        browsing,
        "look_ahead",
        lambda txn, group, sought, **more: look_ahead(
            txn, group, msgspec.structs.replace(sought, kinds=()), **more
        ),
    )


def delivers_without_completing() -> Any:
    """What is to be completed on delivery is only leased."""

    async def uncompleted(self: LeaseService, queue: Any, reply: Any) -> Any:
        return reply

    return replaced(LeaseService, "_completed", uncompleted)


def begins_effects_at_once() -> Any:
    """Effects begin before what their execution has seen is durable."""
    take_ready = Attempts.take_ready

    def ready(self: Attempts, now_ms: int, acknowledged: int) -> Any:
        return take_ready(self, now_ms, 1 << 30)

    return replaced(Attempts, "take_ready", ready)


def produces_again_in_replays() -> Any:
    """Code that runs again produces its items again."""
    was_produced = ExecutionMachine._was_produced

    def again(self: ExecutionMachine, record: Any) -> None:
        production = self.code.productions[record.note.path]
        was_produced(self, record)
        event = CodeEvent(0)
        event.produced = production.produced
        self.code.productions[production.path] = Production(
            production.path, production.produced, production.site, event, production.turn
        )

    return replaced(ExecutionMachine, "_was_produced", again)


def drops_items_of_executions() -> Any:
    """What is produced with the last record of an execution is not stored."""

    def send(context: ApplyContext, command: RecordProgress, blocks: Any) -> None:
        if not isinstance(command.then, Close):
            send_items(context, command, blocks)

    return replaced(recording, "send_items", send)


def records_without_leases() -> Any:
    """A Record counts under any lease."""
    return replaced(recording, "_holds", lambda context, command, row: True)


def runs_past_leases() -> Any:
    """A worker never thinks that a lease is over."""
    stack = ExitStack()
    stack.enter_context(replaced(KeptLease, "is_over", False))
    stack.enter_context(replaced(ActivationRun, "_until_ms", lambda run: 1 << 60))
    return stack


def forgets_messages() -> Any:
    """A signal that is sent again counts again."""
    signal = execution_arrivals._signal

    def forgetful(context: ApplyContext, command: Any, *args: Any) -> Any:
        return signal(context, msgspec.structs.replace(command, message_id=""), *args)

    return replaced(execution_arrivals, "_signal", forgetful)


def lets_executions_sleep() -> Any:
    """What arrives for a parked execution does not wake it."""
    return replaced(executions, "_wakes", lambda row, mark: False)


def overlooks_pins() -> Any:
    """Workers get what is ready, and nothing that is pinned."""

    async def nothing(self: PinnedLeases, *args: Any) -> Any:
        return []

    return replaced(PinnedLeases, "_pinned", nothing)


def loses_pins_that_lapse() -> Any:
    """What was pinned has no activation and no pin when its lease has lapsed."""
    pin = executions.pin

    def lost(context: ApplyContext, number: int, row: Any) -> None:
        if row.lapses:
            executions.drop_activation(context, row)
        else:
            pin(context, number, row)

    return replaced(executions, "pin", lost)


def lets_questions_sleep() -> Any:
    """Clients that wait for the end of an execution are not informed."""
    return replaced(ExecutionWaits, "on_effects", lambda waits, group, effects: None)
