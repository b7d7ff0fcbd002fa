"""The checker of fair queues: each of its rules finds what breaks it, and nothing else."""

from collections.abc import Mapping

import pytest

from querator.model.commands import FlowSettings
from querator.model.queues import Fairness, GroupSettings, QueueKind
from tests.simulation.whole.fairness import FairnessChecker, Now, nodes, parent_of

GROUP = 5
Where = Mapping[int, str]


class Log:
    """Entries of one partition, with the paths of the items that are ready and leased."""

    def __init__(
        self, *groups: GroupSettings, fairness: Fairness = Fairness.TURNS, trusts_order: bool = True
    ) -> None:
        self.checker = FairnessChecker(trusts_order=trusts_order)
        self.settings = FlowSettings(QueueKind.FAIR, fairness, groups=groups)
        self.ready: dict[int, str] = {}
        self.leased: dict[int, str] = {}

    def produce(self, path: str, *seqs: int) -> None:
        self.ready |= dict.fromkeys(seqs, path)
        self._applied(())

    def lease(self, *seqs: int) -> None:
        for seq in seqs:
            self.leased[seq] = self.ready.pop(seq)
        self._applied(seqs)

    def complete(self, *seqs: int) -> None:
        for seq in seqs:
            del self.leased[seq]
        self._applied(())

    def release(self, *seqs: int) -> None:
        for seq in seqs:
            self.ready[seq] = self.leased.pop(seq)
        self._applied((), released=seqs)

    def configure(self, *groups: GroupSettings) -> None:
        self.settings = FlowSettings(QueueKind.FAIR, self.settings.fairness, groups=groups)
        self._applied(())

    def _applied(self, granted: tuple[int, ...], released: tuple[int, ...] = ()) -> None:
        now = Now(self.settings, dict(self.ready), dict(self.leased), released)
        self.checker.applied(GROUP, now, granted)

    @property
    def found(self) -> list[str]:
        return list(self.checker.judge())


def test_paths_as_nodes() -> None:
    assert list(nodes("c.x")) == ["c", "c.x", "c.x\0"]
    assert list(nodes("")) == ["\0"]
    assert [parent_of(node) for node in ("c", "c.x", "c\0", "\0")] == ["", "c", "c", ""]


# --- by turns ------------------------------------------------------------------------------


def test_turns_are_right() -> None:
    log = Log()
    log.produce("a", *range(1, 7))
    log.produce("b", *range(11, 17))
    for a, b in zip(range(1, 6), range(11, 16), strict=True):
        log.lease(a)
        log.lease(b)
    assert log.found == []
    assert log.checker.compared == 10


def test_a_group_that_is_passed_by_more_than_a_round_is_found() -> None:
    log = Log()
    log.produce("a", *range(1, 7))
    log.produce("b", 11)
    log.lease(1, 2)
    assert log.found == []
    log.lease(3)
    assert log.found == ["group 5: while b of weight 1 waited and got 0, a of weight 1 got 3"]


def test_a_group_gets_its_weight_and_not_more() -> None:
    log = Log(GroupSettings("a", 3))
    log.produce("a", *range(1, 20))
    log.produce("b", *range(21, 30))
    log.lease(1, 2, 3, 4)
    log.lease(21)
    log.lease(5, 6, 7)
    assert log.found == []
    log.lease(8)
    assert log.found == ["group 5: while b of weight 1 waited and got 1, a of weight 3 got 8"]


def test_a_group_that_gets_less_than_its_weight_is_found() -> None:
    log = Log(GroupSettings("a", 3))
    log.produce("a", *range(1, 20))
    log.produce("b", *range(21, 30))
    log.lease(21)
    assert log.found == []
    log.lease(22)
    assert len(log.found) == 1


def test_turns_within_a_group_are_its_own() -> None:
    log = Log()
    log.produce("c.x", *range(1, 9))
    log.produce("c.y", 11)
    log.produce("a", 21)
    log.lease(1)
    log.lease(21)
    assert log.found == []
    log.lease(2, 3)
    assert log.found == ["group 5: while c.y of weight 1 waited and got 0, c.x of weight 1 got 3"]


def test_the_own_items_of_a_group_take_turns_with_those_below_it() -> None:
    log = Log()
    log.produce("c", *range(1, 9))
    log.produce("c.y", 11)
    log.lease(1, 2)
    assert log.found == []
    log.lease(3)
    assert log.found == [
        "group 5: while c.y of weight 1 waited and got 0, items of c itself of weight 1 got 3"
    ]


def test_what_was_served_before_a_group_waited_does_not_count() -> None:
    log = Log()
    log.produce("a", *range(1, 9))
    log.lease(1, 2, 3, 4)
    log.produce("b", 11)
    log.lease(5, 6)
    assert log.found == []


def test_a_group_that_has_not_waited_in_between_begins_again() -> None:
    log = Log()
    log.produce("a", *range(1, 9))
    log.produce("b", 11)
    log.lease(1, 2)
    log.lease(11)
    log.lease(3)
    log.produce("b", 12)
    log.lease(4, 5)
    assert log.found == []


def test_released_items_come_again() -> None:
    log = Log()
    log.produce("a", *range(1, 9))
    log.produce("b", 11)
    log.lease(1, 2)
    log.release(1, 2)
    log.lease(1, 2)
    log.lease(3)
    assert log.found == []
    log.lease(4)
    assert log.found == ["group 5: while b of weight 1 waited and got 0, a of weight 1 got 4"]


def test_a_release_puts_a_group_back_by_a_round_at_most() -> None:
    log = Log(GroupSettings("a", 2))
    log.produce("a", *range(1, 20))
    log.lease(*range(1, 9))
    log.release(*range(1, 9))
    log.produce("b", 21)
    log.lease(1, 2, 3, 4, 5)
    assert log.found == []
    log.lease(6)
    assert log.found == ["group 5: while b of weight 1 waited and got 0, a of weight 2 got 6"]


def test_releases_do_not_count_when_nothing_has_waited_since() -> None:
    log = Log()
    log.produce("a", *range(1, 9))
    log.lease(1)
    log.release(1)
    log.lease(*range(1, 9))
    log.produce("a", *range(21, 29))
    log.produce("b", 11)
    log.lease(21, 22)
    assert log.found == []
    log.lease(23)
    assert len(log.found) == 1


def test_other_settings_begin_again() -> None:
    log = Log()
    log.produce("a", *range(1, 9))
    log.produce("b", 11)
    log.lease(1, 2)
    log.configure(GroupSettings("a", 2))
    log.lease(3, 4, 5, 6)
    assert log.found == []
    log.lease(7)
    assert len(log.found) == 1


def test_nothing_is_claimed_of_turns_where_leases_pass_over_blocks() -> None:
    log = Log(trusts_order=False)
    log.produce("a", *range(1, 9))
    log.produce("b", 11)
    log.lease(1, 2, 3, 4)
    assert log.found == []


# --- by items in flight --------------------------------------------------------------------


def test_the_group_with_the_fewest_leased_items_is_first() -> None:
    log = Log(fairness=Fairness.IN_FLIGHT)
    log.produce("a", *range(1, 9))
    log.produce("b", *range(11, 19))
    log.lease(1)
    log.lease(11)
    log.lease(2, 12)
    assert log.found == []
    log.lease(3)
    log.lease(4)
    assert log.found == [
        "group 5: a of weight 1 got an item with 3 leased, and b of weight 1 waited with 2"
    ]


def test_completed_items_are_not_in_flight() -> None:
    log = Log(fairness=Fairness.IN_FLIGHT)
    log.produce("a", *range(1, 9))
    log.lease(1, 2)
    log.produce("b", *range(11, 19))
    log.complete(1, 2)
    log.lease(3)
    assert log.found == []


@pytest.mark.parametrize(("leases", "wrong"), [((1, 2, 3, 4), False), ((1, 2, 3, 4, 5), True)])
def test_items_in_flight_count_by_weight(leases: tuple[int, ...], wrong: bool) -> None:
    log = Log(GroupSettings("a", 2), fairness=Fairness.IN_FLIGHT)
    log.produce("a", *range(1, 9))
    log.produce("b", *range(11, 19))
    log.lease(11)
    log.lease(*leases)
    assert bool(log.found) is wrong


# --- limits --------------------------------------------------------------------------------


@pytest.mark.parametrize("fairness", list(Fairness))
def test_a_lease_beyond_a_limit_is_found(fairness: Fairness) -> None:
    log = Log(GroupSettings("d", 1, 2), fairness=fairness)
    log.produce("d", 1, 2)
    log.produce("d.e", 3, 4)
    log.lease(1, 3)
    assert log.found == []
    log.lease(2)
    assert log.found == ["group 5: 3 items of d are leased, and 2 may be"]


def test_a_group_at_its_limit_may_wait() -> None:
    log = Log(GroupSettings("d", 1, 1))
    log.produce("d", 1, 2)
    log.produce("a", *range(11, 19))
    log.lease(1)
    log.lease(11, 12, 13, 14)
    assert log.found == []


def test_a_lease_of_a_paused_group_is_found() -> None:
    log = Log(GroupSettings("d", 1, 2))
    log.produce("d", 1)
    log.produce("d.e", 2)
    log.produce("a", 11)
    log.configure(GroupSettings("d", 1, 2, paused=True))
    log.lease(11)
    assert log.found == []
    log.lease(2)
    assert log.found == ["group 5: items of d are leased in a pause"]


def test_a_lower_limit_counts_from_the_next_lease_on() -> None:
    log = Log(GroupSettings("d", 1, 3))
    log.produce("d", 1, 2, 3, 4)
    log.lease(1, 2, 3)
    log.produce("a", 11)
    log.configure(GroupSettings("d", 1, 1))
    log.lease(11)
    assert log.found == []
    log.lease(4)
    assert log.found == ["group 5: 4 items of d are leased, and 1 may be"]
