"""Report of `querator verify` on a placement map that contradicts itself."""

import msgspec

from querator.cli.verify import Kind, Problem, _Scan, actions_for
from querator.model.ids import PLACEMENT_GROUP
from querator.model.queues import QueueSettings
from querator.placement.map.commands import CreateQueue
from querator.storage.tables import PLACEMENT
from tests.unit.placement.conftest import Group


def test_a_queue_with_a_group_that_was_never_given_out():
    group = Group()
    group.propose(CreateQueue("n", "q", QueueSettings(partitions=2)))
    with group.environment.snapshot() as snapshot:
        assert not [one for one in _Scan(snapshot).problems if one.place == "placement"]
    txn = group.environment.begin()
    head = msgspec.msgpack.decode(PLACEMENT.get(txn, PLACEMENT_GROUP) or b"")
    head[2] -= 1
    PLACEMENT.put(txn, PLACEMENT_GROUP, value=msgspec.msgpack.encode(head))
    txn.commit(sync=True)
    with group.environment.snapshot() as snapshot:
        problems = [one for one in _Scan(snapshot).problems if one.place == "placement"]
    assert [one.sentence for one in problems] == ["q has group 2, which was never assigned"]
    [(kind, action)] = actions_for(problems, "node-1").items()
    assert kind is Kind.PLACEMENT
    assert "querator node replace node-1" in action


def test_every_kind_of_problem_has_an_action():
    problems = [Problem("here", "it is wrong", kind) for kind in (*Kind, Kind.LOG)]
    actions = actions_for(problems, "")
    assert list(actions) == list(Kind)
    assert all("NAME" in actions[kind] for kind in (Kind.FILE, Kind.LOG, Kind.STATE))
