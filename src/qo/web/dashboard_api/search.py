"""Search for tasks by text, priority or shard, and in other orders than engines provide.

Engines filter by status, queue, type and worker through indexes. Everything else is filtered here, newest task first. A
page stops after a number of tasks, so its cost depends neither on the size of the store nor on its position.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from qo.engine import Engine
from qo.errors import InvalidSetting, InvalidTask
from qo.model import (
    Counts,
    Filter,
    Task,
    check_batch_id,
    check_cursor,
    check_id,
    check_name,
    check_names,
    check_types,
    cursor,
    effective_rank,
)
from qo.web.callers import WHOLE_STORE, AccessLimits
from qo.web.dashboard_api.views import FilterWord, statuses
from qo.web.http.byte_budget import BoundedPage, find_within
from qo.web.http.openapi import BatchName, Name, TypeName

MAX_READ = 5_000  # tasks read for one page
WINDOW = 2_000  # newest matching tasks that are sorted
_BATCH_SIZE = 500
_MAX_TEXT = 16 * 1024 * 1024  # bytes of payloads searched for one page

SORTS: dict[str, Callable[[Task, float], float]] = {  # sort keys by task and time; smallest first
    "updated": lambda task, _: -task.updated_at,
    "rank": lambda task, now: effective_rank(task.rank, task.due_at, now),
    "available": lambda task, _: task.available_at,
    "failures": lambda task, _: -float(task.failures),
    "attempts": lambda task, _: -float(task.attempt),
}


class Search(Struct, frozen=True, kw_only=True):
    where: Filter
    limits: AccessLimits = WHOLE_STORE  # of the caller; already applied to `where`
    is_empty: bool = False  # nothing inside the limits can match
    priority: int | None = None
    text: str = ""
    shard: str = ""

    @property
    def counted(self) -> bool:
        """Whether the total is known from the counts by queue, type and status, or of a batch."""
        is_plain = self.priority is None and not self.text and not self.shard
        return is_plain and self.where.worker_id is None and not self.where.pending

    def matches(self, task: Task) -> bool:
        return (
            (self.priority is None or task.priority == self.priority)
            and task.id.startswith(self.shard)
            and (not self.text or self.text in searchable(task))
        )


class Found(Struct, frozen=True, kw_only=True):
    tasks: list[Task]
    next: str | None  # position of the next page
    searched: int  # tasks that were read


def searchable(task: Task) -> str:
    """The searchable text of a task."""
    parts = (task.id, task.type, task.queue, task.worker_id, task.idempotency_key, task.trace_id, *task.needs)
    texts = [part for part in parts if part] + [task.payload.decode(errors="replace"), task.error or ""]
    return "\n".join(texts).casefold()


def folded(text: str) -> str:
    if len(text) > 200:  # noqa: PLR2004 - the limit is in the message
        raise InvalidTask("text", "is longer than 200 characters")
    return text.strip().casefold()


async def find(engine: Engine, search: Search, *, limit: int, after: str = "") -> Found:
    """One page, newest first. A short or empty page can have a next one."""
    check_cursor(after)
    if search.is_empty:
        return Found(tasks=[], next=None, searched=0)
    if (named := await _named(engine, search.text)) is not None and search.limits.includes_task(named):
        return Found(tasks=[named], next=None, searched=1)
    tasks: list[Task] = []
    searched = weight = 0
    while searched < MAX_READ and weight < _MAX_TEXT:
        requested = limit + 1 - len(tasks) if search.counted else _BATCH_SIZE
        batch = await _batch(engine, search, limit=requested, after=after)
        for task in batch.tasks:
            if len(tasks) == limit:
                return Found(tasks=tasks, next=after, searched=searched)
            after = cursor(task)
            searched += 1
            weight += len(task.payload)
            if search.matches(task):
                tasks.append(task)
        if len(batch.tasks) < requested and not batch.is_cut:
            return Found(tasks=tasks, next=None, searched=searched)
    return Found(tasks=tasks, next=after, searched=searched)


async def _batch(engine: Engine, search: Search, *, limit: int, after: str) -> BoundedPage:
    """Reads payloads only for a text search."""
    if search.text:
        return await find_within(engine, search.where, limit=limit, after=after)
    return BoundedPage(await engine.find_without_values(search.where, limit=limit, after=after), is_cut=False)


async def _named(engine: Engine, text: str) -> Task | None:
    """The task whose id is the search text."""
    try:
        (task,) = await engine.get([check_id(text)])
    except InvalidTask:
        return None
    return task


class Sorted(Struct, frozen=True, kw_only=True):
    tasks: list[Task]
    next: str | None
    window: int | None  # how many of the newest tasks were sorted; None: all that match


async def find_sorted(engine: Engine, search: Search, sort: str, *, limit: int, now: float, after: str = "") -> Sorted:
    """One page of the newest matching tasks, sorted. The next page starts after a sort key, not at an offset."""
    key = partial(_sort_key, SORTS[sort], now)
    begin = _place(after) if after else None
    found = await find(engine, search, limit=WINDOW)
    ordered = sorted(found.tasks, key=lambda task: (key(task), task.id))
    rest = [task for task in ordered if begin is None or (key(task), task.id) > begin]
    page = rest[:limit]
    following = f"{key(page[-1])!r}~{page[-1].id}" if len(rest) > limit else None
    return Sorted(tasks=page, next=following, window=None if found.next is None else len(found.tasks))


def _sort_key(of: Callable[[Task, float], float], now: float, task: Task) -> float:
    return of(task, now)


def _place(after: str) -> tuple[float, str]:
    number, _, task_id = after.partition("~")
    try:
        place = float(number), check_id(task_id)
    except (ValueError, InvalidTask) as error:
        raise InvalidSetting(
            f"{after!r:.80} is not a position in a listing; pass the one that the previous page returned"
        ) from error
    if not math.isfinite(place[0]):
        raise InvalidSetting(
            f"{after!r:.80} is not a position in a listing; pass the one that the previous page returned"
        )
    return place


_SHARD = re.compile("[0-9a-f]{1,8}")


class TaskFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As in the list of tasks."""

    status: list[FilterWord] = []
    type: list[TypeName] = []
    queue: list[Name] = []
    worker: Name | None = None
    batch: BatchName | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    text: str = ""
    shard: str = ""


def search_of(given: TaskFilter, limits: AccessLimits) -> Search:
    if given.shard and not _SHARD.fullmatch(given.shard):
        raise InvalidTask("shard", f"{given.shard!r:.80} is not the beginning of an id: 1 to 8 of 0-9 and a-f")
    wanted, kinds = statuses(given.status)
    where = Filter(
        statuses=wanted,
        pending=kinds,
        types=check_types("type", given.type),
        queues=check_names("queue", given.queue),
        worker_id=None if given.worker is None else check_name("worker", given.worker),
        batch=None if given.batch is None else check_batch_id("batch", given.batch),
    )
    narrowed = limits.narrow(where)
    return Search(
        where=where if narrowed is None else narrowed,
        limits=limits,
        is_empty=narrowed is None,
        priority=given.priority,
        text=folded(given.text),
        shard=given.shard,
    )


def count(counts: Counts, search: Search) -> int:
    covers, statuses = search.where.lane_matcher(), search.where.possible_statuses
    counted = search.limits.count(counts).items()
    return sum(number for lane, number in counted if lane.status in statuses and covers(lane.queue, lane.type))
