"""Idempotence: repeated requests have one effect, and every answer is complete."""

from collections import defaultdict
from collections.abc import Iterator

from tests.checkers.history import Complete, Produced, Retry
from tests.checkers.lives import Birth, Lives, Place, Settle, places_of
from tests.checkers.safety import name


def one_effect_of_produces(lives: Lives) -> Iterator[str]:
    """All answers to one identity name the same places, and at most one is not a repeat."""
    for birth in lives.births:
        answered = [op for op in birth.tries if isinstance(op.outcome, Produced)]
        identity = f"{birth.queue}: request {birth.request.sequence} of {birth.request.producer}"
        if any(op.request != birth.request for op in birth.tries):
            yield f"{identity}: one identity for different requests"
            continue
        places = {tuple(sorted(_places(birth, op.outcome))) for op in answered}
        if len(places) > 1:
            yield f"{identity}: stored in {len(places)} different ways"
        firsts: dict[int, int] = defaultdict(int)
        for op in answered:
            assert isinstance(op.outcome, Produced)
            for part in op.outcome.parts:
                firsts[part.partition] += not part.repeated
        for partition, times in firsts.items():
            if times > 1:
                yield f"{identity}: applied {times} times in partition {partition}"


def _places(birth: Birth, outcome: object) -> Iterator[tuple[str, Place]]:
    assert isinstance(outcome, Produced)
    return places_of(birth.queue, birth.request, outcome)


def one_effect_of_leases(lives: Lives) -> Iterator[str]:
    """One lease request has at most one lease in each partition."""
    granted: dict[tuple[str, str, str, int], str] = {}
    for tenure in lives.tenures.values():
        for op in tenure.operations:
            if not tenure.request.request_id:
                continue
            identity = (op.queue, op.client, tenure.request.request_id, tenure.home[1])
            if granted.setdefault(identity, tenure.lease) != tenure.lease:
                yield (
                    f"{op.queue}: request {tenure.request.request_id} of {op.client} got leases "
                    f"{granted[identity]} and {tenure.lease} in partition {tenure.home[1]}"
                )


def one_effect_of_settles(lives: Lives) -> Iterator[str]:
    """An item is settled once under each lease; later answers are repeats, or lost."""
    done: dict[tuple[str, int], Settle] = {}
    for settle in lives.settles:
        for seq in settle.done:
            first = done.setdefault((settle.lease, seq), settle)
            if first is not settle:
                yield f"lease {settle.lease}, item {seq}: settled twice"


def repeats_have_a_first(lives: Lives) -> Iterator[str]:
    """A repeat in an answer may have been done before, under this lease, by this verb."""
    firsts: set[tuple[str, int, str]] = set()
    for settle in lives.settles:
        tenure = lives.tenures.get(settle.lease)
        seqs = settle.done
        if not settle.known:
            seqs = list(tenure.items if tenure else ()) if settle.named is None else settle.named
        firsts.update((settle.lease, seq, settle.verb) for seq in seqs)
    for settle in lives.settles:
        for seq in settle.repeated:
            if (settle.lease, seq, settle.verb) not in firsts:
                yield (
                    f"lease {settle.lease}, item {seq}: a repeat, but nobody has {settle.verb} it"
                )


def every_item_is_answered(lives: Lives) -> Iterator[str]:
    """A complete or retry reports, for each item that it names, exactly one outcome."""
    for settle in lives.settles:
        if not settle.known:
            continue
        answered = [*settle.done, *settle.repeated, *settle.lost]
        if len(set(answered)) != len(answered):
            yield f"lease {settle.lease}: an item with two outcomes in one answer"
        request = settle.operation.request
        assert isinstance(request, Complete | Retry)
        atomic = request.all_or_nothing and not settle.done
        if settle.named is not None and not atomic and set(answered) != set(settle.named):
            missing = sorted(set(settle.named) ^ set(answered))
            yield f"lease {settle.lease}: items {missing} named and not answered, or the reverse"
        tenure = lives.tenures.get(settle.lease)
        if tenure is not None:
            for seq in set(settle.done) - set(tenure.items):
                yield f"{name((*tenure.home, seq))}: settled under {settle.lease}, not held by it"
