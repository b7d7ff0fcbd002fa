"""Adoption: a partition takes over what other partitions remember, so that repeats may come to it.

Requests with an identity or keys are shared out among the partitions of a queue. When the number of
partitions changes, some repeats go to another partition than their first attempt. Before that
partition accepts any request, it adopts what the others know (`partition.dedup_export` reads it).
A fact ("this request was stored there", "everything up to this sequence is forgotten") stays true
for ever. So it does no harm to adopt a fact too often, too late or in the wrong place. No fact may
be missing.
"""

from querator.model.commands import Adopt, Done, Refusal
from querator.partition.apply_context import ApplyContext, unconfigured
from querator.partition.dedup import adopt_key
from querator.partition.producers import adopt_producer
from querator.partition.txn_producers import learn


def adopt(context: ApplyContext, command: Adopt) -> Done | Refusal:
    """`changed` counts producers, including those of transactions, and keys."""
    if context.row is None:
        return unconfigured()
    facts = command.facts
    for producer in facts.producers:
        adopt_producer(context, producer)
    for key in facts.keys:
        adopt_key(context, key)
    for one in facts.txn_producers:
        learn(context, one)
    context.state.displaced_ms = max(context.state.displaced_ms, facts.displaced_ms)
    return Done(len(facts.producers) + len(facts.keys) + len(facts.txn_producers))
