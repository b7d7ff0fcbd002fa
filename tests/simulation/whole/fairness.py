"""How the groups of a fair queue share its leases, as the log of each partition shows it.

    by turns: while a group waits, another one gets at most its weight for each weight of the group
    by items in flight: no group gets an item while another one waits that has leased its weight
        fewer times
    a limit of leased items is never exceeded by a lease

The rules hold among the groups with the same parent, at each level; the items of a group itself
count as one more group below it, of weight 1. Start-time fair queueing (Goyal, Vin and Cheng 1996)
bounds the first rule: two groups that wait differ by at most one item of each, by their weights.
Items that are released were not served. Their group is behind until it gets them again, but not by
more than a round, and nor is a group that begins to wait meanwhile.

The checker sees the state after each entry, as the first replica applies it, and which items the
leases of the entry took. It knows the group of an item from its payload. A group waits during an
entry if one of its items is ready before and after it. An entry may have several commands, so the
numbers of leased items in between are not known, but bounded: at least the items that are leased
before and after, at most those before and all that were granted.

Nothing is claimed

    for a group that waits below a limit
    of the order where payloads are damaged, because leases pass over damaged blocks
    by turns, of the time before the settings change
    over partitions
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from querator.model.commands import FlowSettings
from querator.model.queues import Fairness

OWN = "\0"
"""After the path of a group: its own items, among the groups below it."""


class Now(NamedTuple):
    """A partition after an entry: the paths of its ready and leased items by sequence, and which of
    them the entry released.
    """

    settings: FlowSettings
    ready: Mapping[int, str]
    leased: Mapping[int, str]
    released: Collection[int] = ()


class _Partition:
    def __init__(self, now: Now) -> None:
        self.now = now
        self.served: Counter[str] = Counter()
        self.released: Counter[str] = Counter()
        self.since: dict[str, tuple[Counter[str], Counter[str]]] = {}
        """What was served and released when a group began to wait."""
        self.behind: dict[str, float] = {}
        """By how much of a round releases may have put groups behind, by their parent. It lasts
        while any group below it waits.
        """
        self._least: dict[str, int] = {}

    def release(self, settings: FlowSettings, paths: Iterable[str]) -> None:
        released = _by_node(paths)
        self.released += released
        for node, count in released.items():
            parent = parent_of(node)
            behind = self.behind.get(parent, 0.0) + count / weight_of(settings, node)
            self.behind[parent] = min(1.0, behind)

    def least(self, node: str, weight: int) -> int:
        """The least weight that the group has had while others waited: tags that it got by this
        weight may still be ahead.
        """
        self._least[node] = least = min(weight, self._least.get(node, weight))
        return least


class FairnessChecker:
    def __init__(self, *, trusts_order: bool = True) -> None:
        self.trusts_order = trusts_order
        self.compared = 0
        """Entries with grants while another group was waiting."""
        self._partitions: dict[int, _Partition] = {}
        self._found: list[str] = []

    def applied(self, group: int, now: Now, granted: Iterable[int]) -> None:
        """The first replica has applied an entry, whose leases took the items `granted`."""
        there = self._partitions.get(group)
        if there is None:
            self._partitions[group] = _Partition(now)
            return
        before = there.now
        if now.settings != before.settings:
            there.since.clear()
        all_paths = {**now.ready, **now.leased}
        there.release(now.settings, (all_paths[seq] for seq in now.released))
        took = {seq: now.leased.get(seq, before.ready.get(seq)) for seq in granted}
        paths = {seq: path for seq, path in took.items() if path is not None}
        if paths:
            self._judge_limits(group, before, now, paths)
            if self.trusts_order and before.settings == now.settings:
                self._judge_order(group, there, now, paths)
        waits = {parent_of(node) for path in now.ready.values() for node in nodes(path)}
        there.behind = {node: one for node, one in there.behind.items() if node in waits}
        there.now = now

    # --- limits ------------------------------------------------------------------------------

    def _judge_limits(self, group: int, before: Now, now: Now, took: Mapping[int, str]) -> None:
        leased = _by_node(now.leased.values())
        for node in _by_node(took.values()):
            limits = [limit_of(each.settings, node) for each in (before, now)]
            if all(is_paused(each.settings, node) for each in (before, now)):
                self._found.append(f"group {group}: items of {_name(node)} are leased in a pause")
            elif all(limits) and leased[node] > max(limits):
                self._found.append(
                    f"group {group}: {leased[node]} items of {_name(node)} are leased, and "
                    f"{max(limits)} may be"
                )

    # --- order -------------------------------------------------------------------------------

    def _judge_order(
        self, group: int, there: _Partition, now: Now, took: Mapping[int, str]
    ) -> None:
        before, settings = there.now, now.settings
        waiting = {
            node
            for seq, path in before.ready.items()
            if seq in now.ready and seq not in took and not _is_limited(settings, path)
            for node in nodes(path)
        }
        granted = _by_node(took.values())
        for node in list(there.since):
            if node not in waiting:
                del there.since[node]
        for node in waiting:
            there.since.setdefault(node, (there.served.copy(), there.released.copy()))
        there.served += granted
        self.compared += any(
            parent_of(node) == parent_of(other) and node != other
            for node in waiting
            for other in granted
        )
        if settings.fairness is Fairness.TURNS:
            self._judge_turns(group, there, settings, granted)
        else:
            self._judge_loads(group, before, now, took, waiting)

    def _judge_turns(
        self, group: int, there: _Partition, settings: FlowSettings, granted: Counter[str]
    ) -> None:
        for node, (served, released) in there.since.items():
            weight = weight_of(settings, node)
            got = there.served[node] - served[node]
            behind = there.behind.get(parent_of(node), 0.0)
            for other in granted:
                if other == node or parent_of(other) != parent_of(node):
                    continue
                others = weight_of(settings, other)
                kept = there.served[other] - served[other]
                kept -= there.released[other] - released[other]
                most = 1 / there.least(node, weight) + 1 / there.least(other, others) + behind
                if kept / others - got / weight > most + 1e-9:
                    self._found.append(
                        f"group {group}: while {_name(node)} of weight {weight} waited and got "
                        f"{got}, {_name(other)} of weight {others} got {kept}"
                    )

    def _judge_loads(
        self, group: int, before: Now, now: Now, took: Mapping[int, str], waiting: set[str]
    ) -> None:
        settings, granted = now.settings, _by_node(took.values())
        stayed = _by_node(
            path for seq, path in before.leased.items() if seq in now.leased and seq not in took
        )
        leased = _by_node(before.leased.values())
        for node in waiting:
            most = leased[node] + granted[node]
            weight = weight_of(settings, node)
            for other in granted:
                if other == node or parent_of(other) != parent_of(node):
                    continue
                least, others = stayed[other] + granted[other] - 1, weight_of(settings, other)
                if least // others > most // weight:
                    self._found.append(
                        f"group {group}: {_name(other)} of weight {others} got an item with "
                        f"{least} leased, and {_name(node)} of weight {weight} waited with {most}"
                    )

    def judge(self) -> Iterator[str]:
        """What is wrong."""
        yield from self._found


def nodes(path: str) -> Iterator[str]:
    """The groups that an item of a path counts for, the highest first, and its own place."""
    parts = path.split(".") if path else []
    for depth in range(len(parts)):
        yield ".".join(parts[: depth + 1])
    yield path + OWN


def parent_of(node: str) -> str:
    if node.endswith(OWN):
        return node[: -len(OWN)]
    return node.rpartition(".")[0]


def weight_of(settings: FlowSettings, node: str) -> int:
    return next((one.weight for one in settings.groups if one.path == node), 1)


def limit_of(settings: FlowSettings, node: str) -> int:
    """How many items of a group may be leased; 0: any number."""
    if node.endswith(OWN):
        return 0
    own = next((one.leased_max for one in settings.groups if one.path == node), 0)
    return own or settings.group_leased_max


def is_paused(settings: FlowSettings, node: str) -> bool:
    return any(one.paused and one.path == node for one in settings.groups)


def _is_limited(settings: FlowSettings, path: str) -> bool:
    return any(limit_of(settings, node) for node in nodes(path))


def _by_node(paths: Iterable[str]) -> Counter[str]:
    return Counter(node for path in paths for node in nodes(path))


def _name(node: str) -> str:
    return f"items of {node[:-1] or 'no group'} itself" if node.endswith(OWN) else node
