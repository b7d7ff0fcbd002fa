"""The partition as a state machine: the log alone decides what happens, equally on every replica.

`apply` clamps time, so that it never goes back. It carries out the commands of an entry and writes
the applied index, all in the caller's transaction. A client's mistake is a value among the results.
An exception is a defect or an entry of a later version, and stops the group.

Order within an entry: first settings, routes, adopted facts, Unhold, FreeKeys and RepairTime, then
all produces together, then the other commands in their order. Any order is right, because all calls
of one entry are unanswered.

Longer than 500 lines: each command has its line in one place.
"""

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from querator.model.commands import (
    Activate,
    Adopt,
    Answer,
    Cancel,
    Command,
    Complete,
    Configure,
    Done,
    DropLetters,
    Expire,
    Extend,
    ExtendResult,
    Follow,
    ForgetGroups,
    FreeKeys,
    GiveUp,
    HalfOpen,
    Lease,
    Move,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Prioritize,
    Produce,
    ProduceResult,
    Purge,
    Redrive,
    Refill,
    Refusal,
    RepairTime,
    Reschedule,
    Result,
    ResumeMoves,
    Retry,
    Route,
    SaveCheckpoints,
    SetBreaker,
    SettleResult,
    Unhold,
)
from querator.model.entries import Applied, Entry, Need, Proposal
from querator.model.execution_commands import (
    Arrive,
    FireTimers,
    LeasePinned,
    RecordProgress,
    RewindExecution,
    StartExecution,
)
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.model.queues import QueueKind
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.model.recurrences import (
    DeleteRecurrence,
    Fire,
    PauseRecurrence,
    PutRecurrence,
    Remind,
)
from querator.model.transactions import (
    AbortTxn,
    Begin,
    Decide,
    Discard,
    DropStages,
    Finish,
    Prepare,
    Publish,
    Stage,
)
from querator.partition import digest as digests
from querator.partition import held_keys
from querator.partition.adoption import adopt
from querator.partition.apply_context import ApplyContext, unconfigured
from querator.partition.breaker import configure_breaker, half_open, set_breaker
from querator.partition.checkpoints import save_checkpoints
from querator.partition.dedup_rows import free_keys
from querator.partition.departed import forget_groups
from querator.partition.entry import pack, unpack_entry
from querator.partition.execution_machine import (
    leasing,
    of_kind,
    taking,
    without_attachment,
)
from querator.partition.executions import place_activations
from querator.partition.expire import activate, expire
from querator.partition.extend import extend
from querator.partition.feed import configured, routed
from querator.partition.follow_ups import follow
from querator.partition.give_up import give_up
from querator.partition.lease import lease
from querator.partition.limits import configure_limits
from querator.partition.moves import move, move_done, move_elsewhere, move_return, resume_moves
from querator.partition.needs import need, with_events, with_flows, with_results
from querator.partition.prioritize import prioritize
from querator.partition.produce import produce
from querator.partition.readers import advance_reader, open_reader, release_reader
from querator.partition.recurrences import (
    delete_recurrence,
    fire,
    pause_recurrence,
    put_recurrence,
    remind,
)
from querator.partition.redate import repair_time
from querator.partition.redrive import drop_letters, redrive
from querator.partition.removals import cancel, purge
from querator.partition.reschedule import reschedule
from querator.partition.results import answer
from querator.partition.rows import (
    PartitionState,
    SettingsRow,
    decode_settings,
    decode_state,
    encode,
)
from querator.partition.settle import complete, retry
from querator.partition.staging import discard, drop_stages, prepare, publish, stage
from querator.partition.transactions import abort_txn, begin, decide, finish
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.tables import SETTINGS, STATE


class PartitionMachine:
    """The rules of one partition. All its state is in the tables. The object caches five things:
    the last settings row with its value, whether the queue has flows, whether it asks for events,
    how many items have asked for their results, and the due times that the last apply returned.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self._settings_raw: bytes | None = None
        self._settings: SettingsRow | None = None
        self._has_flows = False
        self._has_feed = False
        self._asked = 0
        self._lapse_ms = 0
        self._expire_ms = 0
        self._activate_ms = 0
        self._remind_ms = 0
        self._breaker_ms = 0
        self._refill_ms = 0
        self._fire_ms = 0

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        """Packs many commands into one entry. Attachments of produces and moves become blocks."""
        return pack(proposals, now_ms)

    def need(self, txn: ReadTransaction, command: Any) -> Need:
        found = need(txn, self.group, command)
        if self._has_flows:
            found = with_flows(found, command)
        if self._asked:
            found = with_results(txn, self.group, found, command, self._asked)
        if self._has_feed:
            found = with_events(found)
        return found

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        body = unpack_entry(command)
        raw = STATE.get(txn, self.group)
        state = PartitionState() if raw is None else decode_state(raw)
        state.index, state.term = index, term
        state.now_ms = max(state.now_ms, body.now_ms)
        row = self._load_settings(txn)
        txns = state.txns
        context = ApplyContext(txn, self.group, state, index=index, log_first=log_first, row=row)
        results = _carry_out(context, body.commands, body.parts)
        if context.activations:
            place_activations(context)
        if context.feed is not None:
            context.feed.write(context)
        if context.flows is not None:
            context.flows.refresh()
        STATE.put(txn, self.group, value=encode(state))
        self._has_flows = context.flows is not None
        self._has_feed = context.feed is not None
        self._asked = state.asked
        return self._applied(state, results, txns, context)

    def tells_early(self, result: Any) -> bool:
        """False for results after which the caller reads the tables: a lease is followed by a read
        of its items, and a move by a read of the remaining moves.
        """
        return isinstance(result, ProduceResult | SettleResult | ExtendResult)

    def recover(self, txn: ReadTransaction) -> Applied:
        raw = STATE.get(txn, self.group)
        row = self._load_settings(txn)
        self._has_flows = row is not None and row.settings.flows is not None
        self._has_feed = row is not None and row.settings.events_retention_ms > 0
        state = PartitionState() if raw is None else decode_state(raw)
        self._asked = state.asked
        return self._applied(state, ())

    def due_commands(self, now_ms: int, *, prompt: bool = False) -> Sequence[Any]:
        commands: list[Command] = []
        lapses = not prompt and 0 < self._lapse_ms <= now_ms
        if lapses or 0 < self._expire_ms <= now_ms:
            commands.append(Expire(lapses=not prompt))
        if 0 < self._activate_ms <= now_ms:
            commands.append(Activate())
        if 0 < self._remind_ms <= now_ms:
            commands.append(Remind())
        if 0 < self._breaker_ms <= now_ms:
            commands.append(HalfOpen())
        if 0 < self._refill_ms <= now_ms:
            commands.append(Refill())
        if 0 < self._fire_ms <= now_ms:
            commands.append(FireTimers())
        return commands

    def digest(self, txn: ReadTransaction) -> bytes:
        return digests.digest(txn, self.group)

    def _load_settings(self, txn: ReadTransaction) -> SettingsRow | None:
        raw = SETTINGS.get(txn, self.group)
        if raw != self._settings_raw:
            self._settings = None if raw is None else decode_settings(raw)
            self._settings_raw = raw
        return self._settings

    def _applied(
        self,
        state: PartitionState,
        results: tuple[Result, ...],
        txns: int = 0,
        context: ApplyContext | None = None,
    ) -> Applied:
        """`txns` is the number of transactions that were open before. `context` is that of the
        entry; None: there is none.
        """
        self._lapse_ms = state.deadline_head_ms
        self._activate_ms = state.schedule_head_ms
        self._remind_ms = state.recurring_head_ms
        self._expire_ms = _earliest(state.expiry_head_ms, state.cleanup_head_ms)
        prompt_ms = _earliest(self._expire_ms, _earliest(self._activate_ms, self._remind_ms))
        self._breaker_ms = 0
        if state.breaker is not None:
            self._breaker_ms = state.breaker.until_ms
            prompt_ms = _earliest(prompt_ms, self._breaker_ms)
        self._refill_ms = 0
        if state.limits is not None or state.flow_due_ms:
            self._refill_ms = _earliest(state.refill_ms, state.flow_due_ms)
            prompt_ms = _earliest(prompt_ms, self._refill_ms)
        self._fire_ms = 0
        if state.executions is not None:
            self._fire_ms = state.executions.head_ms
            prompt_ms = _earliest(prompt_ms, self._fire_ms)
        due_ms = _earliest(prompt_ms, self._lapse_ms)
        # Moves and transactions are read from the tables as soon as they are reported.
        early = not (state.moving or state.txns or txns)
        effects = state.effects
        if context is not None and (
            context.answered
            or context.ended_ids
            or context.published_ids
            or context.pinned_functions
            or context.arrived_numbers
        ):
            effects = msgspec.structs.replace(
                effects,
                answered_seqs=tuple(context.answered),
                ended_ids=tuple(context.ended_ids),
                published_ids=tuple(context.published_ids),
                pinned_functions=tuple(context.pinned_functions),
                arrived_numbers=tuple(context.arrived_numbers),
            )
        return Applied(results, effects, due_ms or None, early=early, prompt_ms=prompt_ms or None)


def _earliest(head_ms: int, other_ms: int) -> int:
    """The earlier of two heads. 0 means none."""
    return min(head_ms, other_ms) if head_ms and other_ms else head_ms or other_ms


def _carry_out(
    context: ApplyContext, commands: Sequence[Command], parts: tuple[int, ...]
) -> tuple[Result, ...]:
    results: list[Result] = [Done()] * len(commands)
    produces: list[int] = []
    produced = 0
    for place, command in enumerate(commands):
        if isinstance(command, Configure | Route | Adopt | Unhold | RepairTime | FreeKeys):
            results[place] = _first(context, command)
        elif isinstance(command, Produce):
            produces.append(place)
            produced += len(command.lengths) >> 2
    part = 0
    if produces:
        while produced:
            produced -= parts[part]
            part += 1
        assert produced == 0, "the first parts of an entry hold its produces"
        chosen = [commands[place] for place in produces]
        answers = produce(
            context, [item for item in chosen if isinstance(item, Produce)], parts[:part]
        )
        for place, answer in zip(produces, answers, strict=True):
            results[place] = answer
    for place, command in enumerate(commands):
        if type(command) in _TAKING:
            assert isinstance(command, _Taking)
            moved = _parts_items(command)
            mine: list[tuple[int, int]] = []
            while moved:
                mine.append((part, parts[part]))
                moved -= parts[part]
                part += 1
            results[place] = _taking(context, command, mine)
        elif not isinstance(
            command, Configure | Route | Adopt | Unhold | RepairTime | FreeKeys | Produce
        ):
            results[place] = _one(context, command)
    assert part == len(parts), "every attachment belongs to a command"
    return tuple(results)


def _parts_items(command: "_Taking") -> int:
    """The number of items of all attachments of a command."""
    count = len(command.lengths) >> 2
    if isinstance(command, Move):
        count += len(command.checkpoints)
    elif isinstance(command, RecordProgress):
        count += command.items
    return count


_Taking = (
    Move
    | Stage
    | Follow
    | Fire
    | SaveCheckpoints
    | Answer
    | StartExecution
    | RecordProgress
    | Arrive
)
_TAKING = frozenset(get_args(_Taking))
"""Commands with attachments of their own."""


def _taking(context: ApplyContext, command: _Taking, parts: list[tuple[int, int]]) -> Result:
    if context.activations is not None:
        return taking(context, command, parts)
    match command:
        case SaveCheckpoints():
            return save_checkpoints(context, command, parts)
        case Answer():
            return answer(
                context, command, parts,
                lambda returned: unconfigured()
                if context.row is None
                else complete(context, command.complete, returned=returned),
            )  # fmt: skip
        case Move():
            return move(context, command, parts)
        case Stage():
            return stage(context, command, parts)
        case Follow():
            return follow(context, command, parts)
        case Fire():
            return fire(context, command, parts)
        case StartExecution() | RecordProgress() | Arrive():
            return taking(context, command, parts)


def _first(
    context: ApplyContext, command: Configure | Route | Adopt | Unhold | RepairTime | FreeKeys
) -> Done | Refusal:
    match command:
        case RepairTime():
            return repair_time(context, command)
        case Configure():
            return configure(context, command)
        case Route():
            return route(context, command)
        case Adopt():
            return adopt(context, command)
        case Unhold():
            return unconfigured() if context.row is None else held_keys.unhold(context, command)
        case FreeKeys():
            return unconfigured() if context.row is None else free_keys(context, command)


def _one(context: ApplyContext, command: Command) -> Result:
    if context.row is None:
        return unconfigured()
    if context.activations is not None:
        refusal = of_kind(context, command)
        if refusal is not None:
            return refusal
    match command:
        case Lease():
            return lease(context, command)
        case Complete():
            return complete(context, command)
        case Retry():
            return retry(context, command)
        case Extend():
            return extend(context, command)
        case Expire() | Activate() | HalfOpen() | Refill():
            return _timed(context, command)
        case MoveDone() | MoveReturn() | MoveElsewhere() | ResumeMoves() | ForgetGroups():
            return _of_moves(context, command)
        case Purge() | Cancel() | DropLetters():
            return _removing(context, command)
        case Redrive() | GiveUp() | Reschedule() | Prioritize() | SetBreaker():
            return _of_operator(context, command)
        case _:
            return _of_reader(context, command)


def _timed(context: ApplyContext, command: Expire | Activate | HalfOpen | Refill) -> Done:
    match command:
        case Expire():
            return expire(context, lapses=command.lapses)
        case Activate():
            return activate(context)
        case HalfOpen():
            return half_open(context)
        case Refill():
            # The time of the entry is what brings the tokens of the queue.
            flows = context.flows
            return Done(0 if flows is None else flows.refill(APPLY_SEGMENTS_MAX, waits=True))


def _of_operator(
    context: ApplyContext, command: Redrive | GiveUp | Reschedule | Prioritize | SetBreaker
) -> Result:
    match command:
        case Redrive():
            return redrive(context, command)
        case GiveUp():
            return give_up(context, command)
        case Reschedule():
            return reschedule(context, command)
        case Prioritize():
            return prioritize(context, command)
        case SetBreaker():
            return set_breaker(context, command)


def _removing(context: ApplyContext, command: Purge | Cancel | DropLetters) -> Result:
    match command:
        case Purge():
            return purge(context, command)
        case Cancel():
            return cancel(context, command)
        case DropLetters():
            return drop_letters(context, command)


def _of_moves(
    context: ApplyContext,
    command: MoveDone | MoveReturn | MoveElsewhere | ResumeMoves | ForgetGroups,
) -> Done:
    match command:
        case MoveDone():
            return move_done(context, command)
        case MoveReturn():
            return move_return(context, command)
        case MoveElsewhere():
            return move_elsewhere(context, command)
        case ResumeMoves():
            return resume_moves(context, command)
        case ForgetGroups():
            return forget_groups(context, command)


def _recurring(
    context: ApplyContext,
    command: PutRecurrence | PauseRecurrence | DeleteRecurrence | Remind,
) -> Result:
    match command:
        case PutRecurrence():
            return put_recurrence(context, command)
        case PauseRecurrence():
            return pause_recurrence(context, command)
        case DeleteRecurrence():
            return delete_recurrence(context, command)
        case Remind():
            return remind(context)


def _of_reader(context: ApplyContext, command: Command) -> Result:
    match command:
        case PutRecurrence() | PauseRecurrence() | DeleteRecurrence() | Remind():
            return _recurring(context, command)
        case OpenReader():
            return open_reader(context, command)
        case AdvanceReader():
            return advance_reader(context, command)
        case ReleaseReader():
            return release_reader(context, command)
        case _:
            return _transactional(context, command)


def _transactional(context: ApplyContext, command: Command) -> Result:
    match command:
        case Prepare():
            return prepare(context, command)
        case Publish():
            return publish(context, command)
        case Discard():
            return discard(context, command)
        case DropStages():
            return drop_stages(context, command)
        case Begin():
            return begin(context, command)
        case Decide():
            return decide(context, command)
        case AbortTxn():
            return abort_txn(context, command)
        case Finish():
            return finish(context, command)
        case LeasePinned():
            return leasing(context, command)
        case FireTimers() | RewindExecution():
            return without_attachment(context, command)
        case _:
            raise AssertionError(f"{type(command).__name__} is not dispatched here")


def configure(context: ApplyContext, command: Configure) -> Done:
    """Settings take effect with the entry that carries them. Older versions are skipped. The kind
    of a queue stays, and the items of a keyed one do not age.
    """
    row, state, settings = context.row, context.state, command.settings
    if row is not None and command.version <= row.version:
        return Done(0)
    state.lease_paused = settings.lease_paused
    configure_breaker(context, settings.breaker)
    configure_limits(context, settings.limits)
    if settings.flows is not None and settings.flows.kind is QueueKind.KEYED:
        settings = msgspec.structs.replace(settings, priority_aging_ms=0)
    if settings.executions is not None:
        # Activations neither die nor expire: their executions decide.
        settings = msgspec.structs.replace(
            settings, max_attempts=0, expire_timeout_ms=0, dead_targets=()
        )
    if row is None:
        state.next_seq = max(state.next_seq, settings.first_seq)
        state.age_since_ms = context.now_ms
        row = SettingsRow(command.version, settings)
        context.begin_flows(settings)
        if settings.executions is not None:
            context.activations = []
    elif settings.priority_aging_ms != row.settings.priority_aging_ms:
        state.age_steps, state.age_since_ms = context.age, context.now_ms
    if context.flows is not None:
        if settings.flows is None or settings.flows.kind is not context.flows.settings.kind:
            settings = msgspec.structs.replace(settings, flows=context.flows.settings)
        elif context.flows.configure(settings.flows):
            state.cleanup_head_ms = context.now_ms
    elif settings.flows is not None:
        settings = msgspec.structs.replace(settings, flows=None)
    if (settings.executions is None) != (row.settings.executions is None):
        settings = msgspec.structs.replace(settings, executions=row.settings.executions)
    before = context.row
    context.put_share(msgspec.structs.replace(row, version=command.version, settings=settings))
    configured(context, before)
    return Done(1)


def route(context: ApplyContext, command: Route) -> Done | Refusal:
    """As `configure`. Of one version, the route that is not open precedes the open one."""
    row = context.row
    if row is None:
        return unconfigured()
    if (command.version, command.open) <= (row.routing, row.open):
        return Done(0)
    changes = row.changes
    if command.open and command.before:
        changes = held_keys.begin(context, row, command)
    row = msgspec.structs.replace(
        row,
        routing=command.version,
        routed=command.partitions,
        open=command.open,
        changes=changes,
        groups=command.groups,
    )
    # A change that is not open yet may be undone.
    if row.open and row.closing:
        row = msgspec.structs.replace(row, moves_closed=True)
    elif row.open and row.moves_closed:
        row = msgspec.structs.replace(row, moves_closed=False, moves_since=row.routing)
    context.put_share(row)
    if command.open:
        routed(context)
    return Done(1)
