"""What nodes do so that the cluster becomes what the map says.

The modules and sub-packages:

    balancing       the changes of the map that the plan asks for, and its voters
    closing         how closing partitions leave, by the leader of group 0
    group_worklist  the led groups in which something may be left to do
    leader_tasks    what a node does repeatedly for the groups that it leads
    plan            where replicas and leaderships should be; pure
    reconcile       opens and deletes groups of this node, as the map says
    repartitioning  how a queue gets another number of partitions while in use
    steps           the next step of a group's leader towards the map; pure
    telling         questions and commands of group 0's leader to partitions
"""
