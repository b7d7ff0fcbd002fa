"""The times of Raft: heartbeats and elections.

A follower that hears no leader for an election timeout, chosen at random between the two limits,
stands for election. Several heartbeats in a row may therefore be lost or late.
"""

from typing import Final

HEARTBEAT_S: Final = 0.35
"""Interval of a leader's heartbeats."""
ELECTION_TIMEOUT_S_MIN: Final = 1.2
ELECTION_TIMEOUT_S_MAX: Final = 2.4
"""A leader that does not hear a majority for this long steps down."""

assert 3 * HEARTBEAT_S < ELECTION_TIMEOUT_S_MIN, "two heartbeats may be lost"
