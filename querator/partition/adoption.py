"""What a partition takes over of what others remember, so that repeats may come to it.

Requests with an identity or keys are shared out among the partitions of a queue, and when their
number changes some go to another one than their first attempt did. Before that one takes any, it
adopts what the others know (`partition.facts` reads it). A fact ("this request was stored there",
"everything up to this sequence is forgotten") stays true for ever, so that adopting one too often,
too late or in the wrong place does no harm; what must not happen is that one is missing.
"""

from querator.model.commands import Adopt, Done, Refusal
from querator.partition.dedup import adopt_key
from querator.partition.producers import adopt_producer
from querator.partition.turn import Turn, unconfigured
from querator.partition.txn_producers import learn


def adopt(turn: Turn, command: Adopt) -> Done | Refusal:
    """`changed` counts producers, also those of transactions, and keys."""
    if turn.row is None:
        return unconfigured()
    facts = command.facts
    for producer in facts.producers:
        adopt_producer(turn, producer)
    for key in facts.keys:
        adopt_key(turn, key)
    for one in facts.txn_producers:
        learn(turn, one)
    turn.state.displaced_ms = max(turn.state.displaced_ms, facts.displaced_ms)
    return Done(len(facts.producers) + len(facts.keys) + len(facts.txn_producers))
