"""How nodes without a cluster form one, and how a starting node finds its own. Pure: decides what a
node does next, given its own state and the answers of its peers.

No node is notified. Nodes only ask, and each stores durably what it has decided before it reports
it. From the peers' list, all nodes derive the names of the nodes that found the cluster. The node
with the smallest of these names is the *founder*. It alone decides, once for its data. So the order
in which nodes start, stop and lose their data does not matter. One copy of a node's data (an
incarnation) belongs to one cluster for ever. A cluster that was founded without some node's data
continues with the other nodes, or not at all.

    this node is      and the peers say                                       it does
    a member          that its name has other data in its cluster             refuses: replaced
                      that its data was started as often as now, or more,     refuses: an old copy
                      or otherwise than it says (`raft.starts`)
                      nothing of its cluster, but of another                  refuses: other cluster
                      anything else, or nothing                               starts
    not a member      that they are of several clusters, or not of the one    refuses: which is it?
                      for which it waits
                      that its data is of the cluster                         joins
                      that its name is known with other data                  waits as replacement
                      that its data or its name was removed                   refuses: removed
                      that its name is not known                              waits to be added
                      nothing, and it has waited as replacement before        waits as replacement
    not a member, of  all that found with it that they are empty, of no       founds
    no cluster, the   cluster, and would found with the same nodes
    founder           anything else                                           waits
    the same, not     anything else                                           waits
    the founder

Of several lists of a cluster's nodes, the list with the highest epoch counts. A waiting node
repeats its questions.
"""

from collections.abc import Mapping

import msgspec

from querator.model.nodes import Replicas
from querator.model.placement_map import NodeState, PlacedNode
from querator.placement.bootstrap import founding, learning

VERSION = 1


class Description(msgspec.Struct, frozen=True, array_like=True):
    """What a node reports about itself and its cluster to any node that asks.

    `founds_with` are the names of the nodes with which its settings found a cluster, its own
    included. If the node has a cluster, `nodes` are the nodes that it knows, at `epoch` of the map
    (0: the founding nodes). `replicas` is then the target of the placement group, empty while the
    node does not know the map. A node that waits for a lost node's place knows the cluster and no
    nodes. `removed` are the removed nodes.
    """

    version: int
    node: PlacedNode
    founds_with: tuple[str, ...]
    cluster_id: str = ""
    epoch: int = 0
    nodes: tuple[PlacedNode, ...] = ()
    founders: tuple[PlacedNode, ...] = ()
    replicas: Replicas = ()
    removed: tuple[PlacedNode, ...] = ()

    def bars(self, node: PlacedNode) -> bool:
        """Whether the node was removed, or has the name of one that was and is not readmitted."""
        return self.has_removed(node) or any(
            one.name == node.name and one.state is NodeState.REMOVED for one in self.removed
        )

    def has_removed(self, node: PlacedNode) -> bool:
        """Whether this copy of the node's data was removed."""
        return any(one.key == node.key for one in self.removed)

    def find(self, name: str) -> PlacedNode | None:
        """The node of this name in its cluster."""
        return next((node for node in self.nodes if node.name == name), None)


class OldCopy(msgspec.Struct, frozen=True):
    """The peer knows this node, and that its data is an old copy (`raft.starts`)."""

    reason: str


Said = Mapping[str, Description | OldCopy | str]
"""The answer of each peer, by its name in the settings, or the reason why there is none."""


class Starter(msgspec.Struct, frozen=True):
    """The starting node. `cluster_id` is empty if it has none. `member`: its data is in the
    cluster; False for one that waits for a lost node's place.
    """

    node: PlacedNode
    founds_with: tuple[str, ...]
    cluster_id: str = ""
    member: bool = False


class Start(msgspec.Struct, frozen=True):
    """Start as a member. `nodes` is the newest list of its cluster that a peer reported, at
    `epoch`; empty when none was reported.
    """

    epoch: int = 0
    nodes: tuple[PlacedNode, ...] = ()


class Wait(msgspec.Struct, frozen=True):
    """Ask again later. `reason` says what the node waits for."""

    reason: str


class WaitAsReplacement(msgspec.Struct, frozen=True):
    """Keep the cluster id, and ask again until the map names this data."""

    cluster_id: str
    reason: str


class Found(msgspec.Struct, frozen=True):
    """Found a cluster of these nodes, ordered by name, under a new id."""

    founders: tuple[PlacedNode, ...]


class Join(msgspec.Struct, frozen=True):
    """Become a member. `founders` is empty when the node joined after the founding. `replicas` is
    the node's first configuration of the placement group. `nodes` is the newest list of the
    cluster, at `epoch`.
    """

    cluster_id: str
    replicas: Replicas
    founders: tuple[PlacedNode, ...]
    epoch: int
    nodes: tuple[PlacedNode, ...]


class Refuse(msgspec.Struct, frozen=True):
    """Do not start. `reason` says what to do. `for_good`: this copy of the data can never start
    again. `removed`: this data was removed from its cluster with its node.
    """

    reason: str
    for_good: bool = False
    removed: bool = False


Decision = Start | Wait | WaitAsReplacement | Found | Join | Refuse


def decide(own: Starter, said: Said) -> Decision:
    """Decides the next action. `said` has the answers of the peers, without the node itself."""
    heard = [
        answer
        for name, answer in sorted(said.items())
        if isinstance(answer, Description) and not _stranger(name, answer)
    ]
    if own.member:
        old = next((answer for answer in said.values() if isinstance(answer, OldCopy)), None)
        if old is not None:
            return Refuse(old_copy(old.reason), for_good=True)
        return _start(own, heard)
    clusters = {answer.cluster_id for answer in heard} | {own.cluster_id}
    clusters.discard("")
    if len(clusters) > 1:
        return Refuse(_several_clusters(own, heard))
    lists = [answer for answer in heard if answer.nodes]
    if lists:
        return _by_list(own, max(lists, key=lambda answer: answer.epoch))
    if own.cluster_id:
        return WaitAsReplacement(
            own.cluster_id, f"no node of cluster {own.cluster_id} answers{_why_not(said)}"
        )
    if clusters:
        return Wait("the peers that answer also wait for the place of a lost node")
    return _found(own, said)


def _stranger(name: str, answer: Description) -> bool:
    """Whether another node answers at the peer's address."""
    return answer.node.name != name


def old_copy(reason: str) -> str:
    """The reason, with advice what to do."""
    return (
        f"{reason}; start with the newest data, or rebuild the node from the others, beginning "
        "with: querator node restore-from-copy"
    )


def _start(own: Starter, heard: list[Description]) -> Decision:
    name, cluster = own.node.name, own.cluster_id
    ours = [answer for answer in heard if answer.cluster_id == cluster and answer.nodes]
    others = [answer for answer in heard if answer.cluster_id not in ("", cluster)]
    if others and not ours:
        return Refuse(
            f"the data is of node {name} of cluster {cluster}, and {_names(others)} of cluster "
            f"{others[0].cluster_id}: name the right directory, or the right --peers"
        )
    if not ours:
        return Start()
    newest = max(ours, key=lambda answer: answer.epoch)
    start = Start(newest.epoch, newest.nodes)
    known = newest.find(name)
    if known is None:
        return _was_removed(own, newest) if newest.bars(own.node) else start
    if known.incarnation != own.node.incarnation:
        return Refuse(
            f"node {name} has been replaced: its cluster knows it with other data (incarnation "
            f"{known.incarnation}, not {own.node.incarnation}); to use this machine again, start "
            "with an empty directory"
        )
    if known.boots >= own.node.boots:
        return Refuse(
            old_copy(
                f"the data of node {name} is an old copy: its cluster has seen start "
                f"{known.boots} of it, and this is start {own.node.boots}",
            )
        )
    return start


def _by_list(own: Starter, newest: Description) -> Decision:
    name, cluster = own.node.name, newest.cluster_id
    known = newest.find(name)
    if known is None and newest.has_removed(own.node):
        return _was_removed(own, newest)
    if known is None and newest.bars(own.node):
        return Refuse(
            f"node {name} was removed from cluster {cluster}, and its name is barred: start under "
            f"another name, or first: querator node readmit {name}"
        )
    if known is None:
        names = ", ".join(node.name for node in newest.nodes)
        return Wait(f"cluster {cluster} ({names}) is about to accept node {name}")
    if known.incarnation != own.node.incarnation:
        return WaitAsReplacement(
            cluster,
            f"node {name} is known with other data (incarnation {known.incarnation}); if that is "
            f"lost: querator node replace {name}",
        )
    if any(founder.key == own.node.key for founder in newest.founders):
        replicas = founding(newest.founders)
        return Join(cluster, replicas, newest.founders, newest.epoch, newest.nodes)
    replicas = learning(newest.replicas, own.node.key)
    if not any(replica.node == own.node.key for replica in replicas):
        return WaitAsReplacement(cluster, "the cluster is preparing its place")
    return Join(cluster, replicas, (), newest.epoch, newest.nodes)


def _found(own: Starter, said: Said) -> Decision:
    founder = min(own.founds_with)
    others = [name for name in own.founds_with if name != own.node.name]
    missing = []
    for name in others:
        answer = said.get(name, "it is not among the peers")
        if not isinstance(answer, Description):
            missing.append(f"{name} ({answer if isinstance(answer, str) else answer.reason})")
        elif _stranger(name, answer):
            missing.append(f"{name} (node {answer.node.name} answers at its address)")
        elif sorted(answer.founds_with) != sorted(own.founds_with):
            with_ = ", ".join(sorted(answer.founds_with))
            missing.append(
                f"{name} (its settings would found a cluster of {with_}: make them the same)"
            )
    if own.node.name not in own.founds_with:
        return Wait(f"the cluster is to be founded by {', '.join(sorted(own.founds_with))}")
    if missing:
        reason = "the cluster is founded when all of its first nodes answer"
        return Wait(f"{reason}: {'; '.join(missing)}")
    if own.node.name != founder:
        return Wait(f"{founder} is about to found the cluster")
    found = [own.node]
    for name in others:
        answer = said[name]
        assert isinstance(answer, Description)
        found.append(answer.node)
    return Found(tuple(sorted(found, key=lambda node: node.name)))


def _was_removed(own: Starter, newest: Description) -> Refuse:
    name = own.node.name
    more = f" and under another name, or first: querator node readmit {name}"
    if any(one.key == own.node.key and one.state is NodeState.FORGOTTEN for one in newest.removed):
        more = "; its name may be used again, and this data may not"
    return Refuse(
        f"node {name} was removed from cluster {newest.cluster_id}: start with an empty directory"
        f"{more}",
        removed=True,
    )


def _several_clusters(own: Starter, heard: list[Description]) -> str:
    known = {answer.cluster_id: answer.node.name for answer in heard if answer.cluster_id}
    if own.cluster_id:
        known[own.cluster_id] = "this directory"
    parts = ", ".join(f"{name} of {cluster}" for cluster, name in sorted(known.items()))
    return (
        f"the nodes are of several clusters: {parts}; correct --peers, or empty the directory of "
        "the node that is wrong"
    )


def _why_not(said: Said) -> str:
    silent = [f"{name} ({why})" for name, why in sorted(said.items()) if isinstance(why, str)]
    return f": {'; '.join(silent)}" if silent else ""


def _names(heard: list[Description]) -> str:
    names = [answer.node.name for answer in heard]
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names)} are"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Description).decode


def encode_description(description: Description) -> bytes:
    return _encode(description)


def decode_description(data: bytes) -> Description | str:
    """The decoded description, or why it cannot be decoded."""
    try:
        version = msgspec.msgpack.decode(data, type=list)[0]
        if version != VERSION:
            return f"it describes itself in version {version}, and this node knows {VERSION}"
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
        return f"its description cannot be read: {error}"
