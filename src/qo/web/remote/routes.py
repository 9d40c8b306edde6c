"""`/internal`: the worker protocol of docs/http.md for any language, and the engine port for native workers.

A worker registers, then polls, reports results and sends a heartbeat every 30 seconds. Every request can be repeated: a
poll with the same `request_id` returns the same leases, and a result is recorded once.
"""

from typing import Any

import msgspec
from litestar import Request, Response, Router, post
from litestar.datastructures import State
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.errors import LeaseLost, TaskNotFound
from qo.transitions import log_started
from qo.web.callers import Caller
from qo.web.http.access import CHECKED, HIDDEN, LIMITED, WORK, Gate, caller_of
from qo.web.http.problems import problems
from qo.web.http.request import StrictRequest
from qo.web.remote import messages
from qo.web.remote.engine import answers, engine_router
from qo.web.remote.polling import TaskPolling, lease_of, polled_task
from qo.web.remote.results import record, results_of
from qo.web.remote.worker_leases import TimeLimits, beat
from qo.web.remote.worker_registry import WorkerRegistry

BODY_LIMIT = 8 * 1024 * 1024  # bytes; results arrive in batches


class WorkerApi:
    """The state that this server keeps for workers over HTTP."""

    def __init__(self, client: Client, clock: Clock, limits: TimeLimits, gate: Gate | None) -> None:
        self.client, self.engine, self.limits = client, client.engine, limits
        self.registry = WorkerRegistry(client.engine, clock)
        self.polling = TaskPolling(client.engine)
        self._gate = gate

    async def check_still_admitted(self, caller: Caller) -> None:
        """After a wait: raises if the token of the caller was revoked or has expired."""
        if self._gate is not None:
            await self._gate.check_still_admitted(caller)


def worker_api_of(state: State) -> WorkerApi:
    """The state of the application, created for the first worker."""
    api: WorkerApi | None = state.get("worker_api")
    if api is None:
        limits = state.get("time_limits") or TimeLimits(state["client"], elapsed=state.get("elapsed") or boot_clock)
        api = state["worker_api"] = WorkerApi(
            state["client"], state.get("clock") or system_clock, limits, state.get("gate")
        )
    return api


@post("/register", opt=CHECKED, status_code=200, responses=problems(413, 415))
async def register(request: Request[Any, Any, Any], data: JSONBody[messages.Register]) -> messages.Registered:
    """Register a worker. Later requests use the returned `worker_id`."""
    session = await worker_api_of(request.app.state).registry.register(data, caller_of(request))
    return messages.Registered(worker_id=session.note.worker_id)


_POLLED = {200: ResponseSpec(messages.Polled, generate_examples=False, description="Tasks leased to this worker.")}


@post("/{worker_id:str}/poll", status_code=200, responses=problems(404, 413, 415) | _POLLED)
async def poll(
    request: Request[Any, Any, Any], worker_id: FromPath[str], data: JSONBody[messages.Poll]
) -> Response[bytes]:
    """Claim up to `available_capacity` tasks. A repeat with the same `request_id` returns the same tasks and leases."""
    api = worker_api_of(request.app.state)
    caller = caller_of(request)
    session = await api.registry.session(worker_id, caller)
    await api.registry.record_contact(session)

    async def work() -> bytes:
        tasks = await api.polling.poll(session, data, caller.limits, lambda: api.check_still_admitted(caller))
        try:
            await api.registry.make_known(tuple({task.type for task in tasks}), only_if_room=True)
            answer = msgspec.json.encode(messages.Polled(tasks=[polled_task(task) for task in tasks]))
        except BaseException:  # no worker has received these leases
            await api.polling.claims.release(tasks)
            raise
        api.limits.watch(tasks)
        for task in tasks:
            log_started(task)
        return answer

    if data.request_id is None:
        answer = await work()
    else:  # the same poll may still be waiting on a broken connection
        name = f"poll {lease_of(session.note.worker_id, data.request_id)}"
        answer, _ = await answers(request.app.state).once(name, work)
    return Response(answer, media_type="application/json", status_code=200)


@post("/{worker_id:str}/result", opt=HIDDEN, status_code=200, responses=problems(404, 409, 413, 415))
async def result(
    request: Request[Any, Any, Any], worker_id: FromPath[str], data: JSONBody[messages.Report]
) -> messages.Answered:
    """Report the result of a task, or of many under `results`. Each of them gets its own response."""
    api = worker_api_of(request.app.state)
    caller = caller_of(request)
    session = await api.registry.session(worker_id, caller)
    results = results_of(data)
    limit = api.client.payload_limit
    recorded, settled = await record(api.engine, session, results, caller, result_limit=limit)
    api.limits.forget(each.task.id for each in settled)
    api.polling.claims.gate.ended([each.task for each in settled])
    for each in settled:
        api.client.transitions.settled(each.task, each.change)
    if data.results is not None:
        return messages.Answered(results=recorded)
    (only,) = recorded
    if not only.acknowledged:
        raise (TaskNotFound if only.code == "not_found" else LeaseLost)(only.error)
    return messages.Answered(task_id=only.task_id, status=only.status, repeated=only.repeated)


@post("/{worker_id:str}/heartbeat", status_code=200, responses=problems(404, 413, 415))
async def heartbeat(
    request: Request[Any, Any, Any], worker_id: FromPath[str], data: JSONBody[messages.Heartbeat]
) -> messages.Acknowledged:
    """Renew the leases of the worker, within the timeouts of their tasks."""
    api = worker_api_of(request.app.state)
    session = await api.registry.session(worker_id, caller_of(request))
    lost = await beat(api.engine, api.registry, session, data, api.limits)
    return messages.Acknowledged(lost=lost, drain=await api.polling.should_drain(session))


workers_router = Router(
    path="/workers",
    route_handlers=[register, poll, result, heartbeat],
    request_class=StrictRequest,
    request_max_body_size=BODY_LIMIT,
    opt=WORK | LIMITED,
    tags=["workers"],
)
router = Router(path="/internal", route_handlers=[workers_router, engine_router])
