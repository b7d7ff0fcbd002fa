"""The results of items, as the programs that return them and those that wait for them know them.

    all answers for an item are the same
    a completed item has the data of a complete that may have been executed; of one that is known to
    have been executed, that of this one
    no item whose complete is known to have been executed is answered as dead
    a dead item has an error that a consumer has sent, or none
    no asked item is answered as removed, or as one without a result: nothing removes these items,
    and the results are kept longer than the run

All is judged at the end, when the outcomes of completes are known. The places of items are those of
`tries`.
"""

from collections.abc import Iterable, Iterator

from querator.model.ids import parse_lease_id
from querator.model.result_calls import EndedItem, ItemEnd
from tests.simulation.whole.tries import Place


class Return:
    """A complete of an item with data. `executed` None: it is not known."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.executed: bool | None = None


class Answers:
    def __init__(self) -> None:
        self._asking: set[str] = set()
        self.asked: dict[Place, tuple[int, int]] = {}
        """Places of stored items that have asked, with their ids."""
        self._returns: dict[Place, list[Return]] = {}
        self._errors: dict[Place, set[str]] = {}
        self._answers: dict[Place, list[EndedItem]] = {}
        self.compared = 0
        """Completed items whose data is known for certain."""

    # --- what clients know -------------------------------------------------------------------

    def asking(self, references: Iterable[str]) -> None:
        """Items are about to be produced that ask for their results."""
        self._asking.update(references)

    def stored(self, group: int, partition: int, seq: int, reference: str) -> None:
        if reference in self._asking:
            self.asked[Place(group, seq)] = (partition, seq)

    def returning(self, lease_id: str, seq: int, data: bytes) -> Return:
        """A complete is about to be sent."""
        group, _, _ = parse_lease_id(lease_id, field="lease_id")
        sent = Return(data)
        self._returns.setdefault(Place(group, seq), []).append(sent)
        return sent

    def failing(self, lease_id: str, seqs: Iterable[int], error: str) -> None:
        """A retry with this error is about to be sent."""
        group, _, _ = parse_lease_id(lease_id, field="lease_id")
        for seq in seqs:
            self._errors.setdefault(Place(group, seq), {""}).add(error)

    def answered(self, place: Place, item: EndedItem) -> None:
        self._answers.setdefault(place, []).append(item)

    def open(self) -> list[Place]:
        """Items without an answer."""
        return [place for place in self.asked if place not in self._answers]

    # --- what follows at the end -------------------------------------------------------------

    def judge(self) -> Iterator[str]:
        for place, answers in self._answers.items():
            first = answers[0]
            if any(one != first for one in answers):
                yield f"item {place} has several answers: {sorted(set(map(str, answers)))}"
            yield from self._judge(place, first)

    def _judge(self, place: Place, answer: EndedItem) -> Iterator[str]:
        returns = self._returns.get(place, [])
        certain = {one.data for one in returns if one.executed}
        if answer.outcome == ItemEnd.COMPLETED:
            possible = certain or {b""} | {one.data for one in returns if one.executed is not False}
            self.compared += bool(certain)
            if answer.data not in possible:
                yield f"item {place} is answered {answer.data!r}, not one of {sorted(possible)}"
        elif answer.outcome == ItemEnd.DEAD:
            if certain:
                yield f"item {place} was completed, and is answered as dead"
            if answer.error not in self._errors.get(place, {""}):
                yield f"item {place} is dead by {answer.error!r}, which no consumer has said"
        else:
            yield f"item {place} is answered {ItemEnd(answer.outcome).name}: {answer.error}"
