"""Why a task waits, as far as the caller may know it."""

from typing import Any

from litestar import Request
from msgspec import Struct

from qo.explanation import WaitReason, explain, explain_task
from qo.fleet_limits.limit_status import reasons_to_wait
from qo.handled_types import read_consumers
from qo.model import PendingKind, Task
from qo.web.http.access import caller_of
from qo.web.http.server import server_of
from qo.web.http.visibility import visible_workers


class ExplanationView(Struct, frozen=True, kw_only=True):
    """Why a task waits, the most important reason first. A reason is blocking if the task does not start before it is
    gone. `pending_kind` is null for a task that does not wait."""

    task_id: str
    pending_kind: PendingKind | None
    reasons: list[WaitReason]


async def explanation_of(request: Request[Any, Any, Any], task: Task) -> ExplanationView:
    """A limited token learns only about workers it can see, and not how many tasks are ahead."""
    server = server_of(request)
    engine, now, dead_after = server.client.engine, server.clock(), server.settings.dead_after
    if caller_of(request).limits.is_whole:
        found = await explain_task(engine, task, now, dead_after=dead_after)
    else:
        controls = await server.client.controls.in_force()
        found = explain(
            task,
            now,
            controls=controls,
            limits=await reasons_to_wait(engine, task, controls, now),
            workers=await visible_workers(request),
            consumers=await read_consumers(engine),
            dead_after=dead_after,
        )
    return ExplanationView(task_id=task.id, pending_kind=found.kind, reasons=list(found.reasons))
