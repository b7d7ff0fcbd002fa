"""Queues and their partitions on the nodes of a cluster: the map, and the work that makes it true.

The modules and sub-packages:

    assign     chooses the nodes of a new group, and its first leader
    bootstrap  facts about the own node that placement needs before it has a map
    joining    how a node founds or joins its cluster
    map        the placement map as a replicated state machine
    placement  the placement of this node: the map, changes to it, waiting
    tasks      the tasks that make the cluster what the map says
    waiting    callers that wait until a change of the map is carried out
"""
