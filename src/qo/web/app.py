"""The application: one open queue behind every route."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from litestar import Litestar, Router
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.types import Receive, Scope, Send

from qo.client import Client, Settings, connect
from qo.clock import Clock, system_clock
from qo.errors import NewerFormat, QoError
from qo.ids import new_worker_id
from qo.monitor import Monitor
from qo.web import docs, health, metrics, pages, worker_routes
from qo.web.access import admit
from qo.web.action_recorder import recorder_of
from qo.web.dashboard_api.router import router as board_router
from qo.web.edge import Edge
from qo.web.json_body import StrictRequest
from qo.web.management.router import router as management_router
from qo.web.oidc.routes import router as auth_router
from qo.web.problems import of_bugs, of_http, of_ours
from qo.web.server import Server, new_server
from qo.web.settings import WebSettings
from qo.web.v1.router import router as v1_router

log = logging.getLogger("qo.web")


class WebApp(Litestar):
    """A Litestar application behind its edge, which also sees what no route answers."""

    edge: Edge
    files: pages.Files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        if scope["type"] == ScopeType.HTTP:
            await self.edge(scope, receive, send, self._answer)
        else:
            await super().__call__(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and (asset := self.files.find(scope)) is not None:
            await self.files.send(asset, scope, send)
        elif scope["type"] == ScopeType.HTTP:
            await recorder_of(self.state)(scope, receive, send, super().__call__)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    queue_or_url: Client | str, *, settings: WebSettings | None = None, clock: Clock = system_clock
) -> Litestar:
    """An ASGI application over a queue. It opens the queue when it starts and closes it when it ends."""
    settings = settings or WebSettings()
    if isinstance(queue_or_url, str):
        queue_or_url = connect(queue_or_url, Settings(ageing=settings.ageing))
    server = new_server(queue_or_url, settings, clock)
    app = WebApp(
        route_handlers=routers(),
        state=server.state(),
        lifespan=[lambda _: running(server)],
        request_class=StrictRequest,
        request_max_body_size=settings.body_limit,
        before_request=admit,
        exception_handlers={QoError: of_ours, HTTPException: of_http, Exception: of_bugs},
        openapi_config=docs.description(),
        logging_config=None,
        debug=False,
    )
    app.edge, app.files = Edge(settings, server.in_flight), pages.Files(has_login=settings.oidc is not None)
    return app


def routers() -> list[Router]:
    return [
        v1_router,
        board_router,
        management_router,
        worker_routes.router,
        metrics.router,
        health.router,
        docs.router,
        pages.router,
        auth_router,
    ]


@contextlib.asynccontextmanager
async def running(server: Server) -> AsyncIterator[None]:
    """What goes on beside the requests."""
    async with server.queue:
        tasks = [
            _start(server.ticker.run(), "the ticker"),
            _start(server.views.whole.sampler.run(), "the sampler"),
            _start(server.feed.run(), "the feed"),
            _start(server.in_flight.run(), "the time limit of requests"),
            _start(server.metrics.start(), "the first look at the statistics"),
            _start(server.gate.uses.run(), "the recorder of when tokens were used"),
        ]
        monitor = _monitor(server)
        if monitor is not None:
            watching = _start(monitor.run(), "the monitor")
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
            await server.gate.uses.flush()
            server.time_limits.close()
            await server.action_recorder.close()


def _monitor(server: Server) -> Monitor | None:
    if server.settings.monitor is None:
        return None
    return Monitor(server.queue, server.settings.monitor, id=new_worker_id("serve"), clock=server.clock)


def _start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell_broken)
    return task


def _tell_broken(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        trace = None if isinstance(error, NewerFormat) else error
        log.error("%s failed; the server continues without it: %s", task.get_name(), error, exc_info=trace)
