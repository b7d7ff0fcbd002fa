"""Exchange between nodes: their demand for items, offers of ready items, and forwarded leases. The
messages themselves are in `server.link`, and the interface to them in `service.routing`.

    node_exchange   requests of this node's dispatchers and of other nodes
    demands         demand of this node for items that other nodes lead
    offers          items of this node, shared among the nodes with demand
    pace            fairness of the leader's own dispatcher at a backlog
"""
