"""What a node does with a call between the API and the partition: validate, route, park waiting
leases, move items between partitions. Everything runs on the asyncio thread, except scans and
background reads, which have threads of their own. No state here has to survive a restart.

    queue_service     calls of clients: produce, lease, settle, subscribe, browse
    executions        calls about executions: routed by their ids, read at leaders
    execution_waits   questions about executions that wait at the leader
    admin_service     queues, their counts and items, dead letters
    cluster_service   the cluster for operators: status, hand-off, replace, drain
    assembly          builds the service of a node from its parts
    events            events of the node, passed on to the parts
    validate          checks of a call that need no partition
    admission         limits of unanswered work
    settle            complete, retry and extend: split by partition, merged
    follow_ups        where the follow-ups of a settle go
    checkpoints       checkpoints of an extend: cut by partition
    feed              followers of events: questions that wait at the leader
    results           results of items: cut by partition, waited for
    schedules         scheduled items: lists and counts by due time, changes
    groups            the groups of a fair queue, with their counts
    keys              the keys of a keyed queue, with their counts; skips
    breakers          opens and closes the breakers of a queue by hand
    live_leases       lists of live leases; leases that are ended by hand
    item_reads        items that are read by id
    item_changes      changes of items that an operator names
    purging           purge of a queue, in steps
    item_ids          ids of items in calls, by partition
    moves             dead letters and redrives on their way between partitions
    rates             how many items come and go per second
    departed          partitions forget groups that have left the map
    stopped           refuses changes of queues with a stopped partition
    conditions        conditions that make items late or replicas doubtful
    storage_watch     free space of the storage, for the conditions
    produce           produce calls: split by partition, and stored there
    recurring         recurrences: calls of operators, and their runs
    lease             lease calls and lease streams
    reading           reads of partitions: pages, scans, counts, readers
    transactions      transactional produce: stage, commit, abort
    exchange          items offered to, and wanted from, other nodes
    routing           leaders of partitions, and commands sent to them
    repair            damaged blocks: background reads, replacement
"""
