"""The gRPC calls and streams of clients, and the rules that all calls share.

Calls between nodes belong into `server.link`, and the formats of messages into `querator.wire`.

    admin_calls          calls of AdminService
    batch_stream         ReadBatch: the pages of a batch
    browse_stream        Browse: the pages of a scan
    call_counts          counts and durations of calls
    cluster_calls        calls of ClusterService
    execution_calls      calls of ExecutionService
    execution_stream     ExecutionStream: many of these calls on one stream
    grpc_calls           errors to statuses, request ids, deadlines, live calls
    lease_stream         LeaseStream: deliveries and the settling of leases
    outbox               answers and deliveries that wait for one stream's writer
    produce_stream       ProduceStream
    queue_calls          unary calls of QueueService
    reader_calls         unary calls of ReaderService
    streams              the life of a stream: open, read, drain, end
    transaction_calls    calls of TransactionService
"""
