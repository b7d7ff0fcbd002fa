"""Starts of a node on one copy of its data, and which of two images of that data is the later one.

Each start makes a random *nonce*, which is on disk before anything of that start leaves the node.
While the node runs, it also counts *marks* and reports each to the others. A node presents the
chain of its last starts. Others remember the newest chain that they have met. A restart of the real
data presents a chain that contains what they remember; an image that was copied before does not:

    what is remembered    what is presented                        it is
    start 4               … start 4, start 5                       the real data
    start 5               … start 4, start 5 with another nonce    a copy from before start 5
    start 5               … start 4                                the same
    start 4, mark 9       … start 4 with mark 7, start 5           a copy from before mark 9

A chain has STARTS_KEPT_MAX starts. If what is remembered is older than all of them, the larger
number counts.
"""

from enum import Enum, auto

import msgspec

from querator.model.limits import STARTS_KEPT_MAX
from querator.model.nodes import NodeKey


class NodeStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`boots` counts the starts on this copy of the data, from 1; `nonce` has 63 random bits.
    `marks` is the number of marks when the image was made.
    """

    boots: int
    nonce: int
    marks: int = 0


Starts = tuple[NodeStart, ...]
"""The last starts, the newest last."""


class Met(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node, and its newest known start with those before."""

    node: NodeKey
    starts: Starts


class Kin(Enum):
    """The relation of a chain to a known start."""

    SAME = auto()
    LATER = auto()
    OLD = auto()
    """An image from before the known start, or from before its last known mark."""
    OTHER = auto()
    """Another start has the number of the known one."""


def next_starts(starts: Starts, *, boots: int, nonce: int) -> Starts:
    """The chain of the next start."""
    return (*starts, NodeStart(boots, nonce))[-STARTS_KEPT_MAX:]


def marked(starts: Starts) -> Starts:
    """The chain with one mark more."""
    newest = starts[-1]
    return (*starts[:-1], msgspec.structs.replace(newest, marks=newest.marks + 1))


def kin(starts: Starts, known: NodeStart) -> Kin:
    """The relation of a chain, which is not empty, to a known start of the same data."""
    newest = starts[-1]
    if newest.boots < known.boots:
        return Kin.OLD
    same = next((start for start in starts if start.boots == known.boots), None)
    if same is None:
        return Kin.LATER
    if same.nonce != known.nonce:
        return Kin.OTHER
    if same is newest:
        # Only one process runs with this nonce: a chain with fewer marks was reported earlier.
        return Kin.SAME
    return Kin.OLD if same.marks < known.marks else Kin.LATER


def newer(one: Starts, other: Starts) -> Starts:
    """The valid one of two chains of the same data, independent of their order. If they contradict
    each other, the chain with more marks of the last common start counts. If these are equal, the
    nonces decide, which is random.
    """
    kins = kin(one, other[-1]), kin(other, one[-1])
    match kins:
        case Kin.SAME, Kin.SAME:
            return one if one[-1].marks >= other[-1].marks else other
        case Kin.LATER, _:
            return one
        case _, Kin.LATER:
            return other
    return max(one, other, key=lambda chain: _strength(chain, other if chain is one else one))


def _strength(chain: Starts, other: Starts) -> tuple[int, int, int]:
    """Marks of the last start that the other chain has as well, and the nonce of the next one."""
    nonces = {(start.boots, start.nonce) for start in other}
    shared = [start for start in chain if (start.boots, start.nonce) in nonces]
    own = [start for start in chain if (start.boots, start.nonce) not in nonces]
    marks = shared[-1].marks if shared else 0
    return marks, own[0].nonce if own else 0, chain[-1].boots
