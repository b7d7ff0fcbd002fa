"""`querator queue explain`: why the consumers of a queue get no items, in sentences."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from querator.cli.breakers import breaker_note
from querator.cli.limits import limit_texts, permitted
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.output import BULLET, count, write_json, write_picture
from querator.cli.shared.texts import age_text, instant_text, printable
from querator.client import Client, GroupStats, KeyStats, LeaseInfo, QueueStats
from querator.client.cluster import ClusterPicture
from querator.client.values import PartitionStats
from querator.model.cluster import LEASES_CONTINUE

LEASES_READ_MAX: Final = 1_000
"""Live leases that are read to name their owners."""
_NAMED_MAX: Final = 3
"""Owners, groups, keys and partitions that are named."""


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a queue. `leases`: the first of its live leases. `due`: when the next
    scheduled item is due. `groups` and `keys`: of a fair and of a keyed queue. `leaderless`: its
    partitions without a leader. `full`: the sentence on a node that refuses leases, because its
    storage is full.
    """

    stats: QueueStats
    leases: Sequence[LeaseInfo] = ()
    due: datetime | None = None
    groups: Sequence[GroupStats] = ()
    keys: Sequence[KeyStats] = ()
    leaderless: Sequence[int] = ()
    full: str = ""


class Reason(msgspec.Struct, frozen=True):
    """Why items are not leased, or what the queue has instead. `kind` is a stable word."""

    kind: str
    text: str


class ExplainView(msgspec.Struct, frozen=True):
    """`leasable`: how many items consumers can lease at present."""

    namespace: str
    queue: str
    leasable: int
    reasons: list[Reason]


@click.command(short_help="Say why consumers of a queue get no items.")
@click.argument("name")
@server_options
@output_option
def explain(name: str, target: CommandTarget, as_json: bool) -> None:
    """Say in sentences why consumers of the queue NAME get no items, and what to do.

    The command reads the counts of the queue, its pauses, its breaker, its limits, the owners of
    its leases, its next due time, the limits of groups, the keys that wait, and the leaders of its
    partitions. It changes nothing.

    With --output json, `leasable` is the number of items that consumers can lease at present, and
    each reason has a `kind`.

    \b
    Example:
      querator queue explain mail
    """
    facts = target.run(lambda client: read_facts(client, target, name))
    leasable = leasable_items(facts)
    found = list(reasons(facts))
    info = facts.stats.queue
    if as_json:
        write_json(ExplainView(info.namespace, info.name, leasable, found))
        return
    can = f"consumers can lease {count(leasable, 'item')} at present"
    write_picture(
        [f"Queue {name}: {can if leasable else 'consumers get no items at present'}."]
        + [BULLET + one.text for one in found]
    )


async def read_facts(client: Client, target: CommandTarget, queue: str) -> QueueFacts:
    async with target.cluster() as admin:
        picture = await admin.picture()
    leaderless = _leaderless(picture, target.namespace, queue)
    stale = bool(leaderless)
    stats = await client.stats(queue, stale=stale)
    info, total = stats.queue, stats.total
    leases: list[LeaseInfo] = []
    if total.leased:
        async for lease in client.list_leases(queue, stale=stale):
            leases.append(lease)
            if len(leases) == LEASES_READ_MAX:
                break
    due = None
    if total.scheduled:
        async for one in client.schedules.list(queue, limit=1, stale=stale):
            due = one.due_at
    groups: list[GroupStats] = []
    if info.kind == "fair" and total.ready:
        groups = [one async for one in client.list_groups(queue, stale=stale)]
    keys: list[KeyStats] = []
    if info.kind == "keyed" and total.ready:
        keys = [one async for one in client.list_keys(queue, stale=stale)]
    return QueueFacts(
        stats=stats,
        leases=leases,
        due=due,
        groups=groups,
        keys=keys,
        leaderless=leaderless,
        full=_full(picture),
    )


def _leaderless(picture: ClusterPicture, namespace: str, queue: str) -> list[int]:
    lost = {seen.node.name for seen in picture.nodes if seen.silent and not seen.node.connected}
    return sorted(
        group.partition
        for group in picture.groups
        if (group.namespace, group.queue) == (namespace, queue)
        and not group.leads
        and (not group.leader or group.leader in lost)
    )


def _full(picture: ClusterPicture) -> str:
    sentences = (
        one.condition.sentence
        for one in picture.conditions
        if one.condition.kind == "storage_full" and LEASES_CONTINUE not in one.condition.sentence
    )
    return next(sentences, "")


def leasable_items(facts: QueueFacts) -> int:
    """How many ready items nothing keeps back, as far as the counts tell."""
    if facts.stats.queue.lease_paused or facts.full:
        return 0
    ready = facts.stats.total.ready - facts.stats.total.damaged
    kept = sum(one.ready for one in kept_groups(facts.groups))
    kept += sum(one.ready - _permitted(one) for one in facts.stats.partitions)
    kept += sum(one.waiting for one in facts.keys if one.leased or one.blocked_until or one.next_at)
    # The items that wait for a key may be scheduled: the first item of each other key counts.
    free = sum(
        not (one.leased or one.next_at) and one.oldest_ready_at is not None for one in facts.keys
    )
    return max(ready - kept, free, 0)


def _permitted(partition: PartitionStats) -> int:
    """The ready items of a partition that its breaker and its limits let be leased."""
    closed = partition.breaker is None or partition.breaker.state == "closed"
    return permitted(partition) if closed else 0


def kept_groups(groups: Iterable[GroupStats]) -> list[GroupStats]:
    """The groups that get no more leases, and have ready items; not those below them."""
    kept: list[GroupStats] = []
    for one in sorted(groups, key=lambda one: one.path):
        below = any(one.path.startswith(f"{other.path}.") for other in kept)
        at_limit = one.leased_max is not None and one.leased >= one.leased_max
        waits = one.next_at is not None
        if one.path and one.ready and not below and (one.paused or at_limit or waits):
            kept.append(one)
    return kept


def reasons(facts: QueueFacts) -> Iterator[Reason]:
    info, total = facts.stats.queue, facts.stats.total
    name = info.name
    if info.lease_paused:
        text = f"Leases are paused. Continue with: querator queue resume {name}"
        yield Reason("paused", text)
    if facts.leaderless:
        places = _named([f"{name}/{number}" for number in facts.leaderless])
        text = (
            f"Without a leader, so nothing can be leased there: {places}. The counts may be old. "
        )
        yield Reason("no_leader", text + "See: querator cluster status")
    if facts.full and total.ready:
        yield Reason("storage_full", facts.full)
    if text := breaker_note(facts.stats):
        text = text.removeprefix(f"{name}: ")
        yield Reason("breaker", text[:1].upper() + text[1:])
    yield from (Reason(kind, text) for kind, text in limit_texts(facts.stats))
    yield from _of_groups(name, facts.groups)
    yield from _of_keys(name, facts.keys)
    if total.leased:
        yield Reason("leased", _leased_text(facts))
    yield from _of_states(facts)
    if leasable := leasable_items(facts):
        text = f"Ready: {count(leasable, 'item')}"
        text += f", the oldest for {age_text(total.oldest_ready_at)}" * bool(total.oldest_ready_at)
        if not total.leased:
            text += (
                ". No item is leased: no consumer runs, or consumers use another address or "
                f"namespace than {info.namespace}"
            )
        yield Reason("ready", f"{text}.")
    if info.produce_paused:
        text = f"Producers are paused. Continue with: querator queue resume {name} --producers"
        yield Reason("producers_paused", text)
    if not (total.ready or total.leased or total.scheduled or total.moving or total.held):
        yield Reason("empty", _empty_text(facts.stats))


def _of_groups(queue: str, groups: Sequence[GroupStats]) -> Iterator[Reason]:
    kept = kept_groups(groups)
    if paused := [one for one in kept if one.paused]:
        items = count(sum(one.ready for one in paused), "ready item")
        yield Reason(
            "group_paused",
            f"In paused groups: {items} ({_named([one.path for one in paused])}). "
            f"Continue with: querator group resume {queue} GROUP",
        )
    if waiting := [one for one in kept if one.next_at is not None]:
        items = count(sum(one.ready for one in waiting), "ready item")
        places = _named([one.path for one in waiting])
        yield Reason(
            "group_rate",
            f"In groups that wait for their rate: {items} ({places}). Change it with: querator "
            f"queue update {queue} --group-rate GROUP=N/TIME",
        )
    if full := [one for one in kept if not one.paused and one.next_at is None]:
        items = count(sum(one.ready for one in full), "ready item")
        places = _named([f"{one.path}: {one.leased} of {one.leased_max} leased" for one in full])
        yield Reason(
            "group_limit",
            f"In groups that have as many leased items as their limit: {items} ({places}). They "
            f"wait for completes, or for a higher limit: querator queue update {queue} "
            "--group-max GROUP=N",
        )


def _of_keys(queue: str, keys: Sequence[KeyStats]) -> Iterator[Reason]:
    if leased := [one for one in keys if one.leased and one.waiting]:
        yield Reason(
            "key_leased",
            f"Behind leased items of their keys: {count(_waiting(leased), 'item')} "
            f"({_named([one.key for one in leased])}). See: querator key list {queue} "
            "--sort waiting",
        )
    if blocked := [one for one in keys if one.blocked_until is not None and not one.leased]:
        yield Reason(
            "key_blocked",
            f"Kept back by the retry of the first item of their keys: "
            f"{count(_waiting(blocked), 'item')} ({_named([one.key for one in blocked])}). See: "
            f"querator key list {queue} --blocked",
        )

    if waiting := [one for one in keys if one.next_at is not None]:
        yield Reason(
            "key_rate",
            f"Behind the rate of their keys: {count(_waiting(waiting), 'item')} "
            f"({_named([one.key for one in waiting])}). Change it with: querator queue update "
            f"{queue} --key-rate N/TIME",
        )


def _waiting(keys: Iterable[KeyStats]) -> int:
    return sum(one.waiting for one in keys)


def _leased_text(facts: QueueFacts) -> str:
    total = facts.stats.total
    owners = Counter[str]()
    for one in facts.leases:
        owners[one.client_id] += one.items
    several = len(owners) > 1
    named = _named(
        [f"{owner}: {items:,}" if several else owner for owner, items in owners.most_common()]
    )
    oldest = total.oldest_lease_at
    since = f", the oldest for {age_text(oldest)}" if oldest else ""
    return (
        f"Leased: {count(total.leased, 'item')}{f' by {named}' if named else ''}{since}. They come "
        "back when their lease ends, and a consumer that is connected extends it. See: querator "
        f"leases list {facts.stats.queue.name}"
    )


def _of_states(facts: QueueFacts) -> Iterator[Reason]:
    """The items in states in which they cannot be leased."""
    info, total = facts.stats.queue, facts.stats.total
    name = info.name
    due = f", the first one due at {instant_text(facts.due)}" if facts.due else ""
    places = _named([f"{name}/{number}" for number in total.waits_for])
    for kind, items, where, remedy in (
        ("scheduled", total.scheduled, due, f"See: querator schedule list {name}"),
        (
            "reserved",
            total.reserved,
            ", for batches of readers",
            f"See: querator reader list {name}",
        ),
        (
            "moving",
            total.moving,
            f", to queue {info.dead_queue or 'that takes them'}",
            "If they stay: querator cluster status",
        ),
        (
            "held",
            total.held,
            f", behind earlier items of their keys in {places or 'other partitions'}",
            "Lease and complete those.",
        ),
        (
            "staged",
            total.staged,
            ", for transactions that are not committed",
            f"See: querator txn list {name}",
        ),
        (
            "damaged",
            total.damaged,
            ", which are not delivered",
            "See: querator cluster status",
        ),
    ):
        if items:
            yield Reason(kind, f"{kind.capitalize()}: {count(items, 'item')}{where}. {remedy}")


def _empty_text(stats: QueueStats) -> str:
    total = stats.total
    came = total.produced + total.moved_in
    if not came:
        text = "The queue is empty, and nothing has come into it: producers use another queue or "
        return text + f"namespace than {stats.queue.namespace}, or have not produced yet."
    ended = {
        "completed": total.completed,
        "acknowledged by readers": total.acknowledged,
        "dead": total.dead,
        "removed by operators": total.cancelled,
    }
    what = ", ".join(f"{items:,} {word}" for word, items in ended.items() if items)
    text = f"The queue is empty. Since it was created, {count(came, 'item')} came"
    return f"{text}{f': {what}' if what else ''}."


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(map(printable, names[:_NAMED_MAX])) + more
