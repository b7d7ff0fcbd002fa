"""The raft thread, and what it does for all groups of the node in one turn.

What a turn does inside a single group is in `raft.group`.

    turn                the turn: order of the steps
    thread              the raft thread: waits, makes turns, delivers outcomes
    batcher             joins waiting calls into entries, fairly among groups
    open_transaction    the write transaction, which may stay open for some turns
    heartbeats          one heartbeat for all groups between two nodes
    timers              when to check groups in which nothing happens
    liveness            whether the raft thread hangs
    meeting             writes and sends the starts of nodes
    deletions           deletion of groups in bounded steps
    mending             rewriting of damaged attachments
"""
