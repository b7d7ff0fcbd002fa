"""Links between nodes: forwarded commands and queries.

Raft's messages between nodes belong into `raft.tcp`.

    forwarding        one link from this node to each other node of the map
    grpc_wire         `link_wire.Wire` over gRPC
    link_handshake    the handshake, which proves the cluster's token
    link_wire         the interface between links and their transport
    node_calls        NodeService: answers what other nodes ask
    node_frames       the frames of a link, as bytes
    node_link         one link from this node to another, with its retries
"""
