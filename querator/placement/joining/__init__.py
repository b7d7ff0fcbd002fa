"""How a node finds, founds or joins its cluster, and how it returns to it.

Changes of a group's replicas are in `placement.tasks`, the peer protocol is in `raft.tcp`.

    formation    what a starting node does next, given its peers' answers
    forming      formation with its I/O: queries, durable decisions
    known_peers  the nodes that may connect to this one
    membership   this node as a member: start, watch, peer port
    restoring    conversion of an old copy of the data to a new incarnation
"""
