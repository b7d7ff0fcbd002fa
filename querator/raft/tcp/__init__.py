"""The connections to the other nodes: dialing, handshakes, TLS and frames.

The contents of messages are in `raft.messages`.

    tcp_peers       connections to all other nodes; the real form of `raft.peers`
    connection      one TCP connection, with or without TLS
    listening       the listening socket
    dialing         outgoing connections: names, addresses, retries
    handshake       proofs that both sides know the cluster's token
    hello           descriptions of nodes in the handshake, and their check
    local_hello     this node's description, and its check of other nodes
    channel         TLS of one connection, in memory
    frames          encoding of frames
    query           request for a node's description, before there is a cluster
"""
