"""`make grow`: a cluster and a queue grow and shrink under a load whose counts must balance.

The modules:

    books    items in and items out, by rounds, and their order
    flights  the load: flights that go round through the queue, with the SDK alone
    run      the changes of the cluster and the queue, step by step
"""
