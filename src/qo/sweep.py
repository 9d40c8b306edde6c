"""Maintenance of a store: expiry of leases, and retention of finished tasks.

A lease expires at a time by the store's clock. If that clock is set ahead, all leases seem to have expired although
their workers are alive. If it is set back, the leases of dead workers last longer. LeaseExpiry corrects for both.
"""

import logging
from collections.abc import AsyncIterator
from math import inf
from typing import NamedTuple

from msgspec import Struct

from qo.clock import Clock
from qo.engine import Engine, find_pages
from qo.ids import random_fraction
from qo.model import EXPIRY_GRACE, WINDOW, Change, Filter, Status, Task, after_expiry, archive, expire, node_address
from qo.transitions import Transitions
from qo.workflows import open_tokens

log = logging.getLogger("qo.clock")
_MIN_STEP = 1.0  # seconds; shorter steps are covered by the grace of leases
_MAX_STEPS = 16  # steps that are kept


class _ClockReading(NamedTuple):
    now: float  # by the store's clock
    low: float  # lower and upper bound of the difference between the clocks: the store read its clock
    high: float  # at some moment between the request and the answer
    at: float  # by the monotonic clock


class _Step(NamedTuple):
    until: float  # times of the store's clock up to this one were before the step
    size: float  # seconds; negative: the clock was set back


class ClockSteps:
    """Detects steps of a store's clock between two calls of `update`. The first call detects none."""

    def __init__(self, engine: Engine, elapsed: Clock) -> None:
        self._engine, self._elapsed = engine, elapsed
        self._last: _ClockReading | None = None
        self._steps: list[_Step] = []

    async def update(self) -> float:
        """Read the store's clock. Returns the seconds by which it was set since the last call; 0.0 if it was not."""
        sent = self._elapsed()
        now = await self._engine.now()
        received = self._elapsed()
        before, self._last = self._last, _ClockReading(now, now - received, now - sent, received)
        if before is None:
            return 0.0
        if (least := self._last.low - before.high) >= _MIN_STEP:
            # Use the largest possible step and the latest possible time, so that no lease expires early.
            return self._note(_Step(now - least, self._last.high - before.low))
        if before.low - self._last.high >= _MIN_STEP:
            size = self._last.high - before.low
            return self._note(_Step(before.now + size, size))
        return 0.0

    def _note(self, step: _Step) -> float:
        if step.size < 0:
            # The clock passes through the same times again. Leases written at these times from now on are after all
            # steps.
            self._steps = [each._replace(until=min(each.until, step.until)) for each in self._steps]
        self._steps = [*self._steps, step][-_MAX_STEPS:]
        direction = "ahead" if step.size > 0 else "back"
        log.warning("the store's clock was set %s by %.0f s; leases last as long as before", direction, abs(step.size))
        return step.size

    def now(self) -> float:
        """The store's time, computed from the last reading; infinity before the first."""
        return inf if self._last is None else self._last.now + self._elapsed() - self._last.at

    def ahead_since(self, instant: float) -> float:
        """Seconds by which steps have set the clock ahead since it showed this time; 0.0 if they set it back."""
        return max(0.0, sum(step.size for step in self._steps if instant <= step.until))


PAGE_SIZE = 1000  # tasks in one request


def lease_length(task: Task) -> float:
    """Seconds. The last write of a running task is a claim or a heartbeat, and its lease counts from then."""
    return (task.lease_expires_at or 0.0) - task.updated_at


class LeaseExpiry:
    """Expires leases for one monitor or client. It keeps state to detect steps of the store's clock.

    After a step ahead no lease expires early, and after a step back none lasts longer than twice its length. `elapsed`
    is a monotonic clock that stops while the machine is suspended, because its workers are suspended too and then need
    time to renew their leases.
    """

    def __init__(self, engine: Engine, transitions: Transitions, elapsed: Clock, *, checks_ahead: bool = False) -> None:
        self._engine, self._transitions, self._elapsed = engine, transitions, elapsed
        self._steps = ClockSteps(engine, elapsed)
        # Leases that start in the future, by task: the task's version, and when this version was first seen.
        self._stamped_ahead: dict[str, tuple[int, float]] = {}
        self._checks_ahead = checks_ahead  # whether such leases may exist

    async def update_clock(self) -> None:
        """Read the store's clock, to detect steps. `expire` does so too."""
        if await self._steps.update() < 0:
            self._checks_ahead = True

    def ahead_since(self, instant: float) -> float:
        """Seconds by which steps have set the store's clock ahead since it showed this time."""
        return self._steps.ahead_since(instant)

    async def expire(
        self, *, grace: float = EXPIRY_GRACE, timeout: float = 0.0, page_size: int = PAGE_SIZE
    ) -> list[Task]:
        """Expire the leases of silent workers. Returns the tasks as they were before. Raises StorageError.

        A lease must have expired `grace` seconds ago, and its last heartbeat must be `timeout` seconds old. The store
        checks both by its clock when it writes.
        """
        await self.update_clock()
        expired: list[Task] = []
        async for lost in find_pages(self._engine, Filter(expired_for=grace), page_size=page_size):
            expired += await self._apply(lost, [self._expire(task, grace, timeout) for task in lost])
        if self._checks_ahead:
            lost = await self._silent_since_a_step_back(max(grace, timeout), page_size)
            expired += await self._apply(lost, [after_expiry(task, random=random_fraction()) for task in lost])
        return expired

    def _expire(self, task: Task, grace: float, timeout: float) -> Change:
        grace = max(grace, timeout - lease_length(task))
        return expire(task, random=random_fraction(), grace=grace + self._steps.ahead_since(task.updated_at))

    async def _apply(self, lost: list[Task], changes: list[Change]) -> list[Task]:
        answers = await self._engine.apply(changes) if changes else []
        ended = [(task, change) for task, change, done in zip(lost, changes, answers, strict=True) if done]
        for task, change in ended:
            self._transitions.settled(task, change)
        return [task for task, _ in ended]

    async def _silent_since_a_step_back(self, grace: float, page_size: int) -> list[Task]:
        """Tasks whose lease starts in the future and that were not renewed for a lease and `grace` since first seen."""
        seen, self._stamped_ahead = self._stamped_ahead, {}
        silent: list[Task] = []
        async for page in find_pages(self._engine, Filter(statuses=(Status.RUNNING,)), page_size=page_size):
            now, elapsed = self._steps.now(), self._elapsed()
            for task in page:
                if task.updated_at <= now + EXPIRY_GRACE:  # written after the step, or its lease expires soon
                    continue
                version, since = seen.get(task.id, (0, 0.0))
                if version != task.version:
                    since = elapsed
                if elapsed - since >= lease_length(task) + grace:
                    silent.append(task)
                self._stamped_ahead[task.id] = task.version, since
        self._checks_ahead = bool(self._stamped_ahead)  # leases written from now on start at the present
        return silent


FAILED_RETENTION = 30 * 86_400.0  # seconds dead letters are kept on stores with a default retention
MAX_FINISHED = 1_000  # finished tasks kept on stores with a default retention
# Seconds; younger finished tasks are kept regardless of their number, so that results can be read.
_MIN_TRIM_AGE = 300.0
_COUNTED = (Status.COMPLETED, Status.CANCELLED, Status.ARCHIVED)
_PAGE_SIZE = 1_000  # tasks in one request


class Retention(Struct, frozen=True, kw_only=True):
    """How long finished tasks are kept, in seconds; 0 keeps them forever.

    Their number is limited too where each finished task slows down every write.
    """

    finished: float | None = None  # archived after this, deleted after twice this; None: the store's default
    failed: float | None = None  # dead letters are deleted after this; None: like other finished tasks
    window: float = WINDOW  # how long idempotency keys are kept; values shorter than the default have no effect

    def shortest(self, engine: Engine) -> float:
        """The shortest age at which a task may have to be archived or deleted; inf if tasks are kept forever."""
        settled = self._settled(engine)
        ages = [age for age in (settled.finished, settled.failed) if age]
        if self.finished is None and settled.finished:
            ages.append(_MIN_TRIM_AGE)
        return min(ages, default=float("inf"))

    def _settled(self, engine: Engine) -> "Retention":
        if self.finished is not None:
            return self
        asked = engine.default_retention
        failed = FAILED_RETENTION if self.failed is None and asked else self.failed
        return Retention(finished=asked, failed=failed, window=self.window)

    async def tidy(self, engine: Engine, *, page_size: int = _PAGE_SIZE) -> "Tidied":
        """Archive and delete tasks that are old enough by the store's clock. Raises StorageError.

        A task with an idempotency key is not deleted within the window: its key could then create a second task.
        """
        settled, tidying = self._settled(engine), _Tidying(engine, page_size, max(WINDOW, self.window))
        if settled.failed:
            await tidying.delete((Status.FAILED,), settled.failed)
        if settled.finished:
            ended = (Status.COMPLETED, Status.CANCELLED, *((Status.FAILED,) if settled.failed is None else ()))
            await tidying.archive(ended, settled.finished)
            await tidying.delete((Status.ARCHIVED,), 2 * settled.finished)
            if self.finished is None:
                await tidying.trim(MAX_FINISHED)
        return Tidied(archived=tidying.archived, deleted=tidying.deleted)


class Tidied(Struct, frozen=True, kw_only=True):
    archived: int = 0
    deleted: int = 0


class _Tidying:
    def __init__(self, engine: Engine, page_size: int, window: float) -> None:
        self._engine, self._page_size, self._window = engine, page_size, window
        self._open_workflows: frozenset[str] | None = None
        self.archived = self.deleted = 0

    async def archive(self, statuses: tuple[Status, ...], age: float) -> None:
        async for page in self._pages(Filter(statuses=statuses, finished_for=age)):
            self.archived += sum(await self._engine.apply([archive(task.id) for task in page]))

    async def delete(self, statuses: tuple[Status, ...], age: float) -> None:
        if age < self._window:
            async for page in self._pages(Filter(statuses=statuses, finished_for=age)):
                await self._delete([task for task in page if task.idempotency_key is None])
        async for page in self._pages(Filter(statuses=statuses, finished_for=max(age, self._window))):
            await self._delete(page)

    async def trim(self, limit: int) -> None:
        """Delete the oldest finished tasks beyond `limit`."""
        counts = await self._engine.count()
        if sum(number for lane, number in counts.items() if lane.status in _COUNTED) <= limit:
            return
        passed = 0
        async for page in self._pages(Filter(statuses=_COUNTED, finished_for=_MIN_TRIM_AGE)):
            surplus = page[max(0, limit - passed) :]
            passed += len(page)
            await self._delete([task for task in surplus if task.idempotency_key is None])

    async def _delete(self, tasks: list[Task]) -> None:
        tasks = [task for task in tasks if not await self._is_needed(task)]
        if tasks:
            self.deleted += sum(await self._engine.delete([task.id for task in tasks]))

    async def _is_needed(self, task: Task) -> bool:
        """Whether the task belongs to an unfinished workflow."""
        address = node_address(task.id)
        if address is None:
            return False
        if self._open_workflows is None:
            self._open_workflows = await open_tokens(self._engine)
        return address.token in self._open_workflows

    def _pages(self, where: Filter) -> AsyncIterator[list[Task]]:
        return find_pages(self._engine, where, page_size=self._page_size)
