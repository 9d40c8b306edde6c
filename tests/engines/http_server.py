"""A real server in a thread of this process. It serves the routers for workers with the store of a test, or an app."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import uvicorn
from litestar import Litestar, Request
from litestar.exceptions import HTTPException

from qo.client import Client
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.errors import QoError
from qo.web.callers import LOCAL_CALLER
from qo.web.health import router as health_router
from qo.web.http.access import put_caller
from qo.web.http.problems import of_http, of_ours
from qo.web.remote.routes import router

T = TypeVar("T")


async def admit(request: Request[Any, Any, Any]) -> None:
    """Admits every request; authentication is tested with the whole application."""
    put_caller(request, LOCAL_CALLER)


def make_app() -> Litestar:
    return Litestar(
        [router, health_router],
        before_request=admit,
        exception_handlers={QoError: of_ours, HTTPException: of_http},
        openapi_config=None,
        logging_config=None,
    )


class Server:
    def __init__(self, app: Litestar | None = None) -> None:
        self.app = app or make_app()
        # With the protocol given, asyncio turns off Nagle's algorithm, which delays a response by 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="http server", daemon=True)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve([self._socket]))
        self._loop.close()

    def start(self) -> None:
        self._socket.listen(100)  # a request before the server is ready waits
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    async def there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the server."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    @asynccontextmanager
    async def serving(self, engine: Engine, clock: Clock = system_clock) -> AsyncIterator[Client]:
        client = Client(engine, clock=clock)
        await self.there(client.open())
        self.app.state.clear()
        self.app.state["client"] = client
        try:
            yield client
        finally:
            await self.there(client.close())


@contextmanager
def server(app: Litestar | None = None) -> Iterator[Server]:
    running = Server(app)
    running.start()
    try:
        yield running
    finally:
        running.stop()
