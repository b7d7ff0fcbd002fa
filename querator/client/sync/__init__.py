"""The client for programs without an event loop.

It runs the async client and waits for it; a second implementation of a call does not belong here.

    client  SyncClient, SyncProducer, SyncConsumer
    leases  SyncLeasedItem, SyncLeasedBatch
"""
