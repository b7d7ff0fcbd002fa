"""The producer of the SDK: gathering of items, streams, and unanswered requests.

Programs import its public names from `querator.client`. The modules:

    producer         Producer, which programs use
    produce_stream   Lane: gathers items and sends them on one stream
    window           unanswered requests, their order and their outcomes
    sinks            receivers of a produce request's outcome
    leader_affinity  choice of the node for an ordered producer's stream
"""
