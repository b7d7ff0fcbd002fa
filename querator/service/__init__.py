"""What a node does with a call between the door and the partition: validate, route, park waiting
leases, move items between partitions. Everything runs on the asyncio thread; nothing here waits for
anything but futures of the raft room, and nothing is kept that a restart would have to restore.

    queue_service   the door: produce, lease, complete, retry, extend, subscribe
    admin_service   queues, counts, looking into queues, dead letters
    validate        what can be refused without asking a partition
    admission       how much unanswered work is taken on
    views           partitions as this node knows them
    router          the one way to a partition: here, or on another node; deadlines
    outcomes        what comes of a command, and whether it may go again
    reasons         why a call has no answer, in words
    forwarder       the seam to the other nodes
    neighbours      this node among them: what it says and what it is asked
    demands         what its desks want of partitions led elsewhere
    offers          what its partitions have, shared among nodes where somebody waits
    pace            how it keeps pace with other nodes at a backlog
    spread          which partition takes a request that may go to any
    produce         a request cut into parts by dedup key, and their answers merged
    producing       a produce call on its way, and anew when partitions have changed
    settle          complete, retry and extend: split by partition, merged by lease
    grants          one who waits, and what is granted
    waiters         lease calls that wait, and how ready items are shared among them
    asks            what partitions are asked for them
    turns           whose turn it is among them
    allocation      the arithmetic of that
    replies         leased items read from a snapshot
    subscriptions   lease streams: credit, prefetch, automatic extension, release
    former_streams  what a consumer's broken streams had leased and not delivered goes back
    moves           dead letters and redrives on their way between partitions, exactly once
    departed        what partitions remember of groups that have left the map goes
    paging          page tokens
"""
