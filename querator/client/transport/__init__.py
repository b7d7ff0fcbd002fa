"""Connections to nodes: calls that are repeated, streams that are opened again, gRPC errors. What
the calls and frames contain does not belong here.

    nodes           the known nodes of the cluster, and choice of one for a call
    known_node      one node: its connection, its health
    channel         Connection: one gRPC connection to one node
    stream          a bidirectional stream that is opened again when it breaks
    streamed_calls  calls about executions, many on one stream
    forking         connections are closed before a fork of the process
    attempts        repetition of one request within its timeout
    backoff         exponential backoff with jitter
    diagnosis       the cause of missing connections, found in the background
    probe           one attempt with plain sockets that finds the cause
    rpc_errors      conversion of gRPC and protocol errors to exceptions
    waits           why requests are repeated
    wait_queue      wait queue of tasks on one event loop
"""
