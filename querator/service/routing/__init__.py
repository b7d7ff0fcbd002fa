"""Routes to partitions: the queues of the map, the leader of each partition, and commands sent to
it. Leader election is in `raft`; the choice of a partition for items is in `service.produce`.

    router        sends commands and queries to leaders; deadlines and repeats
    route         leader of one partition, and the calls that wait for one
    directory     queues of this node's map, and how an old map catches up
    forwarder     interface to the other nodes, and its queries
    answers       handlers of queries about groups that this node leads
    outcomes      results and errors of commands, and which may be repeated
    call_errors   errors of calls without an answer, with their reasons
    first_found   questions of which the first one that finds something counts
    refusals      counts of calls refused for lack of space
"""
