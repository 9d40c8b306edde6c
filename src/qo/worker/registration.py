"""Registers a worker: a note with its settings and counters, rewritten with every heartbeat."""

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import cache

import msgspec
from msgspec.structs import replace

from qo import notes
from qo.clock import Clock
from qo.engine import Engine
from qo.ids import new_worker_id
from qo.model import ANY
from qo.worker.settings import WorkerSettings
from qo.worker.store_calls import StoreCalls

MAX_TASKS_SHOWN = 100


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

    async def announce(self, current: Sequence[str], *, waiting: int) -> None:
        """Write the note. `current` are the running tasks; `waiting` counts claimed ones that have not started."""
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
            current_load=len(current),
            current_tasks=tuple(current[:MAX_TASKS_SHOWN]),
            waiting=waiting,
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
        """Remove a drain request for this worker's id: it was meant for the previous worker of that id."""
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
