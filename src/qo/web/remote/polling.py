"""Polls: which tasks a worker receives, under which lease, and how long a poll waits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256

from msgspec.structs import replace

from qo import notes
from qo.clock import boot_clock, system_clock
from qo.codec import json_text
from qo.engine import Engine
from qo.errors import Conflict, InvalidTask, StorageError
from qo.fleet_limits.declared import read_declared
from qo.fleet_limits.limit_gate import LimitGate
from qo.fleet_limits.rules import LimitRules
from qo.ids import new_token
from qo.model import ClaimRequest, Filter, Status, Task, check_names, check_number, plural, release
from qo.notes import Controls
from qo.store_time import StoreTime
from qo.web.callers import AccessLimits
from qo.web.http.byte_budget import claim_within
from qo.web.remote.messages import LEASE, Poll, PolledTask
from qo.web.remote.worker_registry import WorkerSession, check_capacity

log = logging.getLogger("qo.web")

MAX_TASKS = 1000
MAX_WAIT = 25.0  # seconds
_CONTROLS_AGE = 1.0  # seconds for which a read of the controls is reused
_REQUEST_ID = range(16, 129)  # allowed lengths; the lease id is derived from it and must not be guessable


class TaskPolling:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._control = Controls()
        self._read_at = float("-inf")
        self._time = StoreTime(engine, system_clock)
        self.gate = LimitGate(engine, clock=boot_clock, store_time=self._time, starts_at_once=True)

    async def poll(
        self, session: WorkerSession, asked: Poll, limits: AccessLimits, check_caller: Callable[[], Awaitable[None]]
    ) -> list[Task]:
        """Tasks inside the limits of the caller. `check_caller` runs after every wait and raises to end the poll."""
        request, until = self._check(session, asked, limits), boot_clock() + min(asked.wait, MAX_WAIT)
        while True:
            allowed = await self._allowed(session, request)
            tasks = await self._admit(await self._claim(allowed)) if allowed else []
            left = until - boot_clock()
            if tasks or left <= 0:
                for task in tasks:
                    session.rates.started(task.type)
                return tasks
            if allowed:
                await self._engine.wait(allowed, self.gate.next_request_in(left))
            else:
                await asyncio.sleep(
                    self.gate.next_request_in(min(left, _CONTROLS_AGE))
                )  # paused or rate limited: read the controls again
            await check_caller()

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await claim_within(self._engine, request)
        self.gate.turns.claimed(len(tasks), request.limit)  # each poll is for another worker: no tasks are held
        return tasks

    async def _admit(self, tasks: list[Task]) -> list[Task]:
        """The tasks that the fleet limits allow to start, at the time when the last of them may start."""
        if self.gate.is_idle or not tasks:
            return tasks
        try:
            admitted = await self.gate.admit(tasks)
            last = max((admission.start_at for admission in admitted.values()), default=float("-inf"))
            await asyncio.sleep(max(0.0, self.gate.seconds_until(last)))
        except BaseException:
            await self.release(tasks)
            raise
        in_time = {id for id, admission in admitted.items() if self.gate.seconds_until(admission.start_by) >= 0}
        if back := [task for task in tasks if task.id not in in_time]:
            await self.release(back, are_refused=True)
        return [task for task in tasks if task.id in in_time]

    async def release(self, tasks: list[Task], *, are_refused: bool = False) -> None:
        """Release tasks whose response cannot be sent, or which the fleet limits refuse. This uses up no retries.

        If the store is unreachable, their leases expire.
        """
        changes = [release(task, self.gate.refusal_delay(task) if are_refused else None) for task in tasks]
        try:
            await self._engine.apply(changes)
        except (StorageError, Conflict) as error:
            log.warning("cannot release %s of a failed poll before the lease expires: %s", plural(len(tasks)), error)
        else:
            self.gate.ended(tasks)

    def _check(self, session: WorkerSession, asked: Poll, limits: AccessLimits) -> ClaimRequest:
        check_number("wait", asked.wait)
        note = session.note
        where = limits.narrow(Filter(queues=note.queues, types=note.types))  # others can write to the note
        if where is None:
            raise InvalidTask("worker_id", "was registered for none of the queues and types of this token")
        given = note.capabilities if asked.capabilities is None else check_names("capabilities", asked.capabilities)
        return ClaimRequest(
            worker_id=note.worker_id,
            lease_id=lease_of(note.worker_id, asked.request_id),
            queues=where.queues,
            types=where.types,
            capabilities=frozenset(given),
            limit=min(check_capacity("available_capacity", asked.available_capacity), MAX_TASKS),
            lease=LEASE,
            is_repeat=asked.request_id is not None,
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
        return await self._narrow(
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

    async def _narrow(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request without the groups and types that the fleet limits exclude."""
        await self.gate.refresh()
        narrowed = self.gate.narrow(request)
        if narrowed is None or narrowed.queues or not (full := self.gate.full_queues):
            return narrowed
        waiting = {lane.queue for lane in await self._engine.count() if lane.status is Status.PENDING}
        return replace(narrowed, queues=tuple(sorted(waiting - full))) if waiting - full else None

    async def should_drain(self, session: WorkerSession) -> bool:
        """Whether the worker was asked to drain."""
        return session.note.worker_id in (await self._controls()).draining

    async def _controls(self) -> Controls:
        now = boot_clock()
        if now - self._read_at >= _CONTROLS_AGE:
            await self._time.update()
            self._control = await notes.read_or(self._engine, notes.CONTROL, Controls, self._control)
            declared = await read_declared(self._engine)
            self.gate.set_rules(LimitRules(declared.types, self._control.limits), declared.fair)
            self._read_at = now
        return self._control


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
