"""`make grow`: a cluster and a queue grow and shrink under a load whose books must balance.

books    what went in and what came out, by rounds, and in which order
flights  the load: flights that go round through the queue, with the SDK alone
run      what happens to the cluster and the queue meanwhile, step by step
"""
