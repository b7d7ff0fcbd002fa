"""The disk: one ordered key-value environment per node, its tables, and the node's identity.

LMDB is imported nowhere else. The layouts of values belong to the packages that own the tables.

    attachments           payload bytes, stored once: written, read, dropped
    data_file             the file of an LMDB environment: creation and checks
    directory             lock of the node's directory, durable names in it
    environment           the interface of a back end, its errors, usage in bytes
    generations           a group's rows in several generations, and views of them
    identity              format, cluster, node and incarnation of a directory
    keys                  keys of tables and groups in one ordered environment
    lmdb_environment      the durable back end, with LMDB
    memory_environment    the back end in memory, with crashes and injected errors
    opening               opens a node's storage and claims it for the node
    overlay               a write transaction that stays in memory until its commit
    sealed                rows with a checksum in front
    starts                known starts of this node and of other nodes
    switch_interval       a short switch interval of the interpreter for a block
    tables                all tables of a node's environment
"""
