"""The ports of a node: one gRPC server for clients and other nodes, and the admin port over HTTP.

Handlers do not implement calls; `querator.service` does. Requests and answers are bytes here;
`querator.wire` reads and writes them. A handler may be cancelled at any time, because its client
may vanish. A command that it has passed to the service continues, and the service handles its
outcome.

    admin           the admin port: metrics and probes
    calls           the gRPC calls and streams of clients
    certificates    TLS: certificates of the node's port and of its outgoing connections
    grpc_server     the server: address, transport limits, health, reflection, drain
    incoming        bounds the memory of incomplete gRPC messages
    link            links between nodes: forwarded commands and queries
"""
