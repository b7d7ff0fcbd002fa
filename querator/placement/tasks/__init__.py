"""The work of the nodes that makes the cluster match the map.

The map itself changes only by the commands of `placement.map`.

    balancing          input and output of `plan`; voters of the placement group
    closing            removal of closing partitions from the map
    group_worklist     the led groups for which work may be pending
    key_freeing        frees dedup keys of items in other partitions
    leader_tasks       what a node does for the groups that it leads
    partition_calls    queries and commands to partitions on any node
    plan               where all replicas and leaderships should be
    reconcile          opens, configures and deletes groups as the map says
    repartitioning     changes of a queue's number of partitions
    steps              the next change of a group's replicas
"""
