"""Raft groups over PySyncObj: consensus, logs, snapshots, connections between nodes, and the raft
thread. A group replicates entries into a state machine.

Nothing here knows about queues: the state machines are in other packages and implement `machine`.

    host            API of the package: runs all groups of a node for the asyncio thread
    requests        requests and outcomes between the asyncio thread and the raft thread
    machine         interface between a group and the state machine that it replicates
    peers           interface between a turn and the other nodes
    messages        messages between replicas and nodes, and their encoding
    peer_outbox     outgoing messages of one turn, before and after its sync
    configuration   the replicas of a group, and changes by one replica at a time
    clock           clocks, and how wall clock and monotonic time become state time
    starts          starts of other nodes that this node has met; refuses old copies
    refusals        reasons for refusing a peer, and their log
    status          status of a group for operators and other packages
    stats           durations and sizes of turns
    timing          the times of heartbeats and elections
    consensus       one replica of a group, without I/O
    engine          PySyncObj, pinned to one version
    group           one group on this node: replica, state machine, calls
    log             the log of a group on disk, and the disk space of writes
    snapshot        transfer of a whole state to a replica
    tcp             connections to the other nodes
    turn            the raft thread and its turns
"""
