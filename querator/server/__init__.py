"""What the outside talks to: one gRPC server per node.

    grpc_server     the server itself: address, limits of the transport, health, reflection, drain
    answers         the one place where failures become statuses; request ids; deadlines
    queue_calls     unary calls of QueueService
    transaction_calls  calls of TransactionService
    admin_calls     calls of AdminService
    produce_stream  ProduceStream
    lease_stream    LeaseStream
    outbox          what waits to be written to one stream

Requests come in and answers go out as bytes; `querator.wire` reads and writes them. A handler may
be cancelled at any time, for its client may vanish; a command that it has handed to the service
goes on, and its outcome is the service's business.
"""
