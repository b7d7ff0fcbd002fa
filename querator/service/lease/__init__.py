"""Lease calls and lease streams: callers wait for items, partitions grant them, and leased items
are delivered. Settling leases is in `service.settle`.

    calls            lease calls and lease streams, up to the dispatcher of the queue
    chosen           lease calls for items by id, or by kind and attributes
    dispatcher       waiters of one queue, and how ready items are shared among them
    pinned           leases of activations for workers that name versions
    waiter           one caller that waits, and the leases granted to it
    fair_queue       the wait queue: order and fairness of the waiters
    allocation       max-min fair shares of the ready items; pure arithmetic
    requests         lease requests to partitions for waiters, and their grants
    lost_requests    releases leases of requests whose outcome is unknown
    supply           items of one partition that this node can lease
    replies          leased items, read from a snapshot for the reply
    subscriptions    lease streams: credit, prefetch, delivery, release
    held_leases      live leases of one stream, and their automatic extension
    former_streams   releases undelivered leases of a consumer's broken streams
"""
