"""Pending tasks of types that no worker has ever registered.

They stay pending. A worker claims only types it has handlers for, so these tasks block nothing. The worker warns about
them, and fails them only if `fail_unknown_types` is set.
"""

import asyncio
import logging
from collections import Counter

from qo.clock import Clock
from qo.engine import Engine
from qo.model import MAX_NAMES, Filter, Status, Task, cursor, reject
from qo.notes import KNOWN_TYPES, KnownTypes, read_or
from qo.store_time import StoreTime
from qo.transitions import Transitions
from qo.worker.controls import ClaimScope, ControlsReader
from qo.worker.registration import Registration
from qo.worker.store_calls import StoreCalls, idle_interval

log = logging.getLogger("qo.worker")
_WARNING_INTERVAL = 60.0  # seconds
_CHECK_INTERVAL = 5.0  # seconds between two checks, where they are cheap
_MAX_CHECK_INTERVAL = 300.0  # seconds, where they are expensive and no type is unknown
_MIN_CHECK_INTERVAL = 0.75  # seconds, for a worker that is to fail such tasks soon
_PAGE_SIZE = 500
_MARGIN = 1.0  # seconds of tolerated clock difference
_MAX_SHOWN = 10  # types named in one warning


class UnknownTypes:
    def __init__(
        self,
        engine: Engine,
        scope: ClaimScope,
        registration: Registration,
        transitions: Transitions,
        *,
        fail_after: float | None,
        clock: Clock,
        store_time: StoreTime,
    ) -> None:
        self._engine, self._scope, self._registration, self._transitions = engine, scope, registration, transitions
        self._fail_after, self._clock, self._store_time = fail_after, clock, store_time
        self._pending: Counter[str] = Counter()  # as of the last check
        self._warned_at = float("-inf")

    async def check_regularly(self, controls: ControlsReader, calls: StoreCalls) -> None:
        """Check until cancelled. Pauses are applied first, because tasks of a paused type are left alone."""
        while True:
            began = self._clock()
            if controls.is_stale:
                await controls.read()
            await calls.attempt(self.check)
            await asyncio.sleep(self.pause(self._clock() - began))

    async def fail_overdue(self) -> None:
        """Check now if such tasks are to be failed."""
        if self._fail_after is not None:
            await self.check()

    async def check(self) -> int:
        """Warn about such tasks, at most once a minute, or fail those that have been due for `fail_after` seconds.

        Returns the number of failed tasks.
        """
        before, self._pending = self._pending, await self._count()
        if self._fail_after is not None:
            return await self._fail(self._fail_after)
        # A type is warned about once two checks have found it: workers that start together register one by one.
        lasting = Counter({type: number for type, number in self._pending.items() if type in before})
        if lasting and self._clock() - self._warned_at >= _WARNING_INTERVAL:
            self._warned_at = self._clock()
            log.warning(
                "%d pending tasks are of types that no worker has a handler for: %s. They wait until a worker with a"
                " handler starts; cancel them with qo cancel, or start a worker with --fail-unknown-types",
                lasting.total(),
                _shown(lasting),
                extra={"unknown_types": dict(lasting.most_common(_MAX_SHOWN))},
            )
        return 0

    def pause(self, took: float) -> float:
        """Seconds until the next check, given how many seconds the last one took."""
        if self._fail_after is not None:
            longest = max(_MIN_CHECK_INTERVAL, min(self._fail_after, _WARNING_INTERVAL))
            return idle_interval(took, _MIN_CHECK_INTERVAL, longest if self._pending else _MAX_CHECK_INTERVAL)
        if self._pending and self._warned_at == float("-inf"):  # the first warning comes soon
            return _CHECK_INTERVAL
        return idle_interval(took, _CHECK_INTERVAL, _WARNING_INTERVAL if self._pending else _MAX_CHECK_INTERVAL)

    async def _count(self) -> Counter[str]:
        """Pending tasks of unknown types in this worker's queues, by type."""
        pending: Counter[str] = Counter()
        for lane, number in (await self._engine.count()).items():
            if number > 0 and lane.status is Status.PENDING and self._scope.lacks_handler(lane.queue, lane.type):
                pending[lane.type] += number
        if pending:
            for type in await self._known(frozenset(pending)):
                del pending[type]
        return pending

    async def _known(self, types: frozenset[str]) -> frozenset[str]:
        """Those of these types that a worker has registered; all if the note is damaged, so that no task fails."""
        return (await read_or(self._engine, KNOWN_TYPES, KnownTypes, KnownTypes(types=types))).types & types

    async def _fail(self, after: float) -> int:
        """Fail the tasks that have been due for `after` seconds."""
        failed, types = 0, sorted(self._pending)
        if types:
            await self._store_time.look()
        created_before = self._store_time() - after + _MARGIN  # a younger task cannot have been due for `after` seconds
        for start in range(0, len(types), MAX_NAMES):
            where = Filter(statuses=(Status.PENDING,), types=tuple(types[start : start + MAX_NAMES]))
            position = ""
            while page := await self._engine.find_without_values(
                where, limit=_PAGE_SIZE, after=position, created_before=created_before
            ):
                due = [task for task in page if self._is_overdue(task, after)]
                known = await self._known(frozenset(task.type for task in due)) if due else frozenset()
                failed += await self._reject(
                    [task for task in due if task.type not in known]
                )  # one may start meanwhile
                position = cursor(page[-1])
        return failed

    def _is_overdue(self, task: Task, after: float) -> bool:
        return self._scope.lacks_handler(task.queue, task.type) and self._store_time() - task.due_at >= after

    async def _reject(self, tasks: list[Task]) -> int:
        changes = [reject(task, f"unknown type {task.type!r}: no worker has a handler for it") for task in tasks]
        answers = await self._engine.apply(changes) if changes else []
        landed = [pair for pair, answer in zip(zip(tasks, changes, strict=True), answers, strict=True) if answer]
        for task, change in landed:
            self._transitions.settled(task, change)
        self._registration.failed += len(landed)
        return len(landed)


def _shown(pending: Counter[str]) -> str:
    shown = ", ".join(f"{type} ({number:,})" for type, number in pending.most_common(_MAX_SHOWN))
    more = len(pending) - _MAX_SHOWN
    return shown if more <= 0 else f"{shown} and {more:,} more types"
