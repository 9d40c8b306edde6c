"""Registers the schedules that a worker's code declares, when the worker starts and every ten minutes from then on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from qo import notes
from qo.clock import Clock
from qo.engine import Engine
from qo.schedules.decision import DECLARE_INTERVAL, declared
from qo.schedules.schedule import Schedule, ScheduleNote
from qo.schedules.schedule_notes import change_schedule, read_schedules
from qo.tasks import Registry
from qo.worker.store_calls import StoreCalls

log = logging.getLogger("qo.schedules")
_RETRY_INTERVAL = 60.0  # seconds until a definition that was left alone is declared again


class DeclaredSchedules:
    def __init__(self, engine: Engine, registry: Registry, clock: Clock, *, worker_id: str) -> None:
        self._engine, self._registry, self._clock, self._worker_id = engine, registry, clock, worker_id
        self._was_left_alone = False  # a newer deployment has another definition
        self._is_done = False
        self._warned: set[str] = set()  # schedules that are known to be switched off by another worker

    async def declare_regularly(self, calls: StoreCalls, announce: Callable[[], Awaitable[None]]) -> None:
        """Declare until cancelled. The worker is announced first, because others ask whether it is live."""
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
        """Warn if this worker has switched a schedule off, or another one has switched off a schedule of this code."""
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
