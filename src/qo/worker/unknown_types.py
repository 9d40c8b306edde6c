"""Pending tasks of types that nothing handles: no live worker, and no client that dequeues.

They stay pending. A worker claims only types it has handlers for, so these tasks block nothing. The worker warns about
them. If `fail_unknown_types` is set, it fails those of types that were never registered.
"""

import asyncio
import logging
from collections import Counter

from qo.clock import Clock
from qo.engine import Engine, find_pages
from qo.handled_types import find_unhandled
from qo.model import MAX_NAMES, Filter, Status, Task, plural, reject
from qo.notes import KNOWN_TYPES, KnownTypes, read_or
from qo.store_time import StoreTime
from qo.transitions import Transitions
from qo.worker.controls import ClaimScope, ControlsReader
from qo.worker.registration import Registration
from qo.worker.waits import StoreCalls, idle_interval

log = logging.getLogger("qo.worker")
_WARNING_INTERVAL = 60.0  # seconds
_CHECK_INTERVAL = 5.0  # seconds between two checks, where they are cheap
_MAX_CHECK_INTERVAL = 300.0  # seconds, where they are expensive and every type is handled
_MIN_CHECK_INTERVAL = 0.75  # seconds, for a worker that is to fail such tasks soon
_PAGE_SIZE = 500
_MARGIN = 1.0  # seconds of tolerated clock difference
_MAX_SHOWN = 10  # types named in one warning


class UnknownTypes:
    """Acts on a type only after two consecutive checks have found it: workers that start together register one by one.

    Checks within `_MIN_CHECK_INTERVAL` count as one.
    """

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
        self._found_at: dict[str, float] = {}  # types that every check since then has found
        self._checked_at = float("-inf")
        self._lanes: frozenset[tuple[str, str]] = frozenset()  # queues and types that the last check has found
        self._unknown: frozenset[str] = frozenset()  # of these, the ones that were never registered, if they are failed
        self._warned_at = float("-inf")
        self._checking = asyncio.Lock()  # a drain checks concurrently with `check_regularly`

    async def check_regularly(self, controls: ControlsReader, calls: StoreCalls) -> None:
        """Check until cancelled. Pauses are applied first, because tasks of a paused type are left alone."""
        while True:
            began = self._clock()
            if controls.is_stale:
                await controls.read()
            await calls.attempt(self.check)
            await asyncio.sleep(self.pause(self._clock() - began))

    async def check(self) -> int:
        """Warn about such tasks, at most once a minute, and fail those that have been due for `fail_after` seconds.

        Returns the number of failed tasks.
        """
        async with self._checking:
            return await self._check()

    async def _check(self) -> int:
        pending, now = await self._count(), self._clock()
        self._checked_at = now
        self._found_at = {type: self._found_at.get(type, now) for type in pending}
        lasting = Counter({type: number for type, number in pending.items() if self._is_lasting(type, now)})
        failed = 0
        if self._fail_after is not None:
            self._unknown = frozenset(pending) - await self._known(frozenset(pending))
            types = sorted(self._unknown & lasting.keys())
            failed = await self._fail(types, self._fail_after)
            for type in types:
                del lasting[type]
        self._warn(lasting)
        return failed

    def _is_lasting(self, type: str, now: float) -> bool:
        return now - self._found_at[type] >= _MIN_CHECK_INTERVAL

    def _warn(self, pending: Counter[str]) -> None:
        if not pending or self._clock() - self._warned_at < _WARNING_INTERVAL:
            return
        self._warned_at = self._clock()
        log.warning(
            "no running worker handles the types of %d pending %s: %s. Start a worker that handles them, cancel them"
            " with qo cancel, or start a worker with --fail-unknown-types to fail types that were never registered",
            pending.total(),
            "task" if pending.total() == 1 else "tasks",
            _shown(pending),
            extra={"unknown_types": dict(pending.most_common(_MAX_SHOWN))},
        )

    async def has_more_to_fail(self) -> bool:
        """Check, and return True if the next check may fail tasks of a type that this one was the first to find."""
        if self._fail_after is None:
            return False
        async with self._checking:
            await self._check()
            return any(not self._is_lasting(type, self._checked_at) for type in self._unknown)

    def pause(self, took: float) -> float:
        """Seconds until the next check, given how many seconds the last one took."""
        if self._fail_after is not None:
            longest = max(_MIN_CHECK_INTERVAL, min(self._fail_after, _WARNING_INTERVAL))
            return idle_interval(took, _MIN_CHECK_INTERVAL, longest if self._found_at else _MAX_CHECK_INTERVAL)
        if self._found_at and self._warned_at == float("-inf"):  # the first warning comes soon
            return _CHECK_INTERVAL
        return idle_interval(took, _CHECK_INTERVAL, _WARNING_INTERVAL if self._found_at else _MAX_CHECK_INTERVAL)

    async def _count(self) -> Counter[str]:
        """Pending tasks in this worker's queues that nothing handles, by type."""
        counts = {
            lane: number
            for lane, number in (await self._engine.count()).items()
            if self._scope.lacks_handler(lane.queue, lane.type)
        }
        unhandled = {}
        if any(number > 0 and lane.status is Status.PENDING for lane, number in counts.items()):
            await self._store_time.update()
            unhandled = await find_unhandled(self._engine, self._store_time(), counts=counts)
        self._lanes = frozenset(unhandled)
        pending: Counter[str] = Counter()
        for (_, type), number in unhandled.items():
            pending[type] += number
        return pending

    async def _known(self, types: frozenset[str]) -> frozenset[str]:
        """Those of these types that were registered; all if the note is damaged, so that no task fails."""
        if not types:
            return types
        return (await read_or(self._engine, KNOWN_TYPES, KnownTypes, KnownTypes(types=types))).types & types

    async def _fail(self, types: list[str], after: float) -> int:
        """Fail the tasks of these types that have been due for `after` seconds."""
        failed = 0
        created_before = self._store_time() - after + _MARGIN  # a younger task cannot have been due for `after` seconds
        for start in range(0, len(types), MAX_NAMES):
            where = Filter(statuses=(Status.PENDING,), types=tuple(types[start : start + MAX_NAMES]))
            async for page in find_pages(self._engine, where, page_size=_PAGE_SIZE, created_before=created_before):
                due = [task for task in page if self._is_overdue(task, after)]
                # A worker may have started in the meantime.
                known = await self._known(frozenset(task.type for task in due))
                failed += await self._reject([task for task in due if task.type not in known])
        return failed

    def _is_overdue(self, task: Task, after: float) -> bool:
        """The type may have been paused, or got a handler here, since the check began."""
        is_unhandled = (task.queue, task.type) in self._lanes and self._scope.lacks_handler(task.queue, task.type)
        return is_unhandled and self._store_time() - task.due_at >= after

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
    return shown if more <= 0 else f"{shown} and {plural(more, 'more type')}"
