"""The ASGI application: all routes over one client, and the background tasks of the server."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.openapi.spec import OpenAPI
from litestar.types import Receive, Scope, Send

from qo.client import Client, Settings, connect
from qo.clock import Clock, system_clock
from qo.errors import NewerFormat, QoError
from qo.ids import new_worker_id
from qo.monitor import Monitor
from qo.web import health, pages
from qo.web.dashboard_api.router import router as dashboard_router
from qo.web.http import openapi
from qo.web.http.access import admit
from qo.web.http.action_recorder import recorder_of
from qo.web.http.edge import Edge
from qo.web.http.problems import Problem, of_bugs, of_http, of_ours
from qo.web.http.request import StrictRequest
from qo.web.http.server import Server, new_server
from qo.web.http.settings import WebSettings
from qo.web.management.read import RetryCounts
from qo.web.management.router import router as management_router
from qo.web.oidc.routes import router as auth_router
from qo.web.remote.routes import router as remote_router
from qo.web.remote.worker_leases import TimeLimits
from qo.web.v1.events import Feed
from qo.web.v1.router import router as v1_router

log = logging.getLogger("qo.web")

OnOutdated = Callable[[NewerFormat], None]


class ApiParts(NamedTuple):
    """State of single APIs, stored in the application's state under these names."""

    feed: Feed
    ticker: health.Ticker
    time_limits: TimeLimits
    retry_counts: RetryCounts


class WebApp(Litestar):
    """The state and the lifespan of one server, behind `Edge`, which also sees requests without a route.

    It has no routes of its own: all servers of a process share those of one application.
    """

    edge: Edge
    files: pages.Files
    shared: Litestar

    @property
    def openapi_schema(self) -> OpenAPI:
        return self.shared.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        if scope["type"] == ScopeType.HTTP:
            await self.edge(scope, receive, send, self._answer)
        else:
            await super().__call__(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and (asset := self.files.find(scope)) is not None:
            await self.files.send(asset, scope, send)
        elif scope["type"] == ScopeType.HTTP:
            await recorder_of(self.state)(scope, receive, send, self._route)
        else:
            await super().__call__(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = scope["litestar_app"] = self
        scope.setdefault("state", {})
        await self.shared.asgi_handler(scope, receive, send)


def create_app(
    client_or_url: Client | str,
    *,
    settings: WebSettings | None = None,
    clock: Clock = system_clock,
    on_outdated: OnOutdated | None = None,
) -> Litestar:
    """An ASGI application over a store. It opens the client at startup and closes it at shutdown.

    `on_outdated` is called when a newer qo has upgraded the store, perhaps several times. Without it the application
    continues: it answers 503 and its monitor has ended.
    """
    settings = settings or WebSettings()
    if isinstance(client_or_url, str):
        client_or_url = connect(client_or_url, Settings(ageing=settings.ageing))
    server = new_server(client_or_url, settings, clock)
    parts = ApiParts(
        feed=Feed(server.client.engine, server.gate.is_admitted, max_listeners=settings.listeners),
        ticker=health.Ticker(),
        time_limits=TimeLimits(server.client),
        retry_counts=RetryCounts(server.client.engine),
    )
    app = WebApp(
        state=State(
            server.state().dict()
            | parts._asdict()
            | {"on_outdated": on_outdated, "openapi_document": lambda: _openapi_document(settings.body_limit)}
        ),
        lifespan=[lambda _: running(server, parts, on_outdated)],
        request_class=StrictRequest,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    app.edge, app.files = Edge(settings, server.in_flight), pages.Files(has_login=settings.oidc is not None)
    app.shared = _routes(settings.body_limit)
    app.routes = app.shared.routes
    return app


@lru_cache(maxsize=8)
def _routes(body_limit: int) -> Litestar:
    """An application with all routes and no state. Registering the routes takes Litestar 100 ms."""
    return Litestar(
        route_handlers=routers(),
        request_class=StrictRequest,
        request_max_body_size=body_limit,
        before_request=admit,
        exception_handlers={QoError: _of_ours, HTTPException: of_http, Exception: of_bugs},
        openapi_config=openapi.description(),
        logging_config=None,
        debug=False,
    )


@lru_cache(maxsize=8)
def _openapi_document(body_limit: int) -> bytes:
    """The description of the routes. Building it blocks the event loop for 100 ms, and needs no token."""
    return msgspec.json.encode(_routes(body_limit).openapi_schema.to_schema())


def _of_ours(request: Request[Any, Any, Any], error: QoError) -> Response[Problem]:
    on_outdated: OnOutdated | None = request.app.state.on_outdated
    if isinstance(error, NewerFormat) and on_outdated is not None:
        on_outdated(error)
    return of_ours(request, error)


def routers() -> list[Router]:
    return [
        v1_router,
        dashboard_router,
        management_router,
        remote_router,
        health.router,
        openapi.router,
        pages.router,
        auth_router,
    ]


@contextlib.asynccontextmanager
async def running(server: Server, parts: ApiParts, on_outdated: OnOutdated | None = None) -> AsyncIterator[None]:
    """Runs the background tasks of the server."""
    async with server.client:
        tasks = [
            _start(parts.ticker.run(), "the check of the event loop"),
            _start(server.views.whole.sampler.run(), "the sampler"),
            _start(parts.feed.run(), "the feed"),
            _start(server.in_flight.run(), "the time limit of requests"),
            _start(server.metrics.start(), "the first read of the statistics"),
            _start(server.gate.uses.run(), "the recorder of token uses"),
        ]
        monitor = _monitor(server)
        if monitor is not None:
            watching = _start(monitor.run(), "the monitor", on_outdated)
        try:
            yield
        finally:
            if monitor is not None:
                monitor.stop()
                await asyncio.wait([watching])
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await server.views.finish()
            await server.recent_stats.finish()
            await server.gate.finish()
            await server.batches.close()
            await server.gate.uses.flush()
            parts.time_limits.close()
            await server.action_recorder.close()


def _monitor(server: Server) -> Monitor | None:
    if server.settings.monitor is None:
        return None
    return Monitor(server.client, server.settings.monitor, id=new_worker_id("serve"), clock=server.clock)


def _start(work: Coroutine[Any, Any, None], name: str, on_outdated: OnOutdated | None = None) -> asyncio.Task[None]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(partial(_report_failure, on_outdated))
    return task


def _report_failure(on_outdated: OnOutdated | None, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, NewerFormat) and on_outdated is not None:
        on_outdated(error)
    elif error is not None:
        trace = None if isinstance(error, NewerFormat) else error
        log.error("%s failed; the server continues without it: %s", task.get_name(), error, exc_info=trace)
