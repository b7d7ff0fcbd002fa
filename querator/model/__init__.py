"""The values that travel between packages. Pure: no clock, no randomness, no I/O.

Encodings of these values are in `querator.wire` and next to the state machines.

    addresses        the text form of an address
    calls            client calls and their replies
    cluster          what a node reports to operators about its cluster
    commands         commands that change a partition, with their results
    entries          what a Raft group replicates, as raft and machines see it
    errors           ErrorCode with the table of all errors, QueratorError
    execution_calls  calls about executions, and their replies
    execution_commands  commands that change executions, and their results
    executions       what an execution of a durable function has seen, and how it continues
    flow_calls       calls about groups and keys, and their replies
    group_paths      paths of groups of fair queues
    ids              identifiers and their text forms
    fair_shares      max-min fair shares of what is not enough for all
    item_options     attributes of an item beyond a plain item
    lease_calls      calls of operators about live leases, and their replies
    lease_limits     a partition's parts of the limits of leases of its queue
    limits           all limits with units and reasons
    nodes            nodes, incarnations and replicas
    placement_map    the placement map: nodes, queues, groups
    queues           queue settings, and a queue as the map knows it
    rates            rates of a partition, as moving averages
    reader_calls     calls of readers and their replies
    event_calls      events of a queue: kinds, the call that reads them, its reply
    result_calls     the call that waits for results of items, and its reply
    readers          commands and results of readers
    recurrence_calls  calls about recurrences and their replies
    recurrences       recurrences: commands, results and rows
    routing          the partition of an identified request
    schedule_calls   calls about scheduled items and their replies
    shares           a limit that several keys share fairly
    similar_names    names that may have been meant by a missing one
    starts           chains of a node's starts, which expose old copies of data
    transactions     commands and results of transactional produce
    txn_calls        calls about transactions and their replies
"""
