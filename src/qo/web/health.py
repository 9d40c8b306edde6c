"""`/healthz`, `/readyz` and `/metrics`: for load balancers, orchestrators and Prometheus."""

import asyncio
from typing import Any

from litestar import Request, Response, Router, get
from litestar.openapi import ResponseSpec
from msgspec import Struct
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from qo import notes
from qo.client import Client
from qo.clock import boot_clock
from qo.errors import StorageError
from qo.web.http.access import PUBLIC, READ
from qo.web.stats.server_metrics import metrics_of

TICK_INTERVAL = 0.5  # seconds
MAX_DELAY = 5.0  # seconds without a tick after which the event loop counts as blocked
STORE_TIMEOUT = 1.0  # seconds


class Health(Struct, frozen=True):
    ok: bool
    reason: str = ""


class Ticker:
    """Measures whether the event loop runs."""

    def __init__(self) -> None:
        self._ticked_at = boot_clock()

    async def run(self) -> None:
        while True:
            self._ticked_at = boot_clock()
            await asyncio.sleep(TICK_INTERVAL)

    def health(self) -> Health:
        delay = boot_clock() - self._ticked_at
        if delay < MAX_DELAY:
            return Health(ok=True)
        return Health(ok=False, reason=f"the event loop was blocked for {delay:.1f} s")


async def readiness(client: Client) -> Health:
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            await client.engine.read_note(notes.CONTROL)
    except TimeoutError:
        return Health(ok=False, reason=f"the store did not answer within {STORE_TIMEOUT:g} s")
    except StorageError:
        return Health(ok=False, reason="the store is unreachable")
    return Health(ok=True)


_UNHEALTHY = {503: ResponseSpec(Health, generate_examples=False, description="The check failed; see `reason`.")}


def _response(health: Health) -> Response[Health]:
    return Response(health, status_code=200 if health.ok else 503)


@get("/healthz", opt=PUBLIC, responses=_UNHEALTHY)
async def healthz(request: Request[Any, Any, Any]) -> Response[Health]:
    """Whether the event loop of the server runs."""
    ticker: Ticker = request.app.state.ticker
    return _response(ticker.health())


@get("/readyz", opt=PUBLIC, responses=_UNHEALTHY)
async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
    """Whether the store answers a small read within a second."""
    client: Client = request.app.state.client
    return _response(await readiness(client))


@get("/metrics", opt=READ, media_type="text/plain")
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Metrics in the format of Prometheus. 503 if the store is unreachable."""
    shown = metrics_of(request.app.state)
    await shown.refresh()
    return Response(generate_latest(shown.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


router = Router(path="/", route_handlers=[healthz, readyz, metrics], tags=["health"])
