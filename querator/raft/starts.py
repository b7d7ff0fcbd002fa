"""Which start of each other node this node has met, and whether one that connects is a later one.

What a node has promised (votes, acknowledgements) is on the disk of one copy of its data. A copy
that was made before lacks it, and must not vote in its name. So before anything that another node
says counts, its chain of starts (`model.starts`) is judged by what is remembered here, and what is
new of it is on disk.

    who                     when                                   does
    the transport           in a handshake, before it is done      `judge`, then `meet`
    the turn                at its begin, if `changed`             `flush`, and commits, synced
    the turn                after that                             tells `take_news` to the others
    the turn                another node tells what it has met     `hear`
    the turn                START_MARK_MS have passed, or a node   `mark`: its own start has come
                            has connected                          further
    the transport           `version` has changed                  judges open connections again

Nodes that are connected tell each other at once whom they have met, and all they know when they
connect: so of two processes on copies of the same data, which reach different nodes, one is
refused.
"""

from collections.abc import Iterable, Mapping

from querator.model.limits import STARTS_MET_MAX
from querator.model.nodes import NodeKey, node_name
from querator.model.starts import Kin, Met, Starts, kin, marked, newer
from querator.raft.refusals import Code, Refused
from querator.storage import starts as rows
from querator.storage.environment import ReadTransaction, WriteTransaction


class StartMemory:
    """Of one node. One thread at a time: that which serves the peers."""

    def __init__(self, node: NodeKey, kept: Mapping[str, Met]) -> None:
        """`kept` is what is on disk, by name; the own starts among them."""
        self._name = node_name(node)
        self._met = dict(kept)
        own = self._met.get(self._name)
        if own is None or own.node != node:
            self._met[self._name] = Met(node, ())
        self._unwritten: dict[str, None] = {}
        self._news: dict[str, None] = {}
        self.version = 0
        """Grows when somebody who is connected may have been overtaken."""

    @classmethod
    def load(cls, txn: ReadTransaction, node: NodeKey) -> "StartMemory":
        """Raises StorageCorrupt."""
        return cls(node, rows.read(txn))

    @property
    def own(self) -> Starts:
        return self._met[self._name].starts

    @property
    def changed(self) -> bool:
        """Whether something is known that is not on disk."""
        return bool(self._unwritten)

    def all(self) -> tuple[Met, ...]:
        """All that is known, the own starts too."""
        return tuple(met for met in self._met.values() if met.starts)

    def known(self, node: NodeKey) -> Starts:
        """What is known of the node; empty: it was never met."""
        met = self._met.get(node_name(node))
        return met.starts if met is not None and met.node == node else ()

    # --- other nodes ---------------------------------------------------------------

    def judge(self, node: NodeKey, starts: Starts) -> None:
        """Raises Refused when the node runs on a copy of its data that is not the newest."""
        known = self.known(node)
        if not known:
            return
        name, last = node_name(node), known[-1]
        if not starts:
            raise Refused(Code.OLD_COPY, f"the data of node {name} has no record of its starts")
        told = starts[-1].boots
        match kin(starts, last):
            case Kin.SAME | Kin.LATER:
                return
            case Kin.OTHER:
                how = f"has met another start {last.boots} of it"
            case Kin.OLD if told < last.boots:
                how = f"has met start {last.boots} of it, and this is start {told}"
            case _:
                how = f"has met start {last.boots} of it after the copy was made"
        raise Refused(Code.OLD_COPY, f"the data of node {name} is an old copy: {self._name} {how}")

    def meet(self, node: NodeKey, starts: Starts) -> None:
        """The node was judged, and is let in."""
        known = self.known(node)
        if starts and newer(starts, known or starts) != known:
            self._learn(Met(node, starts))
            self._news[node_name(node)] = None

    def hear(self, told: Iterable[Met]) -> None:
        """What another node has met. Of the own data, and of other data than is known under a name,
        a node judges by itself.
        """
        for met in told:
            name = node_name(met.node)
            mine = self._met.get(name)
            if name == self._name or not met.starts or (mine and mine.node != met.node):
                continue
            if mine is None and len(self._met) >= STARTS_MET_MAX:
                continue
            if mine is None or newer(mine.starts, met.starts) != mine.starts:
                self._learn(met)
                self.version += 1

    def _learn(self, met: Met) -> None:
        name = node_name(met.node)
        if name not in self._met and len(self._met) >= STARTS_MET_MAX:
            oldest = next(one for one in self._met if one != self._name)
            del self._met[oldest]
            self._unwritten[oldest] = None
        self._met[name] = met
        self._unwritten[name] = None

    # --- the own starts ----------------------------------------------------------------

    def mark(self) -> None:
        """An image of the data from before is an old copy from here on."""
        if self.own:
            self._met[self._name] = Met(self._met[self._name].node, marked(self.own))
            self._unwritten[self._name] = None
            self._news[self._name] = None

    # --- the turn's ----------------------------------------------------------------------

    def flush(self, txn: WriteTransaction) -> None:
        """Writes what has changed; the caller commits, and syncs."""
        for name in self._unwritten:
            met = self._met.get(name)
            if met is None:
                rows.delete(txn, name)
            else:
                rows.put(txn, met)
        self._unwritten.clear()

    def take_news(self) -> tuple[Met, ...]:
        """What others should know, and were not told."""
        assert not self._unwritten, "what is told is on disk"
        news, self._news = self._news, {}
        return tuple(self._met[name] for name in news if name in self._met)
