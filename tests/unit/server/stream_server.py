"""A gRPC server that has an ExecutionStream with handlers of a test, and nothing else."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from querator.server.calls.execution_stream import ExecutionStream
from querator.server.calls.grpc_calls import Context, LiveCalls, TimedCall, answering
from querator.server.calls.streams import Streams
from querator.server.grpc_server import EXECUTION_SERVICE


@dataclass
class StreamServer:
    address: str
    live: LiveCalls
    streams: Streams
    server: grpc.aio.Server

    def calls(self, method: str) -> int:
        """Calls that have ended, whatever their outcome; a stream is a call too."""
        return sum(n for (name, _), n in self.live.counts.calls().items() if name == method)


@asynccontextmanager
async def stream_server(
    handlers: Mapping[str, TimedCall], *, has_stream: bool = True
) -> AsyncIterator[StreamServer]:
    """`has_stream` False: the calls are there as unary ones only, as on an older node."""
    live = LiveCalls()
    streams = Streams(live)

    def make(context: Context, request_id: str, _: object) -> ExecutionStream:
        messages = live.incoming.messages_of(context.peer())
        return ExecutionStream(context, request_id, handlers, live.counts, messages)

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(answering(name, handler, live))
        for name, handler in handlers.items()
    }
    if has_stream:
        handler = streams.handler("ExecutionStream", make)
        methods["ExecutionStream"] = grpc.stream_stream_rpc_method_handler(handler)
    server = grpc.aio.server()
    generic = grpc.method_handlers_generic_handler(EXECUTION_SERVICE, methods)
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield StreamServer(f"127.0.0.1:{port}", live, streams, server)
    finally:
        await server.stop(None)
