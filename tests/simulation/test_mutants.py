"""The simulator finds bugs: some seeds or a schedule find each way of breaking the core."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from querator.model.commands import Produce
from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.nodes import Replica
from querator.raft.configuration import AddLearner, Change, Promote
from querator.raft.requests import Call, Reconfigure, Transfer
from tests.simulation import mutants
from tests.simulation.network import Nature
from tests.simulation.node import SimulatedNode, Ticket
from tests.simulation.profile import Profile, draw
from tests.simulation.timeline import MS, SECOND
from tests.simulation.world import World, simulate

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

QUIET = replace(
    draw(1, random.Random(1)),
    nodes=3, replicas=3, groups=1, clients=2, pause_us=60 * MS, item_bytes=10, delays=False,
    faulty_us=15 * SECOND, fault_every_us=1_000 * MS, faults=(), nature=Nature(), sync_us=300,
    offset_ms=0, drift_ppm=0, log_bytes_kept=1 << 26, transfers=False, members=False, loss=0.0,
    pipelines=0, readers=False, doomed=False,
)  # fmt: skip
CRASHES = replace(QUIET, faults=("crash at sync", "power loss"))
ALONE = replace(CRASHES, nodes=1, replicas=1)
LINKS = replace(QUIET, faults=("part", "cut", "slow link"), nature=Nature(jitter_us=20_000))
ELECTIONS = replace(LINKS, nodes=5, replicas=5, faults=("crash", "part"), fault_every_us=400 * MS)
AWAY = replace(
    QUIET, faults=("part", "away"), nature=Nature(notice_us=MS), clients=6,
    fault_every_us=3_500 * MS,
)  # fmt: skip

BATCHES = replace(QUIET, pipelines=2, clients=1, faults=("crash",), loss=0.1)
JUMPS = replace(QUIET, faults=("jump clock", "crash"), fault_every_us=1_000 * MS)
READERS = replace(QUIET, readers=True, clients=1, faults=("crash",), loss=0.1)
DOOMED = replace(QUIET, doomed=True, clients=1, faults=("slow link",), fault_every_us=500 * MS)

G = GroupId(1)


@pytest.mark.parametrize(
    ("mutant", "profile", "words"),
    [
        (mutants.acknowledges_before_the_sync, CRASHES, "on disk"),
        (mutants.answers_before_the_sync, ALONE, ""),
        (mutants.counts_itself_before_the_sync, CRASHES, "voters only"),
        (mutants.commits_what_nobody_has, QUIET, "voters only"),
        (mutants.cuts_the_log_without_conflict, LINKS, ""),
        (mutants.commits_what_is_not_verified, LINKS, ""),
        (mutants.forgets_its_votes, CRASHES, ""),
        (mutants.votes_for_everybody, LINKS, "voted for"),
        (mutants.counts_refusals_as_votes, ELECTIONS, "two leaders"),
        (mutants.takes_the_office_too_early, LINKS, "believes"),
        (mutants.reads_without_asking, AWAY, "linearizab"),
        (mutants.does_not_sync, CRASHES, ""),
        (mutants.believes_any_clock, JUMPS, "ahead of the right time"),
        (mutants.forgets_batches, BATCHES, "batch"),
        (mutants.forgets_what_is_finished, BATCHES, "visible 2 times"),
        (mutants.fences_nobody, READERS, "goes on"),
        (mutants.gives_names_twice, READERS, "other items before"),
        (mutants.loses_what_is_released, READERS, "lost"),
        (mutants.gives_back_what_is_given_up, READERS, "more than once"),
        (mutants.keeps_what_is_removed, DOOMED, "was removed, and lives"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-",
)
def test_a_broken_core_is_found(mutant: Callable[[], Any], profile: Profile, words: str):
    with mutant():
        for seed in range(1, 60):
            found = simulate(seed, profile=profile).violations
            if any(words in text for text in found):
                return
    pytest.fail("nothing was found")


@pytest.mark.parametrize(
    "profile", [QUIET, CRASHES, ALONE, LINKS, ELECTIONS, AWAY, JUMPS, BATCHES, READERS, DOOMED]
)
def test_a_sound_core_is_not(profile: Profile):
    for seed in range(1, 4):
        assert simulate(seed, profile=profile).violations == []


def test_a_history_that_is_not_decided_is_no_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.simulation.world.SEARCH_STEPS", 1)
    found = simulate(1, profile=QUIET).violations
    assert [text for text in found if "linearizability: undecided" in text], found


def propose(node: SimulatedNode, number: int) -> None:
    payload = b"item %d\n" % number
    command = Produce(len(payload).to_bytes(4, "little"))
    ticket = Ticket("produce", lambda _, __: None)
    node.request(Call(G, Proposal(command, payload), ticket.future, 256))


def an_old_ack_comes_late() -> list[str]:
    """A follower's acknowledgement is very late: meanwhile its leader was deposed, had its entries
    replaced, and leads again.
    """
    nature = Nature(jitter_us=0, keepalive_us=60 * SECOND)
    world = World(1, profile=replace(QUIET, nodes=5, replicas=5, nature=nature))
    world._begin()
    network = world.network
    first, status = leading(world)
    slow, *rest = [node for node in world.all_nodes() if node is not first]
    network.slow(slow.key, first.key, extra_us=3_200 * MS)
    for node in rest:
        network.block(first.key, node.key)
    before = status.log_last
    for number in range(5):
        propose(first, number)
        world._run_for(5 * MS)
    assert slow.turns is not None
    assert slow.turns._groups[G].journal.last_index == before + 5
    network.block(first.key, slow.key)
    for node in rest:
        network.block(slow.key, node.key)
        network.block(node.key, slow.key)
    assert world._until(lambda: leading(world)[0] in rest, within_us=4 * SECOND)
    for node in rest:
        network.unblock(first.key, node.key)
    leader, status = leading(world)
    assert world._until(lambda: has(first, leading(world)[1].log_last), within_us=3 * SECOND)
    ticket = Ticket("transfer", lambda _, __: None)
    leader.request(Transfer(G, first.key, ticket.future))
    assert world._until(lambda: leading(world)[0] is first, within_us=SECOND)
    # One real follower remains. The old acknowledgement names an index that is reached again.
    for node in rest[1:]:
        network.block(first.key, node.key)
        network.block(node.key, first.key)
    for number in range(10, 13):
        propose(first, number)
    world._run_for(4 * SECOND)
    return world.checks.violations


def led_by(world: World, nodes: Sequence[SimulatedNode]) -> bool:
    found = world.leader(G)
    return found is not None and found[0] in nodes


def leading(world: World) -> tuple[SimulatedNode, Any]:
    found = world.leader(G)
    assert found is not None
    return found


def has(node: SimulatedNode, last: int) -> bool:
    assert node.turns is not None
    status = node.turns.status(G)
    return status is not None and status.log_last == last


def test_an_ack_of_an_earlier_leadership_is_not_counted():
    assert an_old_ack_comes_late() == []
    with mutants.ignores_the_term_of_replies():
        found = an_old_ack_comes_late()
    assert any("of 5 voters only 2 have on disk" in text for text in found), found


def a_change_of_the_replicas_is_taken_back() -> list[str]:
    """A leader that is cut off adds a replica on a fourth node, and finds another leader when it is
    back.
    """
    world = World(1, profile=replace(QUIET, nodes=4))
    world._begin()
    first, status = leading(world)
    spare = next(node for node in world.all_nodes() if G not in node.first_replicas)
    others = [node for node in world.all_nodes() if node not in (first, spare)]
    for node in others:
        world.network.block(first.key, node.key)
        world.network.block(node.key, first.key)
    added = Ticket("change", lambda _, __: None)
    first.request(Reconfigure(G, AddLearner(4, spare.key), added.future))
    assert world._until(lambda: has(first, status.log_last + 1), within_us=SECOND)
    assert world._until(lambda: led_by(world, others), within_us=5 * SECOND)
    for node in others:
        world.network.unblock(first.key, node.key)
        world.network.unblock(node.key, first.key)
    world._until(lambda: follows(first, leading(world)), within_us=5 * SECOND)
    return world.checks.violations


def follows(node: SimulatedNode, leader: tuple[SimulatedNode, Any]) -> bool:
    assert node.turns is not None
    status = node.turns.status(G)
    return status is not None and status.commit_index == leader[1].commit_index


def a_voter_is_added() -> list[str]:
    """A fourth node learns, and then votes."""
    world = World(1, profile=replace(QUIET, nodes=4))
    world._begin()
    first, _ = leading(world)
    spare = next(node for node in world.all_nodes() if G not in node.first_replicas)
    spare.hold(G, (Replica(4, spare.key, voter=False),))
    for change in (AddLearner(4, spare.key), Promote(4)):
        done: list[bool] = []

        def attempt(change: Change = change, done: list[bool] = done) -> bool:
            ticket = Ticket("change", lambda _, error: done.append(error is None))
            first.request(Reconfigure(G, change, ticket.future))
            return any(done)

        world._until(attempt, within_us=5 * SECOND)
    return world.checks.violations


@pytest.mark.parametrize(
    ("mutant", "schedule", "words"),
    [
        (
            mutants.keeps_a_configuration_that_is_taken_back,
            a_change_of_the_replicas_is_taken_back,
            "in force is the configuration of entry",
        ),
        (mutants.counts_by_the_configuration_before, a_voter_is_added, "as voters, and not those"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-",
)
def test_the_configuration_in_force_is_the_last_one_in_the_log(
    mutant: Callable[[], Any], schedule: Callable[[], list[str]], words: str
):
    assert schedule() == []
    with mutant():
        found = schedule()
    assert any(words in text for text in found), found
