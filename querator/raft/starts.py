"""The starts of other nodes that this node has met, and whether a node that connects is a later
one.

The promises of a node (votes, acknowledgements) are on the disk of one copy of its data. An older
copy lacks them, and must not vote in the node's name. So before any message of another node counts,
its chain of starts (`model.starts`) is compared with the starts remembered here, and new starts are
on disk.

    component       when                                   action
    the transport   in a handshake, before it is done      `judge`, then `meet`
    the turn        at its begin, if `changed`             `flush`, then a synced commit
    the turn        after that                             sends `take_news` to the other nodes
    the turn        another node sends what it has met     `learn`
    the turn        START_MARK_MS have passed, or a node   `mark`: records that its own start has
                    has connected                          come further
    the transport   `version` has changed                  judges open connections again

A connected node sends the others each newly met start at once, and all known starts when it
connects. So of two processes on copies of the same data that reach different nodes, one is refused.
"""

from collections.abc import Iterable, Mapping

from querator.model.limits import STARTS_MET_MAX
from querator.model.nodes import NodeKey, node_name
from querator.model.starts import Kin, Met, Starts, kin, marked, newer
from querator.raft.refusals import Code, PeerRefused
from querator.storage import starts as rows
from querator.storage.environment import ReadTransaction, WriteTransaction


class StartMemory:
    """The known starts of one node. Used by one thread at a time: the one that serves the peers."""

    def __init__(self, node: NodeKey, kept: Mapping[str, Met]) -> None:
        """`kept` is what is on disk, by name, including the node's own starts."""
        self._name = node_name(node)
        self._met = dict(kept)
        own = self._met.get(self._name)
        if own is None or own.node != node:
            self._met[self._name] = Met(node, ())
        self._unwritten: dict[str, None] = {}
        self._news: dict[str, None] = {}
        self.version = 0
        """Grows when a connected node may have been overtaken by a later start."""

    @classmethod
    def load(cls, txn: ReadTransaction, node: NodeKey) -> "StartMemory":
        """Raises StorageCorrupt."""
        return cls(node, rows.read(txn))

    @property
    def own(self) -> Starts:
        return self._met[self._name].starts

    @property
    def changed(self) -> bool:
        """Whether some known starts are not on disk."""
        return bool(self._unwritten)

    def all(self) -> tuple[Met, ...]:
        """All known starts, including the node's own."""
        return tuple(met for met in self._met.values() if met.starts)

    def known(self, node: NodeKey) -> Starts:
        """The known starts of the node; empty if it was never met."""
        met = self._met.get(node_name(node))
        return met.starts if met is not None and met.node == node else ()

    # --- other nodes ---------------------------------------------------------------

    def judge(self, node: NodeKey, starts: Starts) -> None:
        """Raises PeerRefused when the node runs on a copy of its data that is not the newest."""
        known = self.known(node)
        if not known:
            return
        name, last = node_name(node), known[-1]
        if not starts:
            raise PeerRefused(Code.OLD_COPY, f"the data of node {name} has no record of its starts")
        told = starts[-1].boots
        match kin(starts, last):
            case Kin.SAME | Kin.LATER:
                return
            case Kin.OTHER:
                how = f"has seen another start {last.boots} of it"
            case Kin.OLD if told < last.boots:
                how = f"has seen start {last.boots} of it, and this is start {told}"
            case _:
                how = f"has seen start {last.boots} of it after the copy was made"
        raise PeerRefused(
            Code.OLD_COPY, f"the data of node {name} is an old copy: {self._name} {how}"
        )

    def meet(self, node: NodeKey, starts: Starts) -> None:
        """Records the starts of a node that was judged and is accepted."""
        known = self.known(node)
        if starts and newer(starts, known or starts) != known:
            self._learn(Met(node, starts))
            self._news[node_name(node)] = None

    def learn(self, told: Iterable[Met]) -> None:
        """Records what another node has met. A node judges by itself about its own data, and about
        data that differs from the data known under a name.
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
        """Makes every earlier image of the data an old copy."""
        if self.own:
            self._met[self._name] = Met(self._met[self._name].node, marked(self.own))
            self._unwritten[self._name] = None
            self._news[self._name] = None

    # --- the turn's ----------------------------------------------------------------------

    def flush(self, txn: WriteTransaction) -> None:
        """Writes the changes; the caller commits, and syncs."""
        for name in self._unwritten:
            met = self._met.get(name)
            if met is None:
                rows.delete(txn, name)
            else:
                rows.put(txn, met)
        self._unwritten.clear()

    def take_news(self) -> tuple[Met, ...]:
        """The starts that the other nodes should know and were not sent."""
        assert not self._unwritten, "reported starts are on disk"
        news, self._news = self._news, {}
        return tuple(self._met[name] for name in news if name in self._met)
