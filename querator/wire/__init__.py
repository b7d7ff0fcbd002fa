"""Bytes of `querator.v1` in, values of `querator.model` out, and back.

Everything here is a pure function: no I/O, no clock (callers pass `now_ms`), nothing kept. This is
the door: what `parse_…` returns has passed every limit that concerns one field alone, what it
refuses is a `QueratorError` that names the field, the limit and the value. Rooms behind the door
trust it.

    fields    the wire format itself: varints, tags, where a field begins and ends
    door      limits that an operator may raise, and the checks of single fields
    produce   produce requests and answers; items stay the bytes they came as
    lease     lease requests and answers; items are appended as the bytes they are
    settle    complete, retry, extend
    frames    the frames of both streams
    queues    what AdminService speaks of
    cluster   what ClusterService speaks of
    errors    ErrorCode to and from google.rpc.Status and querator.v1.Error
"""
