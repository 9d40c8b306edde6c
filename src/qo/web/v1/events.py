"""Live updates, for pages."""

from typing import Any

from litestar import Request, get
from litestar.response import Stream

from qo.web.access import LIMITED, READ, caller_of
from qo.web.in_flight import STREAM
from qo.web.problems import problems
from qo.web.server import server_of


@get("/events", opt=READ | LIMITED, responses=problems(), media_type="text/event-stream")
async def listen(request: Request[Any, Any, Any]) -> Stream:
    """Server-sent events: `counts` (tasks by status) and `tasks` (those that changed), about every second.

    The stream ends when its token is revoked or has expired."""
    request.scope[STREAM] = True  # type: ignore[literal-required]  # so it has no time limit
    # nginx would otherwise collect events in a buffer before it passes them on.
    headers = {"X-Accel-Buffering": "no"}
    return Stream(server_of(request).feed.listen(caller_of(request)), media_type="text/event-stream", headers=headers)
