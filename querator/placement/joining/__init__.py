"""How a node finds, founds or joins its cluster, and comes back to it.

The modules and sub-packages:

    formation    the decisions of formation, without I/O
    forming      formation with its I/O: asks peers, acts, keeps the result
    known_peers  the nodes that may connect to this one
    membership   this node as a member: how it becomes one, and its peer port
    restoring    brings the directory of an old copy back as a new incarnation
"""
