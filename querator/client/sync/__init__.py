"""The client for programs without an event loop.

It runs the async client and waits for it; a second implementation of a call does not belong here.

    client           SyncClient, SyncProducer, SyncConsumer
    events           SyncEvents
    handler_threads  threads for the handlers of `SyncConsumer.run`
    leases           SyncLeasedItem, SyncLeasedBatch
    locks            SyncLock, SyncSemaphore, SyncElection, SyncRwLock, SyncHolding
    loop_thread      the event loop of a client, on a thread
    recurrences      SyncRecurrences
    schedules        SyncScheduledItems
"""
