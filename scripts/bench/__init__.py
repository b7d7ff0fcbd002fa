"""The benchmark: Querator's throughput on this machine, and its latencies.

`make bench` starts a node in a temporary directory, runs the scenarios of `scenarios.py` against it
from client processes that use the SDK, several times each, and writes `build/bench/results.json`
and `build/bench/results.md`. Counts must balance: a run that lost an item fails.
"""
