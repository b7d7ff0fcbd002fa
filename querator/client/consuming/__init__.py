"""The consumer of the SDK: lease streams, leases, and settling.

Programs import its public names from `querator.client`. The modules:

    consumer      Consumer, which programs use
    policy        what becomes of an item when its handler raises
    handling      calls of a handler, their outcomes, and their end after a stop
    follow_ups    items that are produced when an item is settled
    lease_stream  deliveries and settles of a consumer's lease stream
    credit        what the consumer allows the node to deliver
    leases        LeasedItem, LeasedBatch and the lease that they share
    settling      gathering of completes and retries into request frames
    single        lease, settle and extend as unary calls, without a stream
    stop_signals  signals that end `Consumer.run`
    subscribing   the first frame of a lease stream
    verbs         how items of a lease are settled
"""
