"""How long tasks have been waiting, by level: exact for a short queue, from pages spread over a long one."""

from collections.abc import Mapping, Sequence
from math import inf, nextafter

from qo.engine import Engine
from qo.metrics import LEVELS
from qo.model import Filter, Status, Task, level_word

PERCENTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
PAGE = 200
_STEPS = 8  # of a long queue: pages evenly spaced from the newest to the oldest
_SHARE = PAGE // _STEPS  # tasks looked at on each
_PENDING = Filter(statuses=(Status.PENDING,))

Ages = dict[str, dict[str, float]]  # by level and percentile


async def look(engine: Engine, oldest: Sequence[float], now: float) -> Ages:
    """`oldest` are the instants since which the longest waiting tasks known have been due."""
    tasks = await engine.find_without_values(_PENDING, limit=PAGE)
    if len(tasks) == PAGE and oldest:
        tasks = await _spread(engine, tasks, min(oldest))
    waited: dict[str, list[float]] = {level: [] for level in LEVELS}
    for task in tasks:
        if task.available_at <= now:  # what is not due does not wait
            waited[level_word(task.priority)].append(now - task.due_at)
    return {level: percentiles(sorted(ages)) for level, ages in waited.items()}


async def _spread(engine: Engine, newest: list[Task], oldest: float) -> list[Task]:
    """Tasks from all ages alike: a listing may begin at any instant."""
    found = {task.id: task for task in newest[:_SHARE]}
    start = newest[0].created_at
    for step in range(1, _STEPS + 1):
        instant = nextafter(start - (start - oldest) * step / _STEPS, inf)  # so that the oldest task is included
        page = await engine.find_without_values(_PENDING, limit=_SHARE, created_before=instant)
        found.update((task.id, task) for task in page)
    return [*found.values()]


def percentiles(ages: Sequence[float]) -> dict[str, float]:
    """Of sorted ages, each percentile's nearest rank; nobody waiting is no wait."""
    if not ages:
        return dict.fromkeys(PERCENTILES, 0.0)
    return {name: ages[min(len(ages) - 1, int(share * len(ages)))] for name, share in PERCENTILES.items()}
