"""Safety rules for items, checked one at a time and without search.

Each rule reports only certain violations: whatever instants between their begins and ends the calls
took effect at, it is a violation. So no rule reports a correct history; the linearizability checker
finds what these rules miss.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.checkers.history import Extend, Retry
from tests.checkers.lives import Delivery, Lives, Place, Settle, Tenure


def name(place: Place) -> str:
    queue, partition, seq = place
    return f"{queue} {partition}-{seq}"


def nothing_lost(lives: Lives) -> Iterator[str]:
    """Every acknowledged item is completed, dead or still there, at a look at its queue."""
    last = {op.queue: looked for op, looked in lives.looks}
    kept = {
        (queue, partition, seq)
        for queue, looked in last.items()
        for partition, seq, _ in looked.present
    } | {
        (queue, dead.partition, dead.seq) for queue, looked in last.items() for dead in looked.dead
    }
    ended = _maybe_completed(lives)
    for birth in lives.births:
        if birth.acknowledged and birth.queue in last:
            for reference, place in birth.places.items():
                if place not in kept and place not in ended:
                    yield f"{name(place)} ({reference}): acknowledged, but lost"
            for reference in birth.references:
                if reference not in birth.places:
                    yield f"{birth.queue} ({reference}): acknowledged without a place"


def _maybe_completed(lives: Lives) -> set[Place]:
    found: set[Place] = set()
    for settle in lives.settles:
        tenure = lives.tenures.get(settle.lease)
        if settle.completes and tenure is not None:
            seqs = [*settle.done, *settle.repeated]
            if not settle.known:
                seqs = list(tenure.items) if settle.named is None else settle.named
            found.update((*tenure.home, seq) for seq in seqs)
    return found


def stored_once(lives: Lives) -> Iterator[str]:
    """What is delivered was produced; each reference has one place, and each place one item."""
    at: dict[Place, str] = {}
    known: dict[str, Place] = {}
    for birth in lives.births:
        for reference, place in birth.places.items():
            known[reference] = place
            if at.setdefault(place, reference) != reference:
                yield f"{name(place)}: holds {at[place]} and {reference}"
    reported: set[tuple[Place, str]] = set()
    for place, reference in lives.seen():
        if (place, reference) in reported:
            continue
        reported.add((place, reference))
        if reference not in lives.birth_of:
            yield f"{name(place)} ({reference}): nobody produced it"
        elif known.get(reference, place) != place:
            yield f"{reference}: stored at {name(known[reference])} and at {name(place)}"
        elif at.setdefault(place, reference) != reference:
            yield f"{name(place)}: holds {at[place]} and {reference}"


def delivered_after_produced(lives: Lives) -> Iterator[str]:
    for birth in lives.births:
        for reference, place in birth.places.items():
            for delivery in lives.deliveries.get(place, ()):
                if delivery.operation.end_s < birth.begin_s:
                    yield f"{name(place)} ({reference}): delivered before it was produced"


def one_lease_at_a_time(lives: Lives) -> Iterator[str]:
    """No two leases of one item certainly hold it at the same instant."""
    for place, deliveries in lives.deliveries.items():
        tenures = _tenures(lives, deliveries)
        if len(tenures) < 2:
            continue
        spans = sorted(
            (tenure.known_s, _held_until(lives, tenure, place[2]), tenure.lease)
            for tenure in tenures
        )
        until_s, holder = float("-inf"), ""
        for start_s, end_s, lease in spans:
            if start_s < min(until_s, end_s):
                yield (
                    f"{name(place)}: under leases {holder} and {lease} at {start_s:.4f} "
                    f"(until {until_s:.4f})"
                )
            if end_s > until_s:
                until_s, holder = end_s, lease
        yield from _same_attempt(place, deliveries, lives)


def _tenures(lives: Lives, deliveries: list[Delivery]) -> list[Tenure]:
    return [lives.tenures[lease] for lease in dict.fromkeys(d.lease for d in deliveries)]


def _held_until(lives: Lives, tenure: Tenure, seq: int) -> float:
    """The instant until which the lease certainly held the item, provided that it was granted."""
    uncertain_s = lives.history.clock_uncertainty_s
    lapse_s = tenure.begin_s + tenure.timeout_s - uncertain_s
    for op, live in sorted(tenure.extends, key=lambda extend: extend[0].begin_s):
        if live and isinstance(op.request, Extend):
            timeout_s = op.request.lease_timeout_s or lives.rules(op.queue).lease_timeout_s
            lapse_s = max(lapse_s, op.begin_s + timeout_s - uncertain_s)
    for settle in tenure.settles:
        if seq in settle.done or (not settle.known and settle.may_touch(seq)):
            lapse_s = min(lapse_s, settle.operation.begin_s)
    return lapse_s


def _same_attempt(place: Place, deliveries: list[Delivery], lives: Lives) -> Iterator[str]:
    """The same attempt is granted twice only when it has been given back in between."""
    leases: dict[int, list[str]] = defaultdict(list)
    for delivery in deliveries:
        if delivery.lease not in leases[delivery.attempt]:
            leases[delivery.attempt].append(delivery.lease)
    for attempt, granted in leases.items():
        kept = [lease for lease in granted if not _may_be_released(lives.tenures[lease], place[2])]
        if len(kept) > 1:
            yield f"{name(place)}: attempt {attempt} under leases {', '.join(kept)}"


def _may_be_released(tenure: Tenure, seq: int) -> bool:
    for settle in tenure.settles:
        request = settle.operation.request
        if isinstance(request, Retry) and not request.count_attempt:
            if seq in settle.done or (not settle.known and settle.may_touch(seq)):
                return True
    return False


def ended_leases_are_refused(lives: Lives) -> Iterator[str]:
    """Nothing is done under a lease when the item has certainly gone to a later one."""
    for place, deliveries in lives.deliveries.items():
        tenures = _tenures(lives, deliveries)
        for tenure in tenures:
            attempt = tenure.items[place[2]]
            later = min(
                (t.known_s for t in tenures if t.items[place[2]] > attempt), default=float("inf")
            )
            for settle in tenure.settles:
                if place[2] in settle.done and settle.operation.begin_s > later:
                    yield f"{name(place)}: lease {tenure.lease} was obeyed after it had ended"


def completed_is_final(lives: Lives) -> Iterator[str]:
    """One complete is accepted, once; afterwards the item is never seen again."""
    accepted: dict[Place, list[Settle]] = defaultdict(list)
    for settle in lives.settles:
        tenure = lives.tenures.get(settle.lease)
        if settle.completes and tenure is not None:
            for seq in settle.done:
                accepted[(*tenure.home, seq)].append(settle)
            for seq in settle.repeated:
                if not any(s.lease == settle.lease for s in _done(lives, tenure, seq)):
                    yield f"{name((*tenure.home, seq))}: a repeat of a complete nobody made"
    for place, settles in accepted.items():
        yield from _seen_again(lives, place, settles)


def _seen_again(lives: Lives, place: Place, settles: list[Settle]) -> Iterator[str]:
    if len(settles) > 1:
        leases = ", ".join(dict.fromkeys(s.lease for s in settles))
        yield f"{name(place)}: {len(settles)} completes accepted, under {leases}"
    done_s = min(settle.operation.end_s for settle in settles)
    for delivery in lives.deliveries.get(place, ()):
        if delivery.operation.begin_s > done_s:
            yield f"{name(place)}: delivered (attempt {delivery.attempt}) after its completion"
    for op, _ in lives.looks:
        if op.queue != place[0]:
            continue
        if op.begin_s > done_s and place[1:] in lives.present(op):
            yield f"{name(place)}: still there after its completion"
        if place[1:] in lives.dead(op):
            yield f"{name(place)}: dead, but completed"


def _done(lives: Lives, tenure: Tenure, seq: int) -> list[Settle]:
    """Completes under the lease that may have taken effect for the item."""
    return [
        settle
        for settle in lives.completes_of(tenure.lease, seq)
        if seq in settle.done or not settle.known
    ]
