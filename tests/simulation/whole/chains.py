"""What must be true of follow-ups, by the names of the items alone.

A call settles items (its *parents*) and produces follow-ups, which are named after the call:

    the call is not executed            none of its follow-ups is ever seen
    the call is executed                each of its follow-ups is there, or was completed
    its outcome is not known            all of them, or none
    an item is completed by one call    no other complete of it has follow-ups that are seen
    an item is gone                     a complete is the reason, and its follow-ups are seen

The ledger has the fate of each follow-up: whether it is there twice, or lost. Follow-ups for a
queue that comes and goes may go with it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.whole.ledger import Ledger


@dataclass
class _Call:
    parents: tuple[str, ...]
    follow_ups: tuple[str, ...]
    completes: bool
    executed: bool | None = None
    """None: not known."""


class Chains:
    def __init__(self, ledger: Ledger) -> None:
        self.compared = 0
        """Number of calls that were certainly executed."""
        self._ledger = ledger
        self._calls: dict[str, _Call] = {}
        self._otherwise: set[str] = set()
        """Items of which a complete without follow-ups was tried."""
        self._passing: set[str] = set()
        """Follow-ups for a queue that comes and goes."""
        self._seen: set[str] = set()
        self._found: list[str] = []

    def settling(
        self,
        call: str,
        parents: Iterable[str],
        follow_ups: Sequence[str],
        *,
        completes: bool,
        passing: Iterable[str] = (),
    ) -> None:
        """The call is about to be made. `passing`: those of its follow-ups that may be deleted."""
        self._calls[call] = _Call(tuple(parents), tuple(follow_ups), completes)
        self._passing.update(passing)
        self._ledger.dropped.update(dict.fromkeys(passing))
        self._ledger.produced(follow_ups, known=False)

    def settled(self, call: str, *, items: int) -> None:
        """The answer says that `items` of the named items are settled, by this attempt or an
        earlier one of the same call; 0: their lease is lost, or the call is refused.
        """
        made = self._calls[call]
        made.executed = items > 0
        if items not in (0, len(made.parents)):
            self._found.append(f"{call}: {items} of {len(made.parents)} items are settled")
        if items:
            self.compared += 1
            self._ledger.produced(made.follow_ups, known=True)

    def completes_otherwise(self, references: Iterable[str]) -> None:
        """Completes of these items without follow-ups are about to be made."""
        self._otherwise.update(references)

    def delivered(self, references: Iterable[str]) -> None:
        self._seen.update(references)

    def judge(self, present: Counter[str]) -> Iterator[str]:
        """`present`: how often each item is in any queue at the end."""
        yield from self._found
        seen = self._seen | present.keys()
        completes: dict[str, list[str]] = {}
        for name, call in self._calls.items():
            yield from self._judge_call(name, call, seen)
            for parent in call.parents if call.completes else ():
                completes.setdefault(parent, []).append(name)
        for parent, names in completes.items():
            yield from self._judge_parent(parent, names, seen, there=bool(present[parent]))

    def _judge_call(self, name: str, call: _Call, seen: set[str]) -> Iterator[str]:
        there = [one for one in call.follow_ups if one in seen]
        if there and call.executed is False:
            yield f"{name}: was not executed, and its follow-up {there[0]} is there"
        missing = [one for one in call.follow_ups if one not in seen and one not in self._passing]
        if missing and (there or call.executed):
            yield f"{name}: its follow-up {missing[0]} never came"

    def _judge_parent(
        self, parent: str, names: list[str], seen: set[str], *, there: bool
    ) -> Iterator[str]:
        executed = [name for name in names if self._was_executed(name, seen)]
        if len(executed) > 1:
            yield f"{parent}: {executed} have all completed it"
        if there and executed:
            yield f"{parent}: is there, and the follow-ups of {executed[0]} are there too"
        certain = parent in self._ledger.completed_items
        if certain and not any(self._calls[name].executed for name in names) and executed:
            yield f"{parent}: completed without follow-ups, and those of {executed[0]} are there"
        only_passing = any(
            self._passing.issuperset(self._calls[name].follow_ups)
            for name in names
            if self._calls[name].executed is None
        )
        if not (there or executed or certain or only_passing or parent in self._otherwise):
            if parent not in self._ledger.dropped and parent in self._ledger.acknowledged:
                yield f"{parent}: is gone, and none of {names} has follow-ups"

    def _was_executed(self, name: str, seen: set[str]) -> bool:
        call = self._calls[name]
        return bool(call.executed) or any(one in seen for one in call.follow_ups)
