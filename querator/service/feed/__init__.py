"""Followers of the events of queues: what they ask, and how they wait at the leaders of partitions.
How events are recorded is in `partition.feed`.

    calls    calls of followers: the partition, and whether it is still that of the caller
    waits    questions that wait at the leader until there is an event
"""
