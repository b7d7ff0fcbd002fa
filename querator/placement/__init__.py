"""Placement decides which queues exist and which nodes hold their partitions, and carries that out.

Raft itself is in `querator.raft`, the state machine of a partition in `querator.partition`.

    assign         which nodes get the replicas of a group, and which one should lead
    bootstrap      what placement knows of its node before there is a map
    joining        how a node finds, founds or joins its cluster
    map            the placement map as a replicated state machine
    map_waiters    callers that wait for a change to take effect
    placement      the placement of one node: its map, changes, background work
    tasks          the work that makes the cluster match the map
"""
