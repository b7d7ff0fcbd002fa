"""Scenarios as text: one command a line, its expected answer after `->`.

    configure max_attempts=2 dead=9      settings; dead=G: group of the dead queue, dead=-: none;
                                         retry=linear,1000,5000: retry policy without jitter
    produce 3 in=5000 -> 1-3             in, expire, timeout (ms) hold for all items; keys=a,b,a
                                         gives dedup keys, priorities=5,-1,0 priorities;
                                         attempts=2,-,0 most attempts, and
                                         retries=fixed:500:500,- retry policies without jitter
                                         (-: the queue's); producer=p seq=1 [ordered]
    lease 20 6 1 -> 1-16 | 17-22 | 23    a wish for each caller; client=, request=, bytes=, timeout=
    complete L1 2-3 all -> done 2 lost 3 leases are L1, L2, … in the order of their grants
    retry L1 1 in=5000 -> done 1         also: dead, free (not counted), error=text, priority=-5
    extend L1 timeout=60000 -> 60000     ms from now, or lost; extend client=a
    open lake [epoch=2] -> 2             the epoch, and the open batch, if there is one
    advance lake 1 0 100 -> 1: 1-3       epoch, acknowledged batch, items at most; bytes=, upto=,
                                         skip; the open batch with its items, r1: replayed once
    release lake 1 [remove] -> 3         batch; items given back
    move 1-2 in=5000 -> 1 missing 2      ms from now; the number of items that were changed, and
                                         those that are not scheduled; from=, until=: ms from now
    run 1 -> 1                           scheduled items are ready at once
    cancel 1 -> 1                        scheduled items are dropped and counted
    prioritize 1-2 to=-5 -> 2            as `move`; items that are ready, held or scheduled
    remove 1-2 -> 1 missing 2            items that are ready, held or scheduled are removed
    purge 5 [here] -> 3                  those up to a sequence; here: scheduled ones stay
    due -> 5000: 1-2                     ms from now, and the items that are due then
    wait 30000                           time passes, and what is due is done
    stats ready leased -> 3 0

Items are shown as ranges of sequences, with x2, x3 … when it is not their first attempt, and with
L1, L2, … when one caller got several leases.
"""

from struct import pack
from typing import Any

from querator.model.commands import (
    Cancel,
    Complete,
    Extend,
    ItemsChanged,
    ItemSpecial,
    ItemsRemoved,
    Lease,
    LeaseItems,
    Prioritize,
    Produce,
    ProduceResult,
    Purge,
    Refusal,
    Reschedule,
    Retry,
    SettledLease,
)
from querator.model.queues import RetryBackoff, RetryWaits
from querator.model.readers import AdvanceReader, OpenReader, ReaderResult, ReleaseReader
from querator.partition import masks, queries
from querator.partition.readers import load_reader
from querator.partition.rows import decode_reserved
from querator.partition.segments import load_segment
from querator.storage.tables import RESERVED, SCHEDULED
from tests.unit.partition.partition_log import PartitionLog, caller, dead_to


def run(text: str) -> None:
    """Plays a scenario on a fresh partition with a full scan after every entry."""
    player = _Player()
    for number, line in enumerate(text.strip().splitlines(), 1):
        said, _, expected = line.partition("#")[0].partition("->")
        words = said.split()
        if words:
            answer = player.play(words[0], words[1:])
            wanted = " ".join(expected.split())
            assert answer == wanted, f"line {number}: {line.strip()} (was {answer})"


def _options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in words if "=" not in word]
    pairs = (word.split("=", 1) for word in words if "=" in word)
    return plain, {name: value for name, value in pairs}


def _ranges(ranges: Any, attempt: int = 1) -> str:
    suffix = f"x{attempt}" if attempt != 1 else ""
    return " ".join(
        (f"{first}-{first + count - 1}" if count > 1 else f"{first}") + suffix
        for first, count in ranges
    )


def _parse_ranges(words: list[str]) -> tuple[tuple[int, int], ...]:
    ranges = []
    for word in words:
        first, _, last = word.partition("-")
        ranges.append((int(first), int(last or first) - int(first) + 1))
    return tuple(ranges)


_OF_ALL = {"in", "expire", "timeout", "attempts", "retries"}


def _policy(backoff: str, delay: str, most: str) -> RetryWaits:
    return RetryWaits(int(delay), int(most), RetryBackoff[backoff.upper()], jitter=False)


class _Player:
    def __init__(self) -> None:
        self.log = PartitionLog(all_events=True)
        self._producers: dict[bytes, bytes] = {}

    def play(self, verb: str, words: list[str]) -> str:
        answer: str = getattr(self, "_" + verb)(*_options(words))
        return answer

    def _configure(self, plain: list[str], options: dict[str, str]) -> str:
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name == "dead":
                values["dead_targets"] = () if value == "-" else dead_to(int(value))
            elif name == "retry":
                values["retry"] = _policy(*value.split(","))
            elif name != "version":
                values[name] = int(value)
        self.log.configure(int(options.get("version", self.log.index + 1)), **values)
        return ""

    def _produce(self, plain: list[str], options: dict[str, str]) -> str:
        count = int(plain[0])
        keys = options["keys"].split(",") if "keys" in options else [""] * count
        priorities = [int(one) for one in options.get("priorities", "0" + ",0" * count).split(",")]
        attempts = options.get("attempts", "-" + ",-" * count).split(",")
        retries = options.get("retries", "-" + ",-" * count).split(",")
        now_ms = self.log.now_ms
        specials = tuple(
            ItemSpecial(
                ordinal,
                now_ms + int(options["in"]) if "in" in options else 0,
                int(options.get("expire", 0)),
                int(options.get("timeout", 0)),
                keys[ordinal].encode(),
                priorities[ordinal],
                None if attempts[ordinal] == "-" else int(attempts[ordinal]),
                None if retries[ordinal] == "-" else _policy(*retries[ordinal].split(":")),
            )
            for ordinal in range(count)
            if keys[ordinal] or priorities[ordinal] or options.keys() & _OF_ALL
        )
        items = [b"%d" % ordinal for ordinal in range(count)]
        producer_id = b""
        if "producer" in options:
            born_ms = now_ms - int(options.get("age", 0))
            name = options["producer"].encode().ljust(10, b"\0")
            producer_id = self._producers.setdefault(name, born_ms.to_bytes(6, "big") + name)
        result = self.log.one(
            Produce(
                pack(f"<{count}I", *map(len, items)),
                producer_id,
                int(options.get("seq", 0)),
                "ordered" in plain,
                specials,
            ),
            b"".join(items),
        )
        return self._produced(result)

    def _produced(self, result: ProduceResult | Refusal) -> str:
        if isinstance(result, Refusal):
            return _refused(result)
        text = _ranges([(result.first_seq, result.count)])
        if result.repeated:
            text += " repeated"
        for place, seq in result.duplicates:
            text += f" {place}:{seq}"
        return text

    def _lease(self, plain: list[str], options: dict[str, str]) -> str:
        callers = tuple(
            caller(
                int(wish),
                client_id=options.get("client", "c"),
                request_id=options.get("request", ""),
                max_bytes=int(options.get("bytes", 0)),
                lease_timeout_ms=int(options.get("timeout", 0)),
            )
            for wish in plain
        )
        grants = self.log.one(Lease(callers)).grants
        return " | ".join(self._granted(grant) for grant in grants)

    def _granted(self, grant: Any) -> str:
        if isinstance(grant, Refusal):
            return _refused(grant)
        text = " ".join(
            _ranges(masks.to_ranges(segment.first_seq, segment.mask), segment.attempt)
            + (f"L{segment.lease}" if segment.lease else "")
            for segment in grant.segments
        )
        return (text or "none") + (f" repeated L{grant.lease}" if grant.repeated else "")

    def _complete(self, plain: list[str], options: dict[str, str]) -> str:
        leases, flags = self._named(plain, {"all"})
        return self._settled(self.log.one(Complete(leases, "all" in flags)))

    def _retry(self, plain: list[str], options: dict[str, str]) -> str:
        leases, flags = self._named(plain, {"all", "dead", "free"})
        return self._settled(
            self.log.one(
                Retry(
                    leases=leases,
                    retry_at_ms=self.log.now_ms + int(options["in"]) if "in" in options else 0,
                    dead="dead" in flags,
                    error=options.get("error", ""),
                    count_attempt="free" not in flags,
                    all_or_nothing="all" in flags,
                    priority=int(options["priority"]) if "priority" in options else None,
                )
            )
        )

    def _named(self, plain: list[str], known: set[str]) -> tuple[tuple[LeaseItems, ...], set[str]]:
        leases: list[tuple[int, list[str]]] = []
        flags = set()
        for word in plain:
            if word in known:
                flags.add(word)
            elif word.startswith("L"):
                leases.append((int(word[1:]), []))
            else:
                leases[-1][1].append(word)
        return tuple(LeaseItems(lease, _parse_ranges(words)) for lease, words in leases), flags

    def _settled(self, result: Any) -> str:
        return " | ".join(self._outcome(outcome) for outcome in result.outcomes)

    def _outcome(self, outcome: SettledLease) -> str:
        parts = ["unknown"] if outcome.unknown else []
        for name in ("done", "repeated", "lost"):
            ranges = getattr(outcome, name)
            if ranges:
                parts.append(f"{name} {_ranges(ranges)}")
        return " ".join(parts) or "nothing"

    def _extend(self, plain: list[str], options: dict[str, str]) -> str:
        leases = tuple(int(word[1:]) for word in plain)
        result = self.log.one(
            Extend(leases, options.get("client", ""), int(options.get("timeout", 0)))
        )
        return " ".join(
            str(deadline - self.log.now_ms) if deadline else "lost"
            for _, deadline in result.outcomes
        )

    def _open(self, plain: list[str], options: dict[str, str]) -> str:
        result = self.log.one(OpenReader(plain[0], int(options.get("epoch", 0))))
        if isinstance(result, Refusal):
            return _refused(result)
        return f"{result.epoch} {self._batch(plain[0], result)}".strip()

    def _advance(self, plain: list[str], options: dict[str, str]) -> str:
        reader, epoch, ack, items = plain[0], *map(int, plain[1:4])
        result = self.log.one(
            AdvanceReader(
                reader_id=reader,
                epoch=epoch,
                ack_seq=ack,
                max_items=items,
                max_bytes=int(options.get("bytes", 1_000_000)),
                upto_position=int(options.get("upto", 0)),
                skip_released="skip" in plain,
            )
        )
        if isinstance(result, Refusal):
            return _refused(result)
        return self._batch(reader, result) or "none"

    def _batch(self, reader: str, result: ReaderResult) -> str:
        batch = result.batch
        if batch is None:
            return ""
        with self.log.environment.snapshot() as txn:
            number = load_reader(txn, self.log.group, reader).number  # type: ignore[union-attr]
            rows = [decode_reserved(row) for _, row in RESERVED.rows(txn, self.log.group, number)]
            parts = []
            for row in rows:
                mask = masks.from_bytes(row.mask)
                segment = load_segment(txn, self.log.group, row.first_seq, masks.low(mask))
                items = _ranges(masks.to_ranges(row.first_seq, mask), segment.attempt + 1)
                parts.append(items)
        text = f"{batch.seq}: {' '.join(parts)}"
        return f"{text} r{batch.replays}" if batch.replays else text

    def _release(self, plain: list[str], options: dict[str, str]) -> str:
        remove, dead = "remove" in plain, "dead" in plain
        result = self.log.one(ReleaseReader(plain[0], int(plain[1]), remove, dead))
        return _refused(result) if isinstance(result, Refusal) else str(result.changed)

    def _move(self, plain: list[str], options: dict[str, str]) -> str:
        return self._rescheduled(plain, options, due_ms=self.log.now_ms + int(options["in"]))

    def _run(self, plain: list[str], options: dict[str, str]) -> str:
        return self._rescheduled(plain, options)

    def _cancel(self, plain: list[str], options: dict[str, str]) -> str:
        return self._rescheduled(plain, options, cancel=True)

    def _rescheduled(self, plain: list[str], options: dict[str, str], **action: Any) -> str:
        span: dict[str, Any] = {
            f"due_{name}_ms": self.log.now_ms + int(options[name])
            for name in ("from", "until")
            if name in options
        }
        return self._changed(Reschedule(_parse_ranges(plain), **action, **span))

    def _prioritize(self, plain: list[str], options: dict[str, str]) -> str:
        return self._changed(Prioritize(_parse_ranges(plain), int(options["to"])))

    def _remove(self, plain: list[str], options: dict[str, str]) -> str:
        return self._changed(Cancel(_parse_ranges(plain)))

    def _purge(self, plain: list[str], options: dict[str, str]) -> str:
        result = self.log.one(Purge(0, int(plain[0]), scheduled="here" not in plain))
        assert isinstance(result, ItemsRemoved)
        return str(result.removed)

    def _changed(self, command: Reschedule | Prioritize | Cancel) -> str:
        result = self.log.one(command)
        if isinstance(result, Refusal):
            return _refused(result)
        assert isinstance(result, ItemsChanged)
        missing = f" missing {_ranges(result.missing)}" if result.missing else ""
        return f"{result.changed}{missing}"

    def _due(self, plain: list[str], options: dict[str, str]) -> str:
        with self.log.environment.snapshot() as txn:
            due: dict[int, list[tuple[int, int]]] = {}
            for key, _ in SCHEDULED.rows(txn, self.log.group):
                due_ms, first_seq, slot = (int(part) for part in SCHEDULED.parts(key))
                segment = load_segment(txn, self.log.group, first_seq, slot)
                due.setdefault(due_ms, []).extend(masks.to_ranges(first_seq, segment.mask))
        return " ".join(
            f"{due_ms - self.log.now_ms}: {_ranges(masks.merge_ranges(ranges))}"
            for due_ms, ranges in due.items()
        )

    def _wait(self, plain: list[str], options: dict[str, str]) -> str:
        self.log.advance(int(plain[0]))
        return ""

    def _stats(self, plain: list[str], options: dict[str, str]) -> str:
        with self.log.environment.snapshot() as txn:
            found = queries.stats(txn, self.log.group)
        return " ".join(str(getattr(found, name)) for name in plain)

    def _outbox(self, plain: list[str], options: dict[str, str]) -> str:
        with self.log.environment.snapshot() as txn:
            batch = queries.outbox_batch(txn, self.log.group, int(plain[0]))
        if batch is None:
            return "none"
        return f"from {batch.first_move}: " + " ".join(
            f"{item.origin_seq}/{item.reason}x{item.attempts}" + "".join(item.errors)
            for item in batch.items
        )


def _refused(refusal: Refusal) -> str:
    hint = {"SEQUENCE_GAP": refusal.limit, "ITEM_TOO_LARGE": refusal.value}
    return f"{refusal.code.name} {hint.get(refusal.code.name, '')}".strip()
