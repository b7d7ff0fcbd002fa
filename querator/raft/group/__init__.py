"""One group on this node: its replica, its state machine, and the calls between them.

The votes and entries of a replica are in `raft.consensus`, and the order of a turn in `raft.turn`.

    group               the group: entry point of requests, messages and the turn
    leadership          tasks of a leader: state time, reads, transfer, changes
    application         applying committed entries to the state machine
    pending             calls whose entries are in the log and not applied yet
    packing             packing of calls into one entry
    read_index          reads that a majority must confirm (ReadIndex)
    snapshot_schedule   snapshots that leaders send, and entries kept for followers
    snapshot_install    installation of a received snapshot
    call_errors         errors of calls without a result
"""
