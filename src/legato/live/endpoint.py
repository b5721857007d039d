"""The endpoint: a board over HTTP, from a thread of this process.

/           the page
/events     server-sent events: `state` of each job, then every fact as it comes
/state      the same once, as JSON
/metrics    for Prometheus
"""

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from legato.errors import InputError
from legato.live import prometheus
from legato.live.board import Board
from legato.live.config import check_exposure
from legato.transports.rendezvous import forks
from legato.transports.rendezvous.addresses import text

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    raise InputError(f"the dashboard needs starlette and uvicorn ({missing}); pip install 'legato[live]'") from None

_HERE = Path(__file__).parent
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_KEEPALIVE_S = 5.0
"""A reader that hears nothing for longer knows that nobody is there."""
_MAX_BEHIND = 256
"""Facts that a slow reader may be behind; then it is disconnected, and begins anew."""
_CLOSE_S = 2
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

_Event = tuple[str, str, dict[str, Any]] | None
"""A job, the kind of a fact, and the fact; None ends it."""


class CannotListenError(InputError):
    """Its port is taken, or its address is not one of this machine's."""


class Endpoint:
    """Serves from construction to `close`."""

    def __init__(self, board: Board, host: str, port: int, *, token: str | None = None) -> None:
        check_exposure(host, port, token)
        self._board = board
        self._host = host
        self._token = token
        self._queues: set[asyncio.Queue[_Event]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = _listen(host, port)
        forks.in_children(self._let_go)
        self.url = f"http://{text(host, self._socket.getsockname()[1])}/"
        routes = [Route(path, self._guarded(answer)) for path, answer in self._answers().items()]
        config = uvicorn.Config(
            Starlette(routes=routes),
            loop="asyncio",  # it is there in every installation, and one event a second needs no other
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="legato-dashboard", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it has ended, or a signal comes."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Send what is there, and end. Can be called twice."""
        self._server.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._end_all)
        self._thread.join(2 * _CLOSE_S)
        self._socket.close()

    # ---- in the thread ----

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def _end_all(self) -> None:
        for queue in self._queues:
            _push(queue, None)

    def _let_go(self) -> None:
        self._socket.close()

    # ---- answers ----

    def _answers(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        return {"/": self._page, "/events": self._events, "/state": self._state, "/metrics": self._metrics}

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            reason = self._reason_against(request)
            return await answer(request) if reason is None else PlainTextResponse(reason, 401, _HEADERS)

        return guarded

    def _reason_against(self, request: Request) -> str | None:
        """Why somebody is not told."""
        if self._token is None:
            # A name that somebody else has pointed at the loopback would let their page read this one.
            if request.url.hostname not in (*_LOOPBACK_NAMES, self._host):
                return "this dashboard is for the loopback\n"
            return None
        shown = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query_params.get(
            "token", ""
        )
        if hmac.compare_digest(shown.encode(), self._token.encode()):
            return None
        return "this dashboard needs its token: ?token=… in the address, or an Authorization: Bearer header\n"

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(page(), headers=_HEADERS)

    async def _state(self, _: Request) -> Response:
        return JSONResponse(self._board.states(), headers=_HEADERS)

    async def _metrics(self, _: Request) -> Response:
        content = prometheus.exposition(self._board.latest())
        return Response(content, headers={**_HEADERS, "Content-Type": prometheus.CONTENT_TYPE})

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=_HEADERS)

    async def _stream(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[_Event] = asyncio.Queue(_MAX_BEHIND)
        loop = asyncio.get_running_loop()

        def reader(job: str, kind: str, data: dict[str, Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_push, queue, (job, kind, data))

        self._queues.add(queue)
        states = self._board.read(reader)
        try:
            yield "retry: 1000\n\n"
            for job, state in states.items():
                yield _message(job, "state", state)
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), _KEEPALIVE_S)
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                if event is None:
                    return
                yield _message(*event)
        finally:
            self._board.leave(reader)
            self._queues.discard(queue)


def page() -> str:
    """The whole page, which loads nothing else."""
    style, script = (_HERE / "page.css").read_text(), (_HERE / "page.js").read_text()
    return (_HERE / "page.html").read_text().replace("/* page.css */", style).replace("/* page.js */", script)


def _push(queue: "asyncio.Queue[_Event]", event: _Event) -> None:
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


def _message(job: str, kind: str, data: dict[str, Any]) -> str:
    return f"data: {json.dumps({'job': job, 'kind': kind, 'data': data}, separators=(',', ':'))}\n\n"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(16)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise CannotListenError(f"the dashboard cannot be served at {text(host, port)}: {reason}") from None
    return listener
