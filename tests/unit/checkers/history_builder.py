"""Handwritten histories, one operation per line, with given instants and short ids."""

from tests.checkers.history import (
    Complete,
    Count,
    Counted,
    DeadItem,
    Extend,
    Extended,
    Grant,
    History,
    Lease,
    Leased,
    Look,
    Looked,
    Named,
    Operation,
    Outcome,
    Produce,
    Produced,
    ProducedPart,
    QueueRules,
    Request,
    Result,
    Retry,
    Settled,
    Unknown,
    ranges,
)
from tests.checkers.linearizability import linearizable
from tests.checkers.lives import Lives
from tests.checkers.report import broken_rules
from tests.checkers.search import Verdict

QUEUE = "work"
Seqs = list[int]


class HistoryBuilder:
    """The item with sequence n has the reference `in`. Leases last 10 s, and clocks are exact."""

    def __init__(self, *, max_attempts: int = 0) -> None:
        self.history = History(
            queues={QUEUE: QueueRules(1, 10.0, max_attempts, "dead")}, clock_uncertainty_s=0.0
        )

    def add(
        self, begin: float, end: float, request: Request, outcome: Result, client: str = "c"
    ) -> None:
        self.history.operations.append(
            Operation(
                client=client,
                queue=QUEUE,
                begin_s=begin,
                end_s=end,
                request=request,
                outcome=outcome,
            )
        )

    def produce(
        self,
        begin: float,
        end: float,
        first: int,
        count: int = 1,
        *,
        known: bool = True,
        identity: tuple[str, int] = ("", 0),
        ordered: bool = False,
        repeated: bool = False,
        references: tuple[str, ...] = (),
    ) -> None:
        names = references or tuple(f"i{n}" for n in range(first, first + count))
        part = ProducedPart(0, first, count, (), repeated)
        outcome = Produced((part,)) if known else Unknown()
        self.add(begin, end, Produce(names, *identity, ordered), outcome)

    def lease(
        self,
        begin: float,
        end: float,
        lease: str,
        seqs: Seqs,
        attempt: int = 1,
        *,
        repeated: bool = False,
        request_id: str = "",
        references: tuple[str, ...] = (),
        unseen: int = 0,
    ) -> None:
        names = references or tuple(f"i{seq}" for seq in seqs)
        items = tuple(zip(seqs, names, strict=True))
        grants = (Grant(lease, 0, attempt, items, repeated),) if seqs else ()
        self.add(begin, end, Lease(100, request_id), Leased(grants, unseen))

    def lost_lease(self, begin: float, end: float, most: int = 100, request_id: str = "") -> None:
        self.add(begin, end, Lease(most, request_id), Unknown())

    def complete(
        self,
        begin: float,
        end: float,
        lease: str,
        done: Seqs | None = None,
        *,
        repeated: Seqs | None = None,
        lost: Seqs | None = None,
        unknown: Seqs | None = None,
        again: bool = False,
    ) -> None:
        self._settle(
            begin=begin,
            end=end,
            request=Complete,
            lease=lease,
            done=done,
            repeated=repeated,
            lost=lost,
            unknown=unknown,
            again=again,
        )

    def retry(
        self,
        begin: float,
        end: float,
        lease: str,
        done: Seqs | None = None,
        *,
        repeated: Seqs | None = None,
        lost: Seqs | None = None,
        unknown: Seqs | None = None,
        dead: bool = False,
        count_attempt: bool = True,
        delay_s: float = 0.0,
    ) -> None:
        def request(leases: tuple[Named, ...]) -> Retry:
            return Retry(leases, delay_s, dead, count_attempt)

        self._settle(
            begin=begin,
            end=end,
            request=request,
            lease=lease,
            done=done,
            repeated=repeated,
            lost=lost,
            unknown=unknown,
        )

    def _settle(
        self,
        begin: float,
        end: float,
        request: object,
        lease: str,
        done: Seqs | None,
        repeated: Seqs | None,
        lost: Seqs | None,
        unknown: Seqs | None,
        again: bool = False,
    ) -> None:
        runs = [ranges(seqs or []) for seqs in (done, repeated, lost)]
        named = ranges([*(done or []), *(repeated or []), *(lost or []), *(unknown or [])])
        outcome = Unknown() if unknown is not None else Settled((Outcome(lease, *runs),), again)
        asked = request((Named(lease, named),))  # type: ignore[operator]
        self.add(begin, end, asked, outcome)

    def extend(self, begin: float, end: float, lease: str, live: bool | None = True) -> None:
        """`live` None: the outcome is unknown."""
        outcome = Unknown() if live is None else Extended(((lease, live),))
        self.add(begin, end, Extend((lease,)), outcome)

    def look(self, begin: float, present: Seqs, dead: tuple[DeadItem, ...] = ()) -> None:
        there = tuple((0, seq, f"i{seq}") for seq in present)
        self.add(begin, begin + 0.1, Look(), Looked(there, dead))

    def count(self, begin: float, end: float, produced: int, completed: int) -> None:
        self.add(begin, end, Count(), Counted(((0, produced, completed),)))

    @property
    def broken(self) -> set[str]:
        """Names of the broken rules."""
        return {text.split(":")[0] for text in broken_rules(Lives(self.history))}

    @property
    def linearizable(self) -> bool:
        verdicts = [verdict.verdict for verdict in linearizable(Lives(self.history))]
        assert Verdict.UNDECIDED not in verdicts
        return all(verdict is Verdict.LINEARIZABLE for verdict in verdicts)
