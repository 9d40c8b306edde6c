"""How long pending tasks have been waiting: percentiles by level, and the oldest task of each queue.

Neither reads a long queue completely. Both use `created_before` to start a listing at any time.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nextafter

from qo.engine import Engine
from qo.metrics import LEVELS
from qo.model import Filter, Status, Task, cursor, level_word
from qo.web.callers import WHOLE_STORE, AccessLimits

PERCENTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
SAMPLE_SIZE = 200  # tasks; a queue with fewer is read completely
_SAMPLE_PAGES = 8  # pages of a longer queue, evenly spaced from the newest task to the oldest
_PAGE_SIZE = SAMPLE_SIZE // _SAMPLE_PAGES
_PENDING = Filter(statuses=(Status.PENDING,))

END_PAGE = 100  # tasks; a queue with fewer is read completely to find its oldest task
_MAX_STEPS = 24  # of a search for the oldest task; steps that double reach from one second to half a year
_FIRST_STEP = 1.0  # seconds
_MAX_QUEUES = 50  # queues whose oldest task is looked up

Ages = dict[str, dict[str, float]]  # seconds, by level and percentile


async def wait_percentiles(engine: Engine, oldest: Sequence[float], now: float) -> Ages:
    """Percentiles of the waiting times. `oldest`: when the oldest known tasks became due."""
    tasks = await engine.find_without_values(_PENDING, limit=SAMPLE_SIZE)
    if len(tasks) == SAMPLE_SIZE and oldest:
        tasks = await _sample_all_ages(engine, tasks, min(oldest))
    waited: dict[str, list[float]] = {level: [] for level in LEVELS}
    for task in tasks:
        if task.available_at <= now:  # a task that is not due is not waiting
            waited[level_word(task.priority)].append(now - task.due_at)
    return {level: percentiles(sorted(ages)) for level, ages in waited.items()}


async def _sample_all_ages(engine: Engine, newest: list[Task], oldest: float) -> list[Task]:
    """One page from each of several points in time between the newest task and the oldest."""
    found = {task.id: task for task in newest[:_PAGE_SIZE]}
    start = newest[0].created_at
    for step in range(1, _SAMPLE_PAGES + 1):
        instant = nextafter(start - (start - oldest) * step / _SAMPLE_PAGES, inf)  # includes the oldest task
        page = await engine.find_without_values(_PENDING, limit=_PAGE_SIZE, created_before=instant)
        found.update((task.id, task) for task in page)
    return [*found.values()]


def percentiles(ages: Sequence[float]) -> dict[str, float]:
    """The nearest-rank percentiles of sorted ages; 0 if there are none."""
    if not ages:
        return dict.fromkeys(PERCENTILES, 0.0)
    return {name: ages[min(len(ages) - 1, int(share * len(ages)))] for name, share in PERCENTILES.items()}


class OldestTasks:
    """The pending task of each queue that became due first. A found task is kept as the answer while it is pending."""

    def __init__(self, engine: Engine, limits: AccessLimits = WHOLE_STORE) -> None:
        self._engine, self._types = engine, tuple(sorted(limits.types))
        self._known: dict[str, Task] = {}  # by queue

    async def due_since(self, queues: Iterable[str], now: float) -> dict[str, float | None]:
        """When the oldest task of each queue became due; None if no task of the queue is due."""
        await self._forget_claimed()
        return {queue: await self._of(queue, now) for queue in list(queues)[:_MAX_QUEUES]}

    async def _forget_claimed(self) -> None:
        known = list(self._known.items())
        tasks = await self._engine.get_without_values([task.id for _, task in known]) if known else []
        for (queue, _), task in zip(known, tasks, strict=True):
            if task is None or task.status is not Status.PENDING:
                del self._known[queue]

    async def _of(self, queue: str, now: float) -> float | None:
        if (known := self._known.get(queue)) is not None:
            return known.due_at
        where = Filter(queues=(queue,), types=self._types, statuses=(Status.PENDING,))
        page = await self._engine.find_without_values(where, limit=END_PAGE)
        if len(page) == END_PAGE:
            page += await self._last_page(where, page[-1])
        due = [task for task in page if task.available_at <= now]
        if not due:
            return None
        first = min(due, key=lambda task: task.due_at)
        if len(page) > END_PAGE:
            self._known[queue] = first
        return first.due_at

    async def _last_page(self, where: Filter, last: Task) -> list[Task]:
        """The end of the listing, or the closest that `_MAX_STEPS` reach: steps double, then shrink."""
        step, oldest = _FIRST_STEP, last
        for _ in range(_MAX_STEPS):
            found = await self._engine.find_without_values(where, limit=1, created_before=oldest.created_at - step)
            if found:
                oldest, step = found[0], step * 2
                continue
            rest = await self._engine.find_without_values(where, limit=END_PAGE, after=cursor(oldest))
            if len(rest) < END_PAGE:
                return [*rest, oldest]
            oldest, step = rest[-1], max(_FIRST_STEP / 1000, step / 4)
        return [oldest]
