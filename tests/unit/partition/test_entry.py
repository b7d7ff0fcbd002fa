"""The file format of the log: golden bytes, and how attachments become blocks."""

from struct import pack as pack_struct
from typing import Any

import msgspec
import pytest

from querator.model.commands import (
    Activate,
    Adopt,
    Answer,
    AnsweredItem,
    Cancel,
    Complete,
    Configure,
    DeadTarget,
    DropLetters,
    Expire,
    Extend,
    Facts,
    FlowNames,
    FlowSettings,
    Follow,
    FollowTarget,
    ForgetGroups,
    FreeKeys,
    GiveUp,
    HalfOpen,
    ItemCheckpoint,
    ItemSpecial,
    KeyedPlace,
    KeyFact,
    Lease,
    LeaseCaller,
    LeaseItems,
    LetterFilter,
    Move,
    MovedItem,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    OutcomeFact,
    Prioritize,
    Produce,
    ProducerFact,
    Purge,
    Redrive,
    Refill,
    RepairTime,
    Reschedule,
    ResumeMoves,
    Retry,
    Route,
    SaveCheckpoints,
    SetBreaker,
    Unhold,
)
from querator.model.entries import Proposal
from querator.model.execution_commands import (
    Arrive,
    FireTimers,
    LeasePinned,
    RecordProgress,
    RewindExecution,
    SentItems,
    StartExecution,
)
from querator.model.executions import (
    ChildStart,
    Close,
    Fold,
    GiveBack,
    KeyPolicy,
    NewRun,
    Note,
    Park,
    Published,
    Timer,
)
from querator.model.item_options import FollowUpFields, OnDuplicate
from querator.model.lease_limits import LeaseLimits
from querator.model.limits import BLOCK_BYTES_MAX
from querator.model.queues import (
    BreakerSettings,
    DedupUntil,
    ExecutionSettings,
    Fairness,
    GroupSettings,
    QueueKind,
    RateSettings,
    RetryBackoff,
    RetryWaits,
)
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.model.recurrences import (
    DeleteRecurrence,
    Fire,
    MissedRuns,
    Overlap,
    PauseRecurrence,
    PutRecurrence,
    RecurrenceSpec,
    Remind,
)
from querator.model.transactions import (
    AbortTxn,
    Begin,
    Decide,
    Discard,
    DropStages,
    Finish,
    Participant,
    Prepare,
    Publish,
    Stage,
    StageClaim,
)
from querator.partition.entry import UnknownEntryVersion, pack, unpack_entry
from tests.unit.partition.partition_log import START_MS, produce, settings

HOME = DeadTarget("home", 3, 12)
FLOWS = FlowNames((b"eu.de", b"us"), b"\x01\0\xff\xff")
SLOWLY = RetryWaits(2_000, 60_000, RetryBackoff.LINEAR, jitter=False)
LETTER = MovedItem(
    origin_queue="work",
    origin_partition=1,
    origin_group=7,
    origin_seq=42,
    attempts=3,
    reason=1,
    errors=("slow", "broken"),
    produced_at_ms=1000,
    died_at_ms=2000,
    expire_timeout_ms=3000,
    lease_timeout_ms=4000,
    priority=-3,
    attributes=(("page", "7"),),
    max_attempts=7,
    retry=SLOWLY,
)
FOLLOW_UP = msgspec.structs.replace(
    LETTER, reason=6, follow_up=FollowUpFields(3, START_MS + 9000, b"key", 263)
)
COMMANDS = {
    "produce": produce([b"a", b"bcd"]),
    "produce, everything": produce(
        [b"a", b"bcd"],
        producer_id=bytes(range(16)),
        sequence=5,
        ordered=True,
        specials=(
            ItemSpecial(
                1,
                START_MS + 5000,
                60_000,
                1000,
                b"key",
                -3,
                7,
                SLOWLY,
                holder=(3, 40),
                on_duplicate=OnDuplicate.BUMP,
                debounce_max_ms=9_000,
                keep_result_ms=60_000,
            ),
        ),
        routing=2,
        slots=b"\xff\xff\x07\x01",
        flows=FLOWS,
    ),
    "lease": Proposal(Lease((LeaseCaller("c", "r", 100, 3_000_000, 30_000),))),
    "lease of named items": Proposal(
        Lease((LeaseCaller("c", "r", 100, 3_000_000, 30_000),), named=((17, 1), (300, 2)))
    ),
    "complete on delivery": Proposal(Complete((LeaseItems(3, ((7, 1),)),), on_delivery=True)),
    "complete": Proposal(Complete((LeaseItems(3, ((10, 5), (20, 1))), LeaseItems(4)), True)),
    "retry": Proposal(
        Retry(
            leases=(LeaseItems(3),),
            retry_at_ms=START_MS + 9000,
            dead=True,
            error="slow",
            count_attempt=False,
            all_or_nothing=True,
            priority=-3,
            attributes=(("page", "7"),),
            clear_checkpoint=True,
        )
    ),
    "save checkpoints": Proposal(
        SaveCheckpoints(
            Extend((3, 4), lease_timeout_ms=60_000),
            pack_struct("<2I", 2, 0),
            (ItemCheckpoint(3, 7, 12), ItemCheckpoint(4, 300)),
        ),
        b"ab",
    ),
    "answer": Proposal(
        Answer(
            Complete((LeaseItems(3, ((7, 1),)), LeaseItems(4)), all_or_nothing=True),
            pack_struct("<2I", 2, 0),
            (AnsweredItem(3, 7), AnsweredItem(4, 300)),
        ),
        b"ab",
    ),
    "extend": Proposal(Extend((3, 4), "c", 60_000)),
    "expire": Proposal(Expire()),
    "repair time": Proposal(RepairTime(START_MS)),
    "give up": Proposal(GiveUp((1, 300))),
    "reschedule": Proposal(Reschedule(((5, 2), (9, 1)), START_MS + 5000, True, 1000, START_MS)),
    "prioritize": Proposal(Prioritize(((5, 2), (9, 1)), -3)),
    "purge": Proposal(Purge(257, 4_000, scheduled=True)),
    "cancel": Proposal(Cancel(((5, 2), (9, 1)), dead=True)),
    "drop letters": Proposal(DropLetters("work", (5, 6), 4, LetterFilter((1, 3), 1000, 2000))),
    "put recurrence": Proposal(
        PutRecurrence(
            "digest",
            RecurrenceSpec(
                cron="0 9 * * 1-5",
                time_zone="Europe/Berlin",
                interval_ms=60_000,
                phase_ms=7,
                jitter_ms=5_000,
                missed=MissedRuns.ALL,
                missed_max=5,
                missed_after_ms=120_000,
                overlap=Overlap.SKIP,
                item=b"\x0a\x01x",
            ),
            3,
        )
    ),
    "pause recurrence": Proposal(PauseRecurrence("digest", paused=True)),
    "delete recurrence": Proposal(DeleteRecurrence("digest")),
    "remind": Proposal(Remind()),
    "fire": Proposal(
        Fire(
            recurrence=4,
            revision=3,
            after_ms=START_MS,
            number=17,
            due_ms=(START_MS + 1000, START_MS + 2000),
            lengths=pack_struct("<2I", 1, 2),
            specials=(ItemSpecial(1, priority=-3),),
            missed=9,
            upto_ms=START_MS + 2000,
            next_due_ms=START_MS + 3000,
            next_at_ms=START_MS + 3500,
            error="slow",
            flows=FlowNames((b"a",), b"\0\0\0\0"),
            slot=263,
            routing=4,
            partition=2,
            target_group=9,
        ),
        b"abb",
    ),
    "activate": Proposal(Activate()),
    "configure": Proposal(
        Configure(
            4,
            settings(
                max_attempts=5,
                items_max=1000,
                dead_targets=(HOME,),
                first_seq=300,
                retry=SLOWLY,
                priority_aging_ms=5_000,
                dedup_until=DedupUntil.DONE,
                flows=FlowSettings(
                    kind=QueueKind.FAIR,
                    fairness=Fairness.TURNS,
                    group_leased_max=100,
                    groups=(GroupSettings("eu.de", 3, 50, True, RateSettings(10, 1_000, 20)),),
                    key_leased_max=4,
                    key_retry_blocks=False,
                    rate_limit=RateSettings(5, 2_000, 2),
                ),
                lease_paused=True,
                produce_paused=True,
                breaker=BreakerSettings(50, 20, 60_000, 30_000, 3),
                limits=LeaseLimits(10, 1_000, 5, 20),
                executions=ExecutionSettings(86_400_000),
                events_retention_ms=3_600_000,
            ),
        )
    ),
    "half open": Proposal(HalfOpen()),
    "refill": Proposal(Refill()),
    "start execution": Proposal(
        StartExecution(
            "order-17",
            "shop.checkout",
            "9f31c2",
            bytes(16),
            b"h" * 16,
            place=1,
            lengths=pack_struct("<I", 3),
            policy=KeyPolicy.RESTART_CLOSED,
            priority=-1,
            start_at_ms=START_MS + 5,
            deadline_ms=START_MS + 900,
            request=b"r" * 16,
        ),
        b"abc",
    ),
    "record": Proposal(
        RecordProgress(
            execution=7,
            item=300,
            lease=41,
            number=2,
            seen=5,
            records=(
                Note(2, b"\x01\x03", "charge", "shop.py:41", 4, START_MS, b"ok"),
                Note(2, b"\x01\x04", place=1),
            ),
            folds=(Fold(9, Note(7, b"\x02", payload=b"sum"), ((3, 2), (7, 1))),),
            timers=(Timer(b"\x05", START_MS + 1), Timer(b"\x06", 0)),
            then=Park((b"\x05",), ("go",), all_of=False),
            extend_ms=30_000,
            lengths=pack_struct("<I", 3),
            published=(Published("state", b"approved"), Published("n", b"")),
        ),
        b"abc",
    ),
    "record that closes": Proposal(
        RecordProgress(7, 300, 41, 3, then=Close(10, b"result", drain=True))
    ),
    "record that starts children": Proposal(
        RecordProgress(
            7,
            300,
            41,
            5,
            lengths=pack_struct("<I", 3),
            children=(
                ChildStart(
                    b"\x07", "order-17/1", "shop.ship", "1", b"h" * 16, b"args", site="shop.py:7"
                ),
                ChildStart(
                    b"\x08",
                    "order-17/2",
                    "shop.ship",
                    "1",
                    b"i" * 16,
                    place=1,
                    detached=True,
                    shielded=True,
                ),
            ),
            cancels=(b"\x05",),
        ),
        b"abc",
    ),
    "record that produces": Proposal(
        RecordProgress(
            7,
            300,
            41,
            6,
            records=(Note(13, b"\x03", "mail"), Note(2, b"\x04", place=1)),
            lengths=pack_struct("<I", 3),
            sent=SentItems(
                pack_struct("<2I", 2, 1),
                (FollowTarget("mail", 1, 9, 2),),
                (ItemSpecial(1, priority=-3),),
                pack_struct("<2H", 5, 0xFFFF),
            ),
        ),
        b"abcxyz",
    ),
    "record that gives back": Proposal(RecordProgress(7, 300, 41, 4, then=GiveBack(True, "stuck"))),
    "record that begins a run": Proposal(
        RecordProgress(
            7, 300, 41, 5, then=NewRun(place=1, unread=((3, 2),)), lengths=pack_struct("<I", 3)
        ),
        b"abc",
    ),
    "arrive": Proposal(
        Arrive(
            1, "order-17", 0, 1, "paid", "m1", payload=b"", place=1, lengths=pack_struct("<I", 3)
        ),
        b"abc",
    ),
    "arrive for a promise": Proposal(
        Arrive(2, execution=7, run=1, path=b"\x01", mac=bytes(16), payload=b"yes")
    ),
    "rewind": Proposal(RewindExecution("order-17", 11, 2, b"r" * 16, keep_children=True)),
    "fire timers": Proposal(FireTimers()),
    "lease pinned": Proposal(LeasePinned("c", "r", 100, (bytes(range(32)),), 30_000)),
    "set breaker": Proposal(SetBreaker(open=True)),
    "move": Proposal(
        Move(7, 1, pack_struct("<I", 2), (LETTER,), FlowNames((b"eu.de",), b"\0\0")), b"ab"
    ),
    "move with a checkpoint": Proposal(
        Move(7, 1, pack_struct("<I", 2), (LETTER,), checkpoints=((0, 3),)), b"abxyz"
    ),
    "move of a follow-up": Proposal(
        Move(7, 1, pack_struct("<I", 2), (FOLLOW_UP,), routing=5, homes=(9, 11)), b"ab"
    ),
    "move done": Proposal(MoveDone(9, 17)),
    "move return": Proposal(MoveReturn(9)),
    "redrive": Proposal(Redrive("work", (HOME,), (5, 6), 4, LetterFilter((2,), 1000, 2000))),
    "route": Proposal(Route(2, 2, open=True, before=4, groups=(9, 11))),
    "adopt": Proposal(
        Adopt(
            Facts(
                (
                    ProducerFact(
                        bytes(range(16)),
                        7,
                        2,
                        1000,
                        (
                            OutcomeFact(
                                sequence=6,
                                first_seq=40,
                                count=2,
                                at_ms=900,
                                duplicates=((1, 30, 0),),
                                partition=3,
                                mode=1,
                            ),
                            OutcomeFact(
                                sequence=7,
                                first_seq=0,
                                count=0,
                                at_ms=1000,
                                duplicates=(),
                                partition=-1,
                                mode=3,
                                places=(KeyedPlace(263, 0, 42),),
                            ),
                        ),
                    ),
                ),
                (KeyFact(b"key", 42, 1000, 3, 263, lasting=True),),
                500,
            )
        )
    ),
    "move elsewhere": Proposal(MoveElsewhere(9, 17, 10, 5)),
    "resume moves": Proposal(ResumeMoves(9, 5)),
    "forget groups": Proposal(ForgetGroups(((3, 9), (11, 11)))),
    "unhold": Proposal(Unhold(2, b"\x09")),
    "free keys": Proposal(FreeKeys(((3, 40), (3, 41)))),
    "open reader": Proposal(OpenReader("lake", 3)),
    "advance reader": Proposal(
        AdvanceReader(
            reader_id="lake",
            epoch=3,
            ack_seq=41,
            max_items=50_000,
            max_bytes=67_108_864,
            upto_position=900,
            skip_released=True,
        )
    ),
    "release reader": Proposal(ReleaseReader("lake", 42, remove=True, dead=True)),
    "stage": Proposal(
        Stage(
            producer="query",
            batch=7,
            task=3,
            attempt=bytes(range(16)),
            sequence=2,
            checksum=0xDEADBEEF,
            lengths=pack_struct("<I", 2),
            specials=(ItemSpecial(0, START_MS + 5000, priority=-3),),
            routing=4,
            slots=b"\x07\x01",
            flows=FlowNames((b"eu.de",), b"\0\0"),
        ),
        b"ab",
    ),
    "prepare": Proposal(Prepare(9, "query", 7, (StageClaim(3, bytes(range(16)), 5, 77),))),
    "publish": Proposal(Publish(9)),
    "discard": Proposal(Discard(9, keep=True)),
    "drop stages": Proposal(DropStages("query", 7)),
    "begin": Proposal(
        Begin("query", 7, (Participant(2, 13, (StageClaim(3, bytes(range(16)), 5, 77),)),))
    ),
    "decide": Proposal(Decide(9, 30, "no", keep=True)),
    "abort txn": Proposal(AbortTxn("query", 7)),
    "finish": Proposal(Finish(9)),
    "follow": Proposal(
        Follow(
            Retry((LeaseItems(3, ((7, 1),)),), error="late", all_or_nothing=True),
            pack_struct("<2I", 1, 1),
            (FollowTarget("work", 0, 0, 1), FollowTarget("next", 2, 9, 1)),
            (ItemSpecial(1, dedup_key=b"key"),),
            routing=4,
            slots=b"\x07\x01\xff\xff",
        ),
        b"ab",
    ),
}


def _without(command: Any, **changes: Any) -> Any:
    """A Configure with other settings."""
    settings = msgspec.structs.replace(command.settings, **changes)
    return msgspec.structs.replace(command, settings=settings)


WITHOUT_RATES = FlowSettings(
    kind=QueueKind.FAIR,
    fairness=Fairness.TURNS,
    group_leased_max=100,
    groups=(GroupSettings("eu.de", 3, 50, paused=True),),
    key_leased_max=4,
    key_retry_blocks=False,
)
# The same commands as earlier releases wrote them, without the fields that were added since.
OLD = {
    "record, before children": (
        Proposal(msgspec.structs.replace(COMMANDS["record"].command, published=())),
        (
            "0193cf0000018bcfe568009101919c3d07cd012c290205929802c4020103a6636861726765aa7368"
            "6f702e70793a343104cf0000018bcfe56800c4026f6b009802c4020104a0a00000c4000191930998"
            "07c40102a0a00000c40373756d00929203029207019292c40105cf0000018bcfe5680192c4010600"
            "950191c4010591a2676fc2c2cd7530c40403000000"
        ),
    ),
    "record that closes, before children": (
        COMMANDS["record that closes"],
        "0193cf0000018bcfe5680090919c3d07cd012c29030090909095020ac406726573756c7400c300c400",
    ),
    "record that gives back, before children": (
        COMMANDS["record that gives back"],
        "0193cf0000018bcfe5680090919c3d07cd012c2904009090909303c3a5737475636b00c400",
    ),
    "record that gives back, before pins": (
        COMMANDS["record that gives back"],
        "0193cf0000018bcfe568009091dc00103d07cd012c2904009090909303c3a5737475636b00c400909090a0",
    ),
    "answer without the moment of its complete": (
        COMMANDS["answer"],
        "0193cf0000018bcfe56800920101919434930392920391920701920490c3c4080200000000000000"
        "929203079204cd012c",
    ),
    "complete without its moment": (
        Proposal(Complete((LeaseItems(3, ((10, 5), (20, 1))), LeaseItems(4)), True)),
        "0193cf0000018bcfe568009091930392920392920a05921401920490c3",
    ),
    "record without items": (
        Proposal(RecordProgress(7, 300, 41, 3, then=Close(10, b"result", drain=True))),
        "0193cf0000018bcfe568009091dc00103d07cd012c29030090909095020ac406726573756c7400c300c400909090a0",
    ),
    "record without published values": (
        Proposal(RecordProgress(7, 300, 41, 3, then=Close(10, b"result", drain=True))),
        "0193cf0000018bcfe5680090919e3d07cd012c29030090909095020ac406726573756c7400c300c4009090",
    ),
    "record without a version": (
        COMMANDS["record that gives back"],
        "0193cf0000018bcfe5680090919f3d07cd012c2904009090909303c3a5737475636b00c400909090",
    ),
    "lease without named items": (
        Proposal(Lease((LeaseCaller("c", "r", 100, 3_000_000, 30_000),))),
        "0193cf0000018bcfe56800909193029195a163a17264ce002dc6c0cd753090",
    ),
    "configure without events": (
        Proposal(_without(COMMANDS["configure"].command, events_retention_ms=0)),
        "0193cf0000018bcfe568009091930804dc0014a764656661756c74a4776f726b0100cd75300005ce"
        "0036ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802970101649195a565"
        "752e64650332c3930acd03e81404c29305cd07d002c3c3953214cdea60cd753003940acd03e80514"
        "91ce05265c00",
    ),
    "configure without executions": (
        Proposal(_without(COMMANDS["configure"].command, executions=None, events_retention_ms=0)),
        "0193cf0000018bcfe568009091930804dc0013a764656661756c74a4776f726b0100cd75300005ce"
        "0036ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802970101649195a565"
        "752e64650332c3930acd03e81404c29305cd07d002c3c3953214cdea60cd753003940acd03e80514",
    ),
    "configure without rates of groups": (
        Proposal(
            _without(
                COMMANDS["configure"].command,
                executions=None,
                flows=WITHOUT_RATES,
                events_retention_ms=0,
            )
        ),
        "0193cf0000018bcfe568009091930804dc0013a764656661756c74a4776f726b0100cd75300005ce"
        "0036ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802960101649194a565"
        "752e64650332c304c2c3c3953214cdea60cd753003940acd03e80514",
    ),
    "configure without limits": (
        Proposal(
            _without(
                COMMANDS["configure"].command,
                limits=None,
                executions=None,
                flows=WITHOUT_RATES,
                events_retention_ms=0,
            )
        ),
        "0193cf0000018bcfe568009091930804dc0012a764656661756c74a4776f726b0100cd75300005ce"
        "0036ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802960101649194a565"
        "752e64650332c304c2c3c3953214cdea60cd753003",
    ),
    "configure without a breaker": (
        Proposal(
            Configure(
                4,
                settings(
                    max_attempts=5,
                    items_max=1000,
                    dead_targets=(HOME,),
                    first_seq=300,
                    retry=SLOWLY,
                    priority_aging_ms=5_000,
                    dedup_until=DedupUntil.DONE,
                    flows=FlowSettings(
                        kind=QueueKind.FAIR,
                        fairness=Fairness.TURNS,
                        group_leased_max=100,
                        groups=(GroupSettings("eu.de", 3, 50, paused=True),),
                        key_leased_max=4,
                        key_retry_blocks=False,
                    ),
                    lease_paused=True,
                    produce_paused=True,
                ),
            )
        ),
        "0193cf0000018bcfe568009091930804dc0011a764656661756c74a4776f726b0100cd75300005ce"
        "0036ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802960101649194a565"
        "752e64650332c304c2c3c3",
    ),
    "fire without a key": (
        Proposal(
            Fire(
                recurrence=4,
                revision=3,
                after_ms=START_MS,
                number=17,
                due_ms=(START_MS + 1000, START_MS + 2000),
                lengths=pack_struct("<2I", 1, 2),
                specials=(ItemSpecial(1, priority=-3),),
                missed=9,
                upto_ms=START_MS + 2000,
                next_due_ms=START_MS + 3000,
                next_at_ms=START_MS + 3500,
                error="slow",
            ),
            b"abb",
        ),
        "0193cf0000018bcfe568009102919d2c0403cf0000018bcfe568001192cf0000018bcfe56be8cf00"
        "00018bcfe56fd0c4080100000002000000919b01000000c400fdc0c090010009cf0000018bcfe56f"
        "d0cf0000018bcfe573b8cf0000018bcfe575aca4736c6f77",
    ),
    "cancel without what it makes of items": (
        Proposal(Cancel(((5, 2), (9, 1)))),
        "0193cf0000018bcfe568009091921a92920502920901",
    ),
    "move": (
        Proposal(Move(7, 1, pack_struct("<I", 2), (LETTER,)), b"ab"),
        "0193cf0000018bcfe5680091019195090701c40402000000919fa4776f726b01072a030192a4736c"
        "6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cdea6002"
        "c2",
    ),
    "produce": (
        produce([b"a", b"bcd"]),
        "0193cf0000018bcfe568009102919601c4080100000003000000c40000c290",
    ),
    "produce, everything": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(ItemSpecial(1, START_MS + 5000, 60_000, 1000, b"key"),),
        ),
        "0193cf0000018bcfe568009102919601c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919501cf0000018bcfe57b88cdea60cd03e8c4036b6579",
    ),
    "configure": (
        Proposal(Configure(4, settings(max_attempts=5, items_max=1000, dead_targets=(HOME,)))),
        "0193cf0000018bcfe5680090919308049aa764656661756c74a4776f726b0100cd75300005ce0036"
        "ee80cd03e89193a4686f6d65030c",
    ),
    "configure without a retry policy": (
        Proposal(
            Configure(
                4, settings(max_attempts=5, items_max=1000, dead_targets=(HOME,), first_seq=300)
            )
        ),
        "0193cf0000018bcfe5680090919308049ba764656661756c74a4776f726b0100cd75300005ce0036"
        "ee80cd03e89193a4686f6d65030ccd012c",
    ),
    "configure without the end of dedup keys": (
        Proposal(
            Configure(
                4,
                settings(
                    max_attempts=5,
                    items_max=1000,
                    dead_targets=(HOME,),
                    first_seq=300,
                    retry=SLOWLY,
                    priority_aging_ms=5_000,
                ),
            )
        ),
        "0193cf0000018bcfe5680090919308049da764656661756c74a4776f726b0100cd75300005ce0036"
        "ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd1388",
    ),
    "configure without aging of priorities": (
        Proposal(
            Configure(
                4,
                settings(
                    max_attempts=5,
                    items_max=1000,
                    dead_targets=(HOME,),
                    first_seq=300,
                    retry=SLOWLY,
                ),
            )
        ),
        "0193cf0000018bcfe5680090919308049ca764656661756c74a4776f726b0100cd75300005ce0036"
        "ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2",
    ),
    "produce without a priority": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(ItemSpecial(1, START_MS + 5000, 60_000, 1000, b"key"),),
            routing=2,
            slots=b"\xff\xff\x07\x01",
        ),
        "0193cf0000018bcfe568009102919801c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919501cf0000018bcfe57b88cdea60cd03e8c4036b657902c404ffff0701",
    ),
    "retry without a priority": (
        Proposal(
            Retry(
                leases=(LeaseItems(3),),
                retry_at_ms=START_MS + 9000,
                dead=True,
                error="slow",
                count_attempt=False,
                all_or_nothing=True,
            )
        ),
        "0193cf0000018bcfe568009091970491920390cf0000018bcfe58b28c3a4736c6f77c2c3",
    ),
    "redrive of all letters": (
        Proposal(Redrive("work", (HOME,), (5, 6), 4)),
        "0193cf0000018bcfe568009091950ca4776f726b9193a4686f6d65030c92050604",
    ),
    "move without a priority": (
        Proposal(
            Move(
                7,
                1,
                pack_struct("<I", 2),
                (
                    msgspec.structs.replace(
                        LETTER, priority=0, attributes=None, max_attempts=None, retry=None
                    ),
                ),
            ),
            b"ab",
        ),
        "0193cf0000018bcfe5680091019195090701c40402000000919ba4776f726b01072a030192a4736c"
        "6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0",
    ),
    "produce without retries": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(ItemSpecial(1, START_MS + 5000, 60_000, 1000, b"key", -3),),
            routing=2,
            slots=b"\xff\xff\x07\x01",
        ),
        "0193cf0000018bcfe568009102919801c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919601cf0000018bcfe57b88cdea60cd03e8c4036b6579fd02c404ffff0701",
    ),
    "produce without a way with duplicates": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(
                ItemSpecial(
                    1, START_MS + 5000, 60_000, 1000, b"key", -3, 7, SLOWLY, holder=(3, 40)
                ),
            ),
            routing=2,
            slots=b"\xff\xff\x07\x01",
        ),
        "0193cf0000018bcfe568009102919801c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919901cf0000018bcfe57b88cdea60cd03e8c4036b6579fd0794cd07d0cdea6002c2"
        "92032802c404ffff0701",
    ),
    "produce without the holder of a key": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(ItemSpecial(1, START_MS + 5000, 60_000, 1000, b"key", -3, 7, SLOWLY),),
            routing=2,
            slots=b"\xff\xff\x07\x01",
        ),
        "0193cf0000018bcfe568009102919801c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919801cf0000018bcfe57b88cdea60cd03e8c4036b6579fd0794cd07d0cdea6002c2"
        "02c404ffff0701",
    ),
    "retry without attributes": (
        Proposal(
            Retry(
                leases=(LeaseItems(3),),
                retry_at_ms=START_MS + 9000,
                dead=True,
                error="slow",
                count_attempt=False,
                all_or_nothing=True,
                priority=-3,
            )
        ),
        "0193cf0000018bcfe568009091980491920390cf0000018bcfe58b28c3a4736c6f77c2c3fd",
    ),
    "move without attributes": (
        Proposal(
            Move(
                7,
                1,
                pack_struct("<I", 2),
                (msgspec.structs.replace(LETTER, attributes=None, max_attempts=None, retry=None),),
            ),
            b"ab",
        ),
        "0193cf0000018bcfe5680091019195090701c40402000000919ca4776f726b01072a030192a4736c"
        "6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd",
    ),
    "adopt without keys that last": (
        Proposal(Adopt(Facts((), (KeyFact(b"key", 42, 1000, 3, 263),), 500))),
        "0193cf0000018bcfe568009091920e94909195c4036b65792acd03e803cd0107cd01f490",
    ),
    "route": (Proposal(Route(2, 12, open=True)), "0193cf0000018bcfe568009091940d020cc3"),
    "release reader": (
        Proposal(ReleaseReader("lake", 42, remove=True)),
        "0193cf0000018bcfe5680090919416a46c616b652ac3",
    ),
    "produce without flows": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(
                ItemSpecial(
                    1, START_MS + 5000, 60_000, 1000, b"key", -3, 7, SLOWLY, holder=(3, 40)
                ),
            ),
            routing=2,
            slots=b"\xff\xff\x07\x01",
        ),
        "0193cf0000018bcfe568009102919801c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919901cf0000018bcfe57b88cdea60cd03e8c4036b6579fd0794cd07d0cdea6002c2"
        "92032802c404ffff0701",
    ),
    "configure without pauses": (
        Proposal(
            Configure(
                4,
                settings(
                    max_attempts=5,
                    items_max=1000,
                    dead_targets=(HOME,),
                    first_seq=300,
                    retry=SLOWLY,
                    priority_aging_ms=5_000,
                    dedup_until=DedupUntil.DONE,
                    flows=FlowSettings(
                        kind=QueueKind.FAIR,
                        fairness=Fairness.TURNS,
                        group_leased_max=100,
                        groups=(GroupSettings("eu.de", 3, 50),),
                        key_leased_max=4,
                        key_retry_blocks=False,
                    ),
                ),
            )
        ),
        "0193cf0000018bcfe5680090919308049fa764656661756c74a4776f726b0100cd75300005ce0036"
        "ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802960101649193a565752e"
        "6465033204c2",
    ),
    "configure without flows": (
        Proposal(
            Configure(
                4,
                settings(
                    max_attempts=5,
                    items_max=1000,
                    dead_targets=(HOME,),
                    first_seq=300,
                    retry=SLOWLY,
                    priority_aging_ms=5_000,
                    dedup_until=DedupUntil.DONE,
                ),
            )
        ),
        "0193cf0000018bcfe5680090919308049ea764656661756c74a4776f726b0100cd75300005ce0036"
        "ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802",
    ),
    "move without flows": (
        Proposal(Move(7, 1, pack_struct("<I", 2), (LETTER,)), b"ab"),
        "0193cf0000018bcfe5680091019195090701c40402000000919fa4776f726b01072a030192a4736c"
        "6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cdea6002"
        "c2",
    ),
    "stage without flows": (
        Proposal(
            Stage(
                producer="query",
                batch=7,
                task=3,
                attempt=bytes(range(16)),
                sequence=2,
                checksum=0xDEADBEEF,
                lengths=pack_struct("<I", 2),
                specials=(ItemSpecial(0, START_MS + 5000, priority=-3),),
                routing=4,
                slots=b"\x07\x01",
            ),
            b"ab",
        ),
        "0193cf0000018bcfe568009101919b1ea571756572790703c410000102030405060708090a0b0c0d"
        "0e0f02cedeadbeefc40402000000919900cf0000018bcfe57b880000c400fdc0c09004c4020701",
    ),
    "retry that keeps checkpoints": (
        Proposal(
            Retry(
                leases=(LeaseItems(3),),
                retry_at_ms=START_MS + 9000,
                dead=True,
                error="slow",
                count_attempt=False,
                all_or_nothing=True,
                priority=-3,
                attributes=(("page", "7"),),
            )
        ),
        "0193cf0000018bcfe568009091990491920390cf0000018bcfe58b28c3a4736c6f77c2c3fd9192a4"
        "70616765a137",
    ),
    "move without checkpoints": (
        Proposal(
            Move(7, 1, pack_struct("<I", 2), (LETTER,), FlowNames((b"eu.de",), b"\0\0")), b"ab"
        ),
        "0193cf0000018bcfe5680091019199090701c4040200000091dc0010a4776f726b01072a030192a4"
        "736c6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cdea"
        "6002c2c09291c40565752e6465c4020000009090",
    ),
    "move of items that stay": (
        Proposal(
            Move(7, 1, pack_struct("<I", 2), (LETTER,), FlowNames((b"eu.de",), b"\0\0")), b"ab"
        ),
        "0193cf0000018bcfe568009101919a090701c4040200000091dc0010a4776f726b01072a030192a4"
        "736c6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cdea"
        "6002c2c09291c40565752e6465c402000000909090",
    ),
    "move elsewhere from a partition that was never closing": (
        Proposal(MoveElsewhere(9, 17, 10)),
        "0193cf0000018bcfe568009091940f09110a",
    ),
    "route without groups": (
        Proposal(Route(2, 12, open=True, before=4)),
        "0193cf0000018bcfe568009091950d020cc304",
    ),
    "follow whose retry keeps checkpoints": (
        Proposal(
            Follow(
                Retry((LeaseItems(3, ((7, 1),)),), error="late", all_or_nothing=True),
                pack_struct("<2I", 1, 1),
                (FollowTarget("work", 0, 0, 1), FollowTarget("next", 2, 9, 1)),
                (ItemSpecial(1, dedup_key=b"key"),),
                routing=4,
                slots=b"\x07\x01\xff\xff",
            ),
            b"ab",
        ),
        "0193cf0000018bcfe56800910291973299049192039192070100c2a46c617465c3c3c0c0c4080100"
        "0000010000009294a4776f726b00000194a46e657874020901919b01000000c4036b657900c0c090"
        "010004c4040701ffff",
    ),
    "produce without results": (
        produce(
            [b"a", b"bcd"],
            producer_id=bytes(range(16)),
            sequence=5,
            ordered=True,
            specials=(
                ItemSpecial(
                    1,
                    START_MS + 5000,
                    60_000,
                    1000,
                    b"key",
                    -3,
                    7,
                    SLOWLY,
                    holder=(3, 40),
                    on_duplicate=OnDuplicate.BUMP,
                    debounce_max_ms=9_000,
                ),
            ),
            routing=2,
            slots=b"\xff\xff\x07\x01",
            flows=FLOWS,
        ),
        "0193cf0000018bcfe568009102919901c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919b01cf0000018bcfe57b88cdea60cd03e8c4036b6579fd0794cd07d0cdea6002c2"
        "92032803cd232802c404ffff07019292c40565752e6465c4027573c4040100ffff",
    ),
}
# Written by version 1 of the format. A released line is never changed.
GOLDEN = {
    "produce": "0193cf0000018bcfe568009102919901c4080100000003000000c40000c29000c400c0",
    "produce, everything": (
        "0193cf0000018bcfe568009102919901c4080100000003000000c410000102030405060708090a0b"
        "0c0d0e0f05c3919c01cf0000018bcfe57b88cdea60cd03e8c4036b6579fd0794cd07d0cdea6002c2"
        "92032803cd2328cdea6002c404ffff07019292c40565752e6465c4027573c4040100ffff"
    ),
    "lease": "0193cf0000018bcfe56800909194029195a163a17264ce002dc6c0cd75309090",
    "lease of named items": (
        "0193cf0000018bcfe56800909194029195a163a17264ce002dc6c0cd7530909292110192cd012c02"
    ),
    "complete": "0193cf0000018bcfe568009091940392920392920a05921401920490c3c2",
    "complete on delivery": "0193cf0000018bcfe568009091940391920391920701c2c3",
    "retry": (
        "0193cf0000018bcfe5680090919a0491920390cf0000018bcfe58b28c3a4736c6f77c2c3fd9192a4"
        "70616765a137c3"
    ),
    "extend": "0193cf0000018bcfe5680090919405920304a163cdea60",
    "expire": "0193cf0000018bcfe5680090919206c3",
    "give up": "0193cf0000018bcfe56800909192129201cd012c",
    "reschedule": (
        "0193cf0000018bcfe568009091961792920502920901cf0000018bcfe57b88c3cd03e8cf0000018bcfe56800"
    ),
    "repair time": "0193cf0000018bcfe5680090919211cf0000018bcfe56800",
    "prioritize": "0193cf0000018bcfe568009091931892920502920901fd",
    "put recurrence": (
        "0193cf0000018bcfe5680090919428a66469676573749aab302039202a202a20312d35ad4575726f"
        "70652f4265726c696ecdea6007cd13880305ce0001d4c002c4030a017803"
    ),
    "pause recurrence": "0193cf0000018bcfe5680090919329a6646967657374c3",
    "delete recurrence": "0193cf0000018bcfe568009091922aa6646967657374",
    "remind": "0193cf0000018bcfe568009091912b",
    "fire": (
        "0193cf0000018bcfe56800910291dc00122c0403cf0000018bcfe568001192cf0000018bcfe56be8"
        "cf0000018bcfe56fd0c4080100000002000000919c01000000c400fdc0c09001000009cf0000018b"
        "cfe56fd0cf0000018bcfe573b8cf0000018bcfe575aca4736c6f779291c40161c40400000000cd01"
        "07040209"
    ),
    "activate": "0193cf0000018bcfe5680090919107",
    "configure": (
        "0193cf0000018bcfe568009091930804dc0015a764656661756c74a4776f726b0100cd75300005ce"
        "0036ee80cd03e89193a4686f6d65030ccd012c94cd07d0cdea6002c2cd138802970101649195a565"
        "752e64650332c3930acd03e81404c29305cd07d002c3c3953214cdea60cd753003940acd03e80514"
        "91ce05265c00ce0036ee80"
    ),
    "half open": "0193cf0000018bcfe5680090919135",
    "resume moves": "0193cf0000018bcfe56800909193460905",
    "refill": "0193cf0000018bcfe5680090919139",
    "set breaker": "0193cf0000018bcfe5680090919236c3",
    "move": (
        "0193cf0000018bcfe568009101919b090701c4040200000091dc0011a4776f726b01072a030192a4"
        "736c6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cdea"
        "6002c2c0009291c40565752e6465c40200000090909000"
    ),
    "move done": "0193cf0000018bcfe568009091930a0911",
    "move return": "0193cf0000018bcfe568009091920b09",
    "purge": "0193cf0000018bcfe5680090919419cd0101cd0fa0c3",
    "cancel": "0193cf0000018bcfe568009091931a92920502920901c3",
    "drop letters": "0193cf0000018bcfe568009091951ba4776f726b9205060493920103cd03e8cd07d0",
    "redrive": (
        "0193cf0000018bcfe568009091960ca4776f726b9193a4686f6d65030c92050604939102cd03e8cd07d0"
    ),
    "route": "0193cf0000018bcfe568009091960d0202c30492090b",
    "adopt": (
        "0193cf0000018bcfe568009091920e949195c410000102030405060708090a0b0c0d0e0f0702cd03"
        "e89298062802cd03849193011e0003019098070000cd03e890ff039193cd0107002a9196c4036b65"
        "792acd03e803cd0107c3cd01f490"
    ),
    "move elsewhere": "0193cf0000018bcfe568009091950f09110a05",
    "forget groups": "0193cf0000018bcfe568009091921392920309920b0b",
    "unhold": "0193cf0000018bcfe568009091931002c40109",
    "open reader": "0193cf0000018bcfe5680090919414a46c616b6503a0",
    "advance reader": "0193cf0000018bcfe5680090919815a46c616b650329cdc350ce04000000cd0384c3",
    "release reader": "0193cf0000018bcfe5680090919516a46c616b652ac3c3",
    "stage": (
        "0193cf0000018bcfe568009101919c1ea571756572790703c410000102030405060708090a0b0c0d"
        "0e0f02cedeadbeefc40402000000919c00cf0000018bcfe57b880000c400fdc0c09001000004c402"
        "07019291c40565752e6465c4020000"
    ),
    "prepare": (
        "0193cf0000018bcfe568009091951f09a5717565727907919403c410000102030405060708090a0b"
        "0c0d0e0f054d"
    ),
    "publish": "0193cf0000018bcfe568009091942009a0ff",
    "discard": "0193cf0000018bcfe568009091952109c3a0ff",
    "drop stages": "0193cf0000018bcfe5680090919422a5717565727907ff",
    "begin": (
        "0193cf0000018bcfe5680090919423a57175657279079193020d919403c410000102030405060708"
        "090a0b0c0d0e0f054d"
    ),
    "decide": "0193cf0000018bcfe5680090919524091ea26e6fc3",
    "abort txn": "0193cf0000018bcfe5680090919325a5717565727907",
    "finish": "0193cf0000018bcfe568009091922609",
    "free keys": "0193cf0000018bcfe568009091922d92920328920329",
    "move of a follow-up": (
        "0193cf0000018bcfe568009101919b090701c4040200000091dc0011a4776f726b01072a030692a4"
        "736c6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cdea"
        "6002c29403cf0000018bcfe58b28c4036b6579cd010700c00592090b909000"
    ),
    "follow": (
        "0193cf0000018bcfe5680091029197329a049192039192070100c2a46c617465c3c3c0c0c2c40801"
        "000000010000009294a4776f726b00000194a46e657874020901919c01000000c4036b657900c0c0"
        "9001000004c4040701ffff"
    ),
    "save checkpoints": (
        "0193cf0000018bcfe568009201019194339405920304a0cdea60c408020000000000000092930307"
        "0c9304cd012c00"
    ),
    "move with a checkpoint": (
        "0193cf0000018bcfe56800920101919b090701c4040200000091dc0011a4776f726b01072a030192"
        "a4736c6f77a662726f6b656ecd03e8cd07d0cd0bb8cd0fa0fd9192a470616765a1370794cd07d0cd"
        "ea6002c2c000c00090909192000300"
    ),
    "answer": (
        "0193cf0000018bcfe56800920101919434940392920391920701920490c3c2c4080200000000000000"
        "929203079204cd012c"
    ),
    "start execution": (
        "0193cf0000018bcfe568009101919e3ca86f726465722d3137ad73686f702e636865636b6f7574a"
        "6396633316332c41000000000000000000000000000000000c41068686868686868686868686868"
        "686868c40001c4040300000003ffcf0000018bcfe56805cf0000018bcfe56b84c41072727272727"
        "272727272727272727272"
    ),
    "record": (
        "0193cf0000018bcfe56800910191dc00113d07cd012c290205929802c4020103a6636861726765aa7368"
        "6f702e70793a343104cf0000018bcfe56800c4026f6b009802c4020104a0a00000c400019193099807c4"
        "0102a0a00000c40373756d00929203029207019292c40105cf0000018bcfe5680192c4010600950191c4"
        "010591a2676fc2c2cd7530c4040300000090909292a57374617465c408617070726f76656492a16ec400"
        "a0c0"
    ),
    "record that closes": (
        "0193cf0000018bcfe568009091dc00113d07cd012c29030090909095020ac406726573756c7400c300c4"
        "00909090a0c0"
    ),
    "record that starts children": (
        "0193cf0000018bcfe56800910191dc00113d07cd012c290500909090910000c40403000000929ac40107"
        "aa6f726465722d31372f31a973686f702e73686970a131c41068686868686868686868686868686868c4"
        "046172677300c2c2a973686f702e70793a379ac40108aa6f726465722d31372f32a973686f702e736869"
        "70a131c41069696969696969696969696969696969c40001c3c3a091c4010590a0c0"
    ),
    "record that produces": (
        "0193cf0000018bcfe5680092010291dc00113d07cd012c29060092980dc40103a46d61696ca00000c400"
        "009802c40104a0a00000c400019090910000c40403000000909090a094c40802000000010000009194a4"
        "6d61696c010902919c01000000c400fdc0c090010000c4040500ffff"
    ),
    "record that begins a run": (
        "0193cf0000018bcfe56800910191dc00113d07cd012c2905009090909404c400019192030200c4040300"
        "0000909090a0c0"
    ),
    "record that gives back": (
        "0193cf0000018bcfe568009091dc00113d07cd012c2904009090909503c3a5737475636bc2a000c40090"
        "9090a0c0"
    ),
    "lease pinned": (
        "0193cf0000018bcfe568009091962ea163a1726491c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fcd7530"
    ),
    "arrive": (
        "0193cf0000018bcfe568009101919c3e01a86f726465722d31370001a470616964a26d31c400c400"
        "c40001c40403000000"
    ),
    "arrive for a promise": (
        "0193cf0000018bcfe5680090919c3e02a00701a0a0c40101c4100000000000000000000000000000"
        "0000c40379657300c400"
    ),
    "rewind": (
        "0193cf0000018bcfe5680090919630a86f726465722d31370b02c41072727272727272727272727272727272c3"
    ),
    "fire timers": "0193cf0000018bcfe568009091913f",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_bytes_of_every_command_stay(name):
    proposal = COMMANDS[name]
    entry = pack([proposal], START_MS)
    assert entry.command.hex() == GOLDEN[name]
    body = unpack_entry(bytes.fromhex(GOLDEN[name]))
    assert body.now_ms == START_MS
    assert body.commands == (proposal.command,)


@pytest.mark.parametrize("name", OLD)
def test_bytes_of_earlier_releases(name):
    proposal, data = OLD[name]
    assert unpack_entry(bytes.fromhex(data)).commands == (proposal.command,)


def test_every_command_has_golden_bytes():
    numbers = {type(proposal.command).__struct_config__.tag for proposal in COMMANDS.values()}
    assert numbers == {
        *range(1, 28),
        *range(30, 39),
        *range(40, 47),
        48,
        *range(50, 55),
        57,
        *range(60, 64),
        70,
    }


def test_an_unknown_version_is_not_guessed():
    with pytest.raises(UnknownEntryVersion):
        unpack_entry(b"\x02" + bytes.fromhex(GOLDEN["expire"])[1:])


def joined(*proposals: Proposal) -> tuple[tuple[int, ...], list[int]]:
    entry = pack(proposals, START_MS)
    whole = b"".join(proposal.attachment for proposal in proposals)
    assert b"".join(entry.attachments) == whole
    return unpack_entry(entry.command).parts, [len(data) for data in entry.attachments]


def test_small_produces_share_a_block_and_are_not_cut():
    batch = produce([b"x" * 10] * 100)
    assert joined(batch, batch, batch) == ((200, 100), [2000, 1000])
    assert joined(*[produce([b"x"])] * 300) == ((256, 44), [256, 44])


def test_a_block_is_bounded_by_bytes_and_items():
    big = produce([b"x" * (BLOCK_BYTES_MAX // 2)] * 2)
    assert joined(big, big) == ((2, 2), [BLOCK_BYTES_MAX, BLOCK_BYTES_MAX])
    assert joined(produce([b"x"] * 600)) == ((256, 256, 88), [256, 256, 88])
    assert joined(produce([b"x"] * 200), produce([b"x"] * 600)) == (
        (200, 256, 256, 88),
        [200, 256, 256, 88],
    )


def test_a_large_item_is_a_block_of_its_own():
    large = b"x" * (BLOCK_BYTES_MAX + 1)
    sizes = [1, len(large), 2]
    assert joined(produce([b"a", large, b"bb"])) == ((1, 1, 1), sizes)


def test_items_of_moves_come_after_those_of_produces():
    move = COMMANDS["move"]
    entry = pack([move, produce([b"a"]), move, produce([b"b"])], START_MS)
    assert entry.attachments == (b"ab", b"ab", b"ab")
    assert unpack_entry(entry.command).parts == (2, 1, 1)


def test_an_empty_produce_has_no_attachment():
    entry = pack([Proposal(Produce(b""))], START_MS)
    assert entry.attachments == ()
