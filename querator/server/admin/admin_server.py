"""The admin port: metrics and health of the node, over HTTP.

    /metrics    Prometheus text, or OpenMetrics if the client accepts it
    /livez      200, or 503 with the reasons when only a restart helps
    /readyz     200, or 503 with the missing conditions; 200 has a line `note: …` for each thing
                that the node cannot do although it is ready

The port answers from before the storage is opened until everything else has stopped. It runs in the
node's event loop: if the loop hangs, there is no answer, and a probe reports the node as dead.
There is no authentication. Clients of this port can neither change anything nor read items.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from querator import telemetry
from querator.config import listen_error, parse_address
from querator.server.admin.admin_view import Observed
from querator.server.admin.health import Health
from querator.server.admin.metrics import Metrics

CONNECTIONS_MAX: Final = 128
"""Connections beyond this limit are answered with 503."""
_REQUEST_BYTES_MAX: Final = 16 * 1024
_STOP_S: Final = 2
_NOT_STORED: Final = {"cache-control": "no-store"}

_log = telemetry.logger(__name__)


class AdminServer:
    """Serves on `listen` (HOST:PORT; port 0 takes any free one)."""

    def __init__(self, observed: Observed, *, listen: str) -> None:
        self._listen = listen
        self._health = Health(observed)
        self._metrics = Metrics(observed, self._health)
        routes = [
            Route("/", _index),
            Route("/metrics", self._exposition),
            Route("/livez", _reasons(self._health.dead)),
            Route("/readyz", _reasons(self._health.missing, self._health.notes)),
        ]
        self._app = Starlette(routes=routes)
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None

    async def start(self) -> str:
        """Listens and serves. Returns the address with its real port. Raises ListenError."""
        assert self._server is None, "started once"
        host, port = parse_address(self._listen, setting="listen_admin")
        try:
            self._socket = await _listening(host, port)
        except OSError as error:
            raise listen_error("listen_admin", self._listen, error) from error
        config = uvicorn.Config(
            self._app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=_REQUEST_BYTES_MAX,
            timeout_graceful_shutdown=_STOP_S,
        )
        config.load()
        # Not `serve`, which would handle the process's signals and wake ten times a second to check
        # for them.
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._socket])
        self._server = server
        address = f"{self._listen.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        _log.debug("admin.listening", address=address)
        return address

    async def forget_storage(self) -> None:
        """Stops the use of the storage. To be called before the storage is closed."""
        await self._metrics.forget_storage()

    async def stop(self) -> None:
        """Ends after the pending answers, within a short time in any case. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        assert self._socket is not None
        # If a server closes between the two steps of accepting a connection, asyncio loses the
        # connection and never closes it (CPython gh-109564). So accepting ends before the close.
        asyncio.get_running_loop().remove_reader(self._socket)
        await asyncio.sleep(0)
        await server.shutdown(sockets=[self._socket])
        # Connections that came at the last moment, or whose answer took too long.
        for connection in tuple(server.server_state.connections):
            assert isinstance(connection, H11Protocol)
            connection.transport.abort()
        await asyncio.sleep(0)
        self._metrics.close()
        _log.debug("admin.stopped")

    async def _exposition(self, request: Request) -> Response:
        text, content_type = await self._metrics.exposition(request.headers.get("accept", ""))
        return Response(text, headers={**_NOT_STORED, "content-type": content_type})


def _reasons(
    tell: Callable[[], list[str]], notes: Callable[[], list[str]] = list
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        reasons = tell()
        lines = reasons or ["ok", *(f"note: {note}" for note in notes())]
        text = "".join(f"{line}\n" for line in lines)
        return PlainTextResponse(text, 503 if reasons else 200, _NOT_STORED)

    return answer


async def _index(_: Request) -> Response:
    return PlainTextResponse("/metrics\n/livez\n/readyz\n")


async def _listening(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, type_, protocol, _, address = found[0]
    made = socket.socket(family, type_, protocol)
    try:
        # Connections of a server that has just ended would block the port.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Here and not in the server's start, so that a port in use is reported as such.
        made.listen()
    except BaseException:
        made.close()
        raise
    return made
