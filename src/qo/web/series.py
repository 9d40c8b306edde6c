"""Work done minute by minute, for an hour: what the samples saw grow, and before the first of them what tasks tell."""

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Filter, Status, Task

MINUTES = 60
MINUTE = 60.0
_READ = 1_000  # tasks of each kind asked about the time before we looked


class Minute(Struct, frozen=True, kw_only=True):
    at: float  # its beginning
    completed: int = 0
    failed: int = 0


class Series:
    def __init__(self) -> None:
        self._grown: dict[float, tuple[int, int]] = {}
        self._told: dict[float, tuple[int, int]] = {}
        self._since: float | None = None
        self._remembering: asyncio.Task[None] | None = None

    def grew(self, now: float, completed: int, failed: int) -> None:
        if self._since is None:
            self._since = now
        _add(self._grown, now, completed, failed)
        for old in [minute for minute in self._grown if minute < now - MINUTES * MINUTE]:
            del self._grown[old]

    def remember(self, engine: Engine, now: float) -> None:
        """The hour before the server started, once, when someone first looks; nobody waits for it."""
        if self._remembering is None:
            self._remembering = asyncio.create_task(self._read(engine, now))

    async def finish(self) -> None:
        if self._remembering is not None:
            self._remembering.cancel()
            await asyncio.wait([self._remembering])

    async def _read(self, engine: Engine, now: float) -> None:
        """Off the newest finished tasks."""
        kinds = [Filter(statuses=(status,)) for status in (Status.COMPLETED, Status.FAILED)]
        try:
            for tasks in [await engine.find(where, limit=_READ) for where in kinds]:
                self._hear(tasks, self._since or now)
        except StorageError:
            self._remembering = None  # the next look tries again

    def _hear(self, tasks: Iterable[Task], until: float) -> None:
        for task in tasks:
            if task.completed_at is not None and task.completed_at < until:
                failed = task.status is Status.FAILED
                _add(self._told, task.completed_at, int(not failed), int(failed))

    def minutes(self, now: float) -> list[Minute]:
        """The last hour, oldest first, without gaps."""
        last = _minute(now)
        made = []
        for back in range(MINUTES - 1, -1, -1):
            at = last - back * MINUTE
            (grown, failed), (told, told_failed) = self._grown.get(at, (0, 0)), self._told.get(at, (0, 0))
            made.append(Minute(at=at, completed=grown + told, failed=failed + told_failed))
        return made


def _minute(instant: float) -> float:
    return instant // MINUTE * MINUTE


def _add(minutes: dict[float, tuple[int, int]], instant: float, completed: int, failed: int) -> None:
    at = _minute(instant)
    before, before_failed = minutes.get(at, (0, 0))
    minutes[at] = (before + completed, before_failed + failed)
