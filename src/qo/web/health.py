"""Is the loop turning, does the store answer?"""

import asyncio
from typing import Any

from litestar import Request, Response, Router, get
from litestar.openapi import ResponseSpec
from msgspec import Struct

from qo import notes
from qo.client import Client
from qo.clock import boot_clock
from qo.errors import StorageError
from qo.web.access import PUBLIC

TICK = 0.5  # seconds
LATE = 5.0
PATIENCE = 1.0


class Health(Struct, frozen=True):
    ok: bool
    reason: str = ""


class Ticker:
    """A task that does nothing but note that the loop came round to it."""

    def __init__(self) -> None:
        self._ticked_at = boot_clock()

    async def run(self) -> None:
        while True:
            self._ticked_at = boot_clock()
            await asyncio.sleep(TICK)

    def health(self) -> Health:
        late = boot_clock() - self._ticked_at
        return (
            Health(ok=True) if late < LATE else Health(ok=False, reason=f"the event loop stood still for {late:.1f} s")
        )


async def readiness(queue: Client) -> Health:
    try:
        async with asyncio.timeout(PATIENCE):
            await queue.engine.read_note(notes.CONTROL)
    except TimeoutError:
        return Health(ok=False, reason=f"the store did not answer within {PATIENCE:g} s")
    except StorageError:
        return Health(ok=False, reason="the store is unreachable")
    return Health(ok=True)


_UNWELL = {503: ResponseSpec(Health, generate_examples=False, description="Not now.")}


def _answer(health: Health) -> Response[Health]:
    return Response(health, status_code=200 if health.ok else 503)


@get("/healthz", opt=PUBLIC, responses=_UNWELL)
async def healthz(request: Request[Any, Any, Any]) -> Response[Health]:
    """Whether the event loop turns."""
    ticker: Ticker = request.app.state.ticker
    return _answer(ticker.health())


@get("/readyz", opt=PUBLIC, responses=_UNWELL)
async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
    """Whether the store answers a small read within a second."""
    queue: Client = request.app.state.queue
    return _answer(await readiness(queue))


router = Router(path="/", route_handlers=[healthz, readyz], tags=["health"])
