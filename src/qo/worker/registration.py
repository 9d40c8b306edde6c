"""Registers a worker, and the schedules that its code declares.

The worker's note holds its settings and counters. Every heartbeat rewrites it.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection
from functools import cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo import notes
from qo.clock import Clock
from qo.engine import Engine
from qo.ids import new_worker_id
from qo.model import ANY
from qo.schedules.decision import DECLARE_INTERVAL, declared
from qo.schedules.schedule import Schedule, ScheduleNote
from qo.schedules.schedule_notes import change_schedule, read_schedules
from qo.tasks import Registry
from qo.worker.settings import WorkerSettings
from qo.worker.waits import StoreCalls

MAX_TASKS_SHOWN = 100
log = logging.getLogger("qo.schedules")
_RETRY_INTERVAL = 60.0  # seconds until a definition that was skipped is declared again


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """The current state of a worker."""

    running: tuple[str, ...]  # ids of the tasks whose handlers run, whether or not their leases are still held
    waiting: int  # claimed tasks that have not started
    held: int  # claimed tasks whose outcome is not stored or whose handler has not ended
    leases: int  # of the held tasks, those whose lease is not known to be lost
    free_slots: int  # slots that no executor has taken for a task
    is_stopping: bool


class Registration:
    def __init__(self, engine: Engine, settings: WorkerSettings, types: tuple[str, ...], clock: Clock) -> None:
        self._engine, self._settings, self._types, self._clock = engine, settings, types, clock
        self._known: tuple[str, ...] | None = None
        self._types_changed = asyncio.Event()
        self.host = socket.gethostname()
        self.worker_id = settings.id or new_worker_id("".join(c for c in self.host if c.isalnum() or c in "-.") or "w")
        self._started_at: float | None = None
        self.status = "active"
        self.completed = self.failed = 0
        self._writing, self._has_left = asyncio.Lock(), False

    async def announce(self, status: WorkerStatus) -> None:
        """Write the note."""
        if self._started_at is None:
            self._started_at = self._clock()
        note = notes.WorkerNote(
            worker_id=self.worker_id,
            status=self.status,
            started_at=self._started_at,
            last_heartbeat=self._clock(),
            queues=self._settings.queues,
            types=self._types,
            capabilities=self._settings.capabilities,
            shards=self._settings.shards,
            capacity=self._settings.concurrency,
            current_load=len(status.running),
            current_tasks=status.running[:MAX_TASKS_SHOWN],
            waiting=status.waiting,
            tasks_completed=self.completed,
            tasks_failed=self.failed,
            host=self.host,
            pid=os.getpid(),
            version=_version(),
        )
        async with self._writing:
            if not self._has_left:
                await self._engine.write_note(notes.WORKERS + self.worker_id, msgspec.json.encode(note), expected=ANY)

    def set_types(self, types: tuple[str, ...]) -> None:
        self._types = types
        self._types_changed.set()

    async def register_types(self, calls: StoreCalls) -> None:
        """Make this worker's types known at the start and whenever they change, until cancelled."""
        while True:
            self._types_changed.clear()
            await calls.attempt(self.make_types_known)
            if self._known == self._types:
                await self._types_changed.wait()

    async def make_types_known(self) -> None:
        """Add this worker's types to the known ones, so that other workers do not report them as unknown."""
        types = self._types
        await notes.make_types_known(self._engine, types)
        self._known = types

    async def leave(self) -> None:
        async with self._writing:  # a heartbeat in progress would write the note again
            self._has_left = True
            await self._engine.drop_note(notes.WORKERS + self.worker_id)
        await self.clear_drain_request()

    async def clear_drain_request(self) -> None:
        """Remove a drain request for this worker's id. It was meant for the previous worker with that id."""
        control = await notes.read_or(self._engine, notes.CONTROL, notes.Controls, notes.Controls())
        if self.worker_id not in control.draining:
            return

        def without(now: notes.Controls) -> notes.Controls:
            return replace(now, draining=now.draining - {self.worker_id})

        await notes.change(self._engine, notes.CONTROL, notes.Controls, without)


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import, and few processes are workers

    try:
        return version("qo-queue")
    except PackageNotFoundError:  # run from a source tree
        return ""


class DeclaredSchedules:
    """Registers the schedules when the worker starts, and every ten minutes from then on."""

    def __init__(self, engine: Engine, registry: Registry, clock: Clock, *, worker_id: str) -> None:
        self._engine, self._registry, self._clock, self._worker_id = engine, registry, clock, worker_id
        self._was_left_alone = False  # a newer deployment has another definition
        self._is_done = False
        self._warned: set[str] = set()  # schedules known to be inactive because of another worker

    async def declare_regularly(self, calls: StoreCalls, announce: Callable[[], Awaitable[None]]) -> None:
        """Declare until cancelled. The worker is registered first, because other workers check whether it is live."""
        if self._registry.schedules:
            await announce()
        while True:
            self._is_done = False
            await calls.attempt(self.declare)
            if self._is_done:
                await asyncio.sleep(_RETRY_INTERVAL if self._was_left_alone else DECLARE_INTERVAL)

    async def declare(self) -> None:
        """Write the definitions of this worker's code, and mark those that its code no longer contains."""
        stored = {note.schedule.name: note for note in await read_schedules(self._engine)}
        wanted: dict[str, Schedule | None] = {
            name: None
            for name, note in stored.items()
            if note.source == "code" and self._registry.get(note.schedule.task.type) is not None
        }
        wanted |= self._registry.schedules
        self._was_left_alone = False
        if wanted:
            now = self._clock()
            live = {worker.worker_id for worker in await notes.workers(self._engine) if not notes.is_dead(worker, now)}
            for name, schedule in wanted.items():
                await self._declare(name, schedule, stored.get(name), live)
        self._is_done = True

    async def _declare(
        self, name: str, schedule: Schedule | None, stored: ScheduleNote | None, live: Collection[str]
    ) -> None:
        def after(note: ScheduleNote | None) -> ScheduleNote | None:
            is_live = note is not None and note.declared_by in live
            return declared(note, schedule, self._clock(), by=self._worker_id, is_declarer_live=is_live)

        before = stored
        if stored is None or after(stored) != stored:
            stored = await change_schedule(self._engine, name, after, replaces_damaged=True)
        self._warn(before, stored, schedule)
        if stored is not None and schedule != (None if stored.removed else stored.schedule):
            self._was_left_alone = True

    def _warn(self, before: ScheduleNote | None, after: ScheduleNote | None, schedule: Schedule | None) -> None:
        """Warn if this worker deactivated a schedule, or another worker deactivated a schedule of this code."""
        if after is None:
            return
        name, type_ = after.schedule.name, after.schedule.task.type
        if not after.removed:
            self._warned.discard(name)
        elif schedule is None and before is not None and not before.removed:
            log.warning(
                "schedule %s is inactive from now on: this worker handles %s, and its code does not have the schedule. "
                "If another program declares it, declare it in both, or let only one of them handle the type",
                name,
                type_,
            )
        elif schedule is not None and name not in self._warned:
            self._warned.add(name)
            log.warning(
                "schedule %s of this code is inactive: worker %s handles %s, and its code does not have the schedule",
                name,
                after.declared_by,
                type_,
            )
