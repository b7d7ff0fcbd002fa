"""The transfer of a whole state to a replica that is behind its leader's log.

When snapshots begin and are installed is in `raft.group`.

    protocol        description of the protocol, its limits, and the contents of chunks
    sender          the leader's side, for one follower
    receiver        the follower's side
    staging         writing of received contents into the staging generation
    incoming        row with the progress of an incoming snapshot
"""
