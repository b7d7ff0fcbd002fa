"""The simulation of whole nodes finds bugs: some seeds find each way of breaking the service."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.network import Nature
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole import mutants
from tests.simulation.whole.profile import WholeProfile, draw
from tests.simulation.whole.world import simulate_whole

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

QUIET = replace(
    draw(1, random.Random(1)),
    nodes=3, queues=1, partitions=2, programs=1, pause_us=300 * MS, item_bytes=10, delays=False,
    faulty_us=3 * SECOND, fault_every_us=1_000 * MS, faults=(), nature=Nature(), sync_us=300,
    offset_ms=0, drift_ppm=0, log_bytes_kept=1 << 26, loss=0.0, winding=False, dead_room=0,
    wayward=False, passing=False, patient=False, stuck=False, lapsing=False, readers=False,
    retiring=False, removing=False, schedules=False, ranked=False, retried=False,
    sweeping=False, grouped=False, keyed=False, recurring=False, chained=False, unique=False,
    pausing=False, breaking=False, limiting=False, following=False, choosing=False,
    executing=False,
)  # fmt: skip
CRASHES = replace(QUIET, faults=("crash",), fault_every_us=700 * MS)
OLD_COPIES = replace(QUIET, faults=("old copy",), fault_every_us=700 * MS, faulty_us=10 * SECOND)
TWINS = replace(OLD_COPIES, faults=("twins",))
REMOVALS = replace(
    QUIET, nodes=4, partitions=5, retiring=True, removing=True, faulty_us=10 * SECOND
)
DEATHS = replace(QUIET, winding=True, faulty_us=6 * SECOND, programs=2)
SCHEDULES = replace(QUIET, schedules=True, faulty_us=6 * SECOND)
RANKED = replace(QUIET, ranked=True, faulty_us=6 * SECOND)
SWEPT = replace(QUIET, sweeping=True, faulty_us=6 * SECOND)
RECURRING = replace(QUIET, recurring=True, faulty_us=6 * SECOND)
UNIQUE = replace(QUIET, unique=True, faulty_us=6 * SECOND)
RETRIED = replace(QUIET, retried=True, faulty_us=6 * SECOND)
GROUPED = replace(QUIET, grouped=True, faulty_us=6 * SECOND)
CHAINED = replace(QUIET, chained=True, faulty_us=6 * SECOND)
PAUSING = replace(QUIET, pausing=True, faulty_us=6 * SECOND)
BREAKING = replace(QUIET, breaking=True, faulty_us=6 * SECOND)
LIMITING = replace(QUIET, limiting=True, faulty_us=6 * SECOND)
FOLLOWED = replace(QUIET, winding=True, following=True, faulty_us=6 * SECOND)
CHOOSING = replace(QUIET, choosing=True, faulty_us=6 * SECOND)
KEYED = replace(QUIET, keyed=True, faulty_us=6 * SECOND)
EXECUTING = replace(
    CRASHES, executing=True, faulty_us=6 * SECOND, fault_every_us=1_500 * MS, loss=0.1
)


QUICKLY_FOUND = [
    (mutants.swallows_answers, QUIET),
    (mutants.lets_waiters_sleep, QUIET),
    (mutants.drops_grants, QUIET),
    (mutants.keeps_stale_routes, CRASHES),
    (mutants.skips_what_moves, DEATHS),
    (mutants.keeps_what_is_cancelled, SCHEDULES),
    (mutants.loses_what_is_moved, SCHEDULES),
    (mutants.lists_a_page_again, SCHEDULES),
    (mutants.leases_the_least_urgent_first, RANKED),
    (mutants.keeps_priorities_of_ready_items, RANKED),
    (mutants.forgets_priorities_of_dead_letters, RANKED),
    (mutants.keeps_what_is_purged, SWEPT),
    (mutants.chooses_any_dead_letter, SWEPT),
    (mutants.forgets_attributes_of_retries, RETRIED),
    (mutants.saves_under_ended_leases, RETRIED),
    (mutants.keeps_the_first_checkpoint, RETRIED),
    (mutants.drops_the_data_of_results, RETRIED),
    (mutants.mixes_up_results, RETRIED),
    (mutants.lets_dead_items_be_silent, RETRIED),
    (mutants.forgets_events_of_completes, FOLLOWED),
    (mutants.leaves_out_events_between_pages, FOLLOWED),
    (mutants.drops_events_too_early, FOLLOWED),
    (mutants.forgets_limits_of_moves, RETRIED),
    (mutants.lets_items_grow_old, RETRIED),
    (mutants.counts_attempts_by_the_queue_alone, RETRIED),
    (mutants.waits_by_the_queue_alone, RETRIED),
    (mutants.gives_groups_one_weight, GROUPED),
    (mutants.serves_one_group_on, GROUPED),
    (mutants.leases_a_key_twice, KEYED),
    (mutants.puts_retried_items_of_keys_at_the_tail, KEYED),
    (mutants.forgets_keys_of_requests, KEYED),
    (mutants.fires_again, RECURRING),
    (mutants.fires_while_paused, RECURRING),
    (mutants.produces_follow_ups_again, CHAINED),
    (mutants.forgets_what_full_queues_refuse, CHAINED),
    (mutants.decides_about_distant_keys_alone, UNIQUE),
    (mutants.leases_in_pauses, PAUSING),
    (mutants.stores_in_pauses, PAUSING),
    (mutants.pauses_for_ever, PAUSING),
    (mutants.leases_while_open, BREAKING),
    (mutants.tries_many_items, BREAKING),
    (mutants.stays_open, BREAKING),
    (mutants.leases_above_the_rate, LIMITING),
    (mutants.never_refills, LIMITING),
    (mutants.forgets_tokens_of_flows, LIMITING),
    (mutants.forgets_tokens_of_groups_above, LIMITING),
    (mutants.never_refills_flows, LIMITING),
    (mutants.leases_beside_the_choice, CHOOSING),
    (mutants.chooses_any_kind, CHOOSING),
    (mutants.delivers_without_completing, CHOOSING),
    (mutants.lets_executions_sleep, EXECUTING),
    (mutants.lets_questions_sleep, EXECUTING),
    (mutants.overlooks_pins, EXECUTING),
    (mutants.produces_again_in_replays, EXECUTING),
    (mutants.lets_old_copies_in, OLD_COPIES),
    (mutants.lets_old_copies_in, TWINS),
    (mutants.never_gives_up_targets, REMOVALS),
    (mutants.forgets_leaving_nodes, REMOVALS),
]
FOUND_LATER = [
    (mutants.overlooks_what_is_urgent, RANKED),
    (mutants.forgets_priorities_of_retries, RANKED),
    (mutants.purges_without_an_end, SWEPT),
    (mutants.keeps_the_first_attributes, RETRIED),
    (mutants.forgets_errors_when_attributes_change, RETRIED),
    (mutants.forgets_attributes_of_moves, RETRIED),
    (mutants.forgets_checkpoints_of_moves, RETRIED),
    (mutants.lets_items_die_young, RETRIED),
    (mutants.overlooks_limits_of_groups, GROUPED),
    (mutants.forgets_groups_of_moves, GROUPED),
    (mutants.keeps_due_items_of_moved_keys, KEYED),
    (mutants.overlooks_due_times, RECURRING),
    (mutants.produces_follow_ups_of_lost_leases, CHAINED),
    (mutants.bumps_for_ever, UNIQUE),
    (mutants.stores_beside_what_waits, UNIQUE),
    (mutants.leases_above_the_limit, LIMITING),
    (mutants.runs_past_leases, EXECUTING),
    (mutants.begins_effects_at_once, EXECUTING),
    (mutants.records_without_leases, EXECUTING),
    (mutants.forgets_messages, EXECUTING),
    (mutants.loses_pins_that_lapse, EXECUTING),
    (mutants.drops_items_of_executions, EXECUTING),
]
"""These take many seeds. `make slow-mutants` runs them; each feature has another one above."""


@pytest.mark.parametrize(
    ("mutant", "profile"),
    QUICKLY_FOUND + (FOUND_LATER if "SLOW_MUTANTS" in os.environ else []),
    ids=lambda value: value.__name__ if callable(value) else "-",
)
def test_a_broken_service_is_found(mutant: Callable[[], Any], profile: WholeProfile):
    with mutant():
        for seed in range(1, 60):
            if simulate_whole(seed, profile=profile).violations:
                return
    pytest.fail("nothing was found")


@pytest.mark.parametrize(
    "profile",
    [
        QUIET,
        CRASHES,
        DEATHS,
        SCHEDULES,
        RANKED,
        SWEPT,
        RETRIED,
        GROUPED,
        RECURRING,
        CHAINED,
        PAUSING,
        BREAKING,
        LIMITING,
        CHOOSING,
        EXECUTING,
        OLD_COPIES,
        TWINS,
        REMOVALS,
    ],
)
def test_a_sound_service_is_not(profile: WholeProfile):
    for seed in range(1, 3):
        assert simulate_whole(seed, profile=profile).violations == []
