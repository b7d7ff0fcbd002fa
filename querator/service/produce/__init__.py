"""Produce calls: cut into parts by partition, and stored by the partitions. Staging items in a
transaction is in `service.transactions`.

    calls     a produce call on its way, and its repeat when partitions change
    split     requests cut into parts by key, and their answers merged
    distant_keys  dedup keys of items that are in other partitions
    chooser   the partition for a request that may go to any partition
    flows     the groups or keys that a fair or keyed queue needs
    load      unanswered produces of one partition on this node
"""
