"""Polls: which tasks a worker receives, under which lease, and how long a poll waits."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256

from qo.clock import boot_clock, system_clock
from qo.codec import json_text
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.fleet_limits.limited_claims import LimitedClaims
from qo.ids import new_token
from qo.model import ClaimRequest, Filter, Status, Task, check_names, check_number
from qo.notes import Controls
from qo.web.callers import AccessLimits
from qo.web.http.byte_budget import claim_within
from qo.web.remote.messages import LEASE, Poll, PolledTask
from qo.web.remote.worker_registry import WorkerSession, check_capacity

MAX_TASKS = 1000
MAX_WAIT = 25.0  # seconds
_CONTROLS_AGE = 1.0  # seconds for which a read of the controls is reused
_REQUEST_ID = range(16, 129)  # allowed lengths; the lease id is derived from it and must not be guessable


class TaskPolling:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.claims = LimitedClaims(engine, system_clock, partial(claim_within, engine))

    async def poll(
        self, session: WorkerSession, message: Poll, limits: AccessLimits, check_caller: Callable[[], Awaitable[None]]
    ) -> list[Task]:
        """Tasks inside the limits of the caller. `check_caller` runs after every wait and raises to end the poll."""
        request, until = self._check(session, message, limits), boot_clock() + min(message.wait, MAX_WAIT)
        while True:
            allowed = await self._allowed(session, request)
            tasks, _ = await self.claims.claim(allowed) if allowed else ([], False)
            left = until - boot_clock()
            if tasks or left <= 0:
                for task in tasks:
                    session.rates.started(task.type)
                return tasks
            if allowed:
                await self._engine.wait(allowed, self.claims.gate.next_request_in(left))
            else:
                await asyncio.sleep(
                    self.claims.gate.next_request_in(min(left, _CONTROLS_AGE))
                )  # paused or rate limited: read the controls again
            await check_caller()

    def _check(self, session: WorkerSession, message: Poll, limits: AccessLimits) -> ClaimRequest:
        check_number("wait", message.wait)
        note = session.note
        where = limits.narrow(Filter(queues=note.queues, types=note.types))  # others can write to the note
        if where is None:
            raise InvalidTask("worker_id", "was registered for none of the queues and types of this token")
        given = note.capabilities if message.capabilities is None else check_names("capabilities", message.capabilities)
        return ClaimRequest(
            worker_id=note.worker_id,
            lease_id=lease_of(note.worker_id, message.request_id),
            queues=where.queues,
            types=where.types,
            capabilities=frozenset(given),
            limit=min(check_capacity("available_capacity", message.available_capacity), MAX_TASKS),
            lease=LEASE,
            is_repeat=message.request_id is not None,
        )

    async def _allowed(self, session: WorkerSession, request: ClaimRequest) -> ClaimRequest | None:
        """The request restricted by the controls; None if the worker can claim nothing now."""
        control = await self._controls()
        session.rates.apply(control)
        limit = session.rates.total(request.limit)
        draining = session.note.status != "active" or session.note.worker_id in control.draining
        if control.paused or draining or limit <= 0:
            return None
        queues, types = request.queues, request.types
        if control.paused_queues or control.paused_types:  # a request cannot express "all except these"
            lanes = [lane for lane in await self._engine.count() if lane.status is Status.PENDING]
            queues = tuple(sorted((set(queues) or {lane.queue for lane in lanes}) - control.paused_queues))
            types = tuple(sorted((set(types) or {lane.type for lane in lanes}) - control.paused_types))
            if not queues or not types:
                return None
        return await self.claims.narrow(
            ClaimRequest(
                worker_id=request.worker_id,
                lease_id=request.lease_id,
                queues=queues,
                types=types,
                capabilities=request.capabilities,
                limit=limit,
                lease=request.lease,
                per_type_limits=session.rates.per_type_limits(),
                is_repeat=request.is_repeat,
            )
        )

    async def should_drain(self, session: WorkerSession) -> bool:
        """Whether the worker was asked to drain."""
        return session.note.worker_id in (await self._controls()).draining

    async def _controls(self) -> Controls:
        await self.claims.read_rules()
        return self.claims.controls


def lease_of(worker_id: str, request_id: str | None) -> str:
    """The lease id of a poll. It depends on the request id, so that a repeat finds the same tasks on any server."""
    if request_id is None:
        return new_token()
    if len(request_id) not in _REQUEST_ID:
        raise InvalidTask("request_id", "must be 16 to 128 random characters, new for every poll, such as a UUID")
    return sha256(f"{worker_id} {request_id}".encode(errors="surrogatepass")).hexdigest()[:32]


def polled_task(task: Task) -> PolledTask:
    return PolledTask(
        task_id=task.id,
        task_type=task.type,
        parameters=json_text(task.payload),
        timeout_seconds=task.time_limit,
        trace_id=task.trace_id or task.id,
        attempt=task.attempt,
        lease_token=task.lease_id or "",
        lease_seconds=LEASE,
    )
