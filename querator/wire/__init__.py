"""Conversion between the bytes of `querator.v1` and the values of `querator.model`.

All functions are pure: no I/O, no clock (callers pass `now_ms`), no state. The exception is `tls`,
which clients and servers share: it reads files and opens channels. This package validates requests:
a value that `parse_…` returns has passed every limit of a single field. A refusal is a
`QueratorError` that names the field, the limit and the value. Other packages rely on these checks;
checks that need the state of a queue do not belong here.

    fields           the protobuf wire format: varints, tags, bounds of fields
    field_checks     limits that an operator may raise, checks of single fields
    produce          produce requests and answers; items stay the received bytes
    duplicates       what an item does to others with its dedup key
    flow_names       groups and keys of items, as commands name them
    item_changes     requests and answers of AdminService that change or remove items
    item_ids         ids of items in requests
    item_reads       requests and answers of AdminService that read items by id
    dead_letters     requests and answers of AdminService that redrive and drop dead letters
    retry_policies   retry policies of items
    lease            lease requests and answers; items are the stored bytes
    settle           complete, retry and extend: requests and answers
    results          results of items: what asks for them, returns them, waits for them
    events           events of queues: the call of a follower, and its reply
    executions       requests and answers of ExecutionService
    execution_frames  frames of the execution stream
    frames           frames of the produce stream and the lease stream
    browse           requests and answers of scans
    readers          requests and answers of ReaderService
    transactions     requests and answers of TransactionService
    queues           requests and answers of AdminService
    recurrences      requests and answers of AdminService about recurrences; their items
    schedules        requests and answers of AdminService about scheduled items
    breakers         requests and answers of AdminService about circuit breakers
    limits           limits of leases: settings, and what they permit
    groups           requests and answers of AdminService about groups
    live_leases      requests and answers of AdminService about live leases
    cluster          requests and answers of ClusterService, in both directions
    routing          requests and answers of GetRouting
    columns          items by column, as the buffers of Apache Arrow arrays
    uniform_items    fast splitting of items that differ only in their payloads
    errors           ErrorCode as google.rpc.Status and as querator.v1.Error
    tls              TLS certificates from PEM files, gRPC channels
"""
