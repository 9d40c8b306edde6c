"""One page of a listing over several shards."""

from collections.abc import Sequence

from qo.engine import Engine
from qo.engines.parallel import in_parallel
from qo.model import Filter, Position, Task, cursor

_MIN_STEP = 8  # tasks


async def merged_page(
    shards: Sequence[Engine], where: Filter, *, limit: int, after: str, created_before: float | None
) -> list[Task]:
    """The first `limit` tasks of all shards, newest first. A cursor is the position of a task in time, in any shard.

    Each shard is read in steps of about its share, so that a page does not hold a whole page of every shard.
    """
    step = max(_MIN_STEP, 2 * limit // len(shards))
    found: dict[int, list[Task]] = {number: [] for number in range(len(shards))}
    short = [*found]  # shards that may have more of the first tasks
    page: list[Task] = []

    async def read(number: int) -> bool:
        """Read the next tasks of a shard. Returns whether there may be more."""
        start = cursor(found[number][-1]) if found[number] else after
        some = await shards[number].find(where, limit=min(step, limit), after=start, created_before=created_before)
        found[number] += some
        return len(some) == min(step, limit)

    has_more = dict.fromkeys(short, True)
    while short and limit > 0:
        for number, more in zip(short, await in_parallel(read, short), strict=True):
            has_more[number] = more
        page = sorted((task for tasks in found.values() for task in tasks), key=_position, reverse=True)[:limit]
        last = _position(page[-1]) if len(page) == limit else None
        short = [
            number
            for number, tasks in found.items()
            if has_more[number] and (last is None or _position(tasks[-1]) >= last)
        ]
    return page


def _position(task: Task) -> Position:
    return Position(task.created_at, task.id)
