"""The values that travel between packages. Pure: no clock, no chance, no I/O.

The modules and sub-packages:

    calls          calls of clients and their answers, free of any transport
    cluster        what a node reports to operators about its cluster
    commands       commands that change a partition, and their answers
    entries        what a Raft group replicates, for raft and the state machines
    errors         every error of Querator, as one table
    ids            identifiers and their text forms
    limits         every limit, with its unit and its reason
    nodes          nodes of a cluster, and their replicas
    placement_map  the placement map as a value
    queues         settings of a queue, and its place in the map
    reader_calls   calls of readers and their answers
    readers        commands and results of readers
    routing        the partition of an identified request; pure
    shares         a limit that several keys share fairly
    specials       options of single items
    starts         starts of a node, and which image of its data is newer
    transactions   commands and results of transactional produce
    txn_calls      calls about transactions and their answers
"""
