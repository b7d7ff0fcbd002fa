"""One replica of a group: votes, entries, commits, and how far clocks are believed. No I/O.

Messages leave through `raft.peer_outbox`, and rows through `raft.log.journal`.

    member          a replica: appends, commits, leadership transfer, heartbeats
    voter           the part of a replica that votes and stands for election
    replication     what a leader knows of each other replica, and sends to it
    log_matching    how a follower checks and stores a leader's entries
    skew            differences between the nodes' wall clocks, and belief in them
    loop_watch      whether the node's event loop hangs, as the raft thread sees it
"""
