"""A real server on the loopback, in a thread of its own, over a queue the test can also hold in its hands."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

import httpx
import pytest
import uvicorn
from litestar import Litestar

from qo.client import Client
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.errors import NewerFormat
from qo.web import WebSettings, create_app
from qo.web.http.connections import server_config
from tests.conditions import wait_until
from tests.servers.plain_http import NO_CERTIFICATES

T = TypeVar("T")
TIMEOUT = 20.0
STORES = {"sqlite": "sqlite:///{}/qo.db", "bucket": "file://{}/bucket?layout=one", "log": "file://{}/bucket?layout=log"}
EVERY_STORE = pytest.mark.parametrize("engine", STORES, indirect=True)


class Served:
    """`client` speaks HTTP to the server; `run` awaits a call of `qo_client` on its loop."""

    def __init__(self, client: Client, url: str, loop: asyncio.AbstractEventLoop, app: Litestar) -> None:
        self.qo_client, self.url, self._loop, self.app = client, url, loop, app
        self.client = httpx.Client(base_url=url, timeout=TIMEOUT, verify=NO_CERTIFICATES)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    def post(self, path: str, body: object | None = None, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **more) if body is not None else self.client.post(path, **more)

    # --- what workers do

    def take(self, type: str | None = None) -> Any:
        (task,) = self.run(self.qo_client.dequeue(type))
        return task

    def complete(self, result: object = None, type: str | None = None) -> str:
        task = self.take(type)
        self.run(self.qo_client.ack(task, result))
        return str(task.id)

    def break_down(self, error: str = "boom", type: str | None = None, *, delay: float = 0.0) -> str:
        task = self.take(type)
        self.run(self.qo_client.nack(task, error, delay=delay))
        return str(task.id)


@contextlib.asynccontextmanager
async def in_process(
    client: Client, settings: WebSettings | None = None, *, on_outdated: Callable[[NewerFormat], None] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """The whole application, called without a socket or a thread."""
    app = create_app(client, settings=settings, on_outdated=on_outdated)
    async with app.lifespan():
        transport = httpx.ASGITransport(app=cast("Any", app), client=("127.0.0.1", 1), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=TIMEOUT) as http:
            yield http


@contextlib.contextmanager
def served(engine: Engine, settings: WebSettings | None = None, *, clock: Clock = system_clock) -> Iterator[Served]:
    client = Client(engine, clock=clock)
    loop = asyncio.new_event_loop()
    app = create_app(client, settings=settings, clock=clock)
    # Its protocol named: only then does asyncio turn Nagle's algorithm off, which costs 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.bind(("127.0.0.1", 0))
        limits = (settings or WebSettings()).limits
        config = server_config(
            app, limits, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(sockets=[sock]),), daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started, "the server did not start"
        made = Served(client, f"http://127.0.0.1:{sock.getsockname()[1]}", loop, app)
        try:
            yield made
        finally:
            made.client.close()
            server.should_exit = True
            thread.join(TIMEOUT)
            loop.close()


def eventually(is_so: Callable[[], object]) -> None:
    """Wait until something in another thread is so."""
    wait_until(is_so)
