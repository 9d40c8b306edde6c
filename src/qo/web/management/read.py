"""Read tasks: one, a page, counts."""

import asyncio
from collections import Counter
from typing import Annotated, Any

from litestar import Request, get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct
from msgspec.structs import replace

from qo.client import Client
from qo.client.batches import BatchReader
from qo.clock import boot_clock
from qo.engine import Engine
from qo.model import Counts, Filter, Status, Task, check_batch_id, check_type, cursor
from qo.web.callers import WHOLE_STORE, AccessLimits
from qo.web.http.access import HIDDEN, LIMITED, READ, caller_of
from qo.web.http.byte_budget import values_within
from qo.web.http.problems import problems
from qo.web.http.server import Server, server_of
from qo.web.http.visibility import found
from qo.web.management.views import BY_STATUS, WORDS, ManagedTask, Word, filter_of, managed, without_values

_PAGE_SIZE = 500
_MAX_CHEAP = 1000  # pending tasks; with more, a count is reused, because some stores read each pending task
_AGE_FACTOR = 20.0  # a count is reused for this many times its duration
_MAX_AGE = 60.0  # seconds
_WAITING = Filter(statuses=(Status.PENDING,), retrying=True)


class RetryCounts:
    """The number of tasks that wait for a retry, by type. The management API counts them as failed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: Counter[tuple[str, str]] = Counter()  # by queue and type
        self._known_until = float("-inf")
        self._counting = asyncio.Lock()  # concurrent requests share one count

    async def of_batch(self, reader: BatchReader, batch: str, limits: AccessLimits = WHOLE_STORE) -> Counter[str]:
        """Counts of a batch by type, inside the limits."""
        where, found = limits.narrow(replace(_WAITING, batch=batch)), Counter[str]()
        if where is not None:
            counted = await reader.reuse(("waiting", where), lambda: self._count(where), lambda _: True)
            for (_, type), number in counted.items():
                found[type] += number
        return found

    async def by_type(self, counts: Counts, limits: AccessLimits = WHOLE_STORE) -> Counter[str]:
        """Counts inside the limits. `counts` are the counts of the whole store."""
        found = Counter[str]()
        for (queue, type), number in (await self._by_lane(counts)).items():
            if limits.includes(queue, type):
                found[type] += number
        return found

    async def _by_lane(self, counts: Counts) -> Counter[tuple[str, str]]:
        pending = sum(number for lane, number in counts.items() if lane.status is Status.PENDING)
        if not pending:
            return Counter()
        async with self._counting:
            began = boot_clock()
            if pending <= _MAX_CHEAP or began >= self._known_until:
                self._known = await self._count(_WAITING)
                self._known_until = boot_clock() + min(_MAX_AGE, _AGE_FACTOR * (boot_clock() - began))
            return self._known

    async def _count(self, where: Filter) -> Counter[tuple[str, str]]:
        found, after = Counter[tuple[str, str]](), ""
        while page := await self._engine.find_without_values(where, limit=_PAGE_SIZE, after=after):
            found.update((task.queue, task.type) for task in page)
            if len(page) < _PAGE_SIZE:
                break
            after = cursor(page[-1])
        return found


MAX_OFFSET = 10_000  # skipped tasks are read


class ManagedPage(Struct, frozen=True, kw_only=True):
    """`total` is a count and can lag slightly behind."""

    tasks: list[ManagedTask]
    total: int
    limit: int
    offset: int


class ManagedStats(Struct, frozen=True, kw_only=True, rename="camel"):
    pending: int
    processing: int
    completed: int
    failed: int
    by_type: dict[str, dict[Word, int]]


@get("/{task_id:str}", opt=READ | HIDDEN, responses=problems(404))
async def get_task(request: Request[Any, Any, Any], task_id: FromPath[str]) -> ManagedTask:
    """A task by its id."""
    task = await found(request, task_id)
    return managed(task, unhandled=task.id in await server_of(request).unhandled.ids([task]))


@get("/", opt=READ | LIMITED, responses=problems())
async def list_managed(
    request: Request[Any, Any, Any],
    *,
    type: FromQuery[str | None] = None,
    status: FromQuery[list[Word] | None] = None,
    batch: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50,
    offset: Annotated[int, QueryParameter(ge=0, le=MAX_OFFSET)] = 0,
) -> ManagedPage:
    """Tasks, newest first, of a batch if `batch` names one. `status` can be repeated. Beyond an offset of 10,000, use
    /api/v1/tasks."""
    server = server_of(request)
    words = set(status or WORDS)
    types = () if type is None else (check_type("type", type),)
    batch = None if batch is None else check_batch_id("batch", batch)
    where = caller_of(request).limits.narrow(replace(filter_of(words, types), batch=batch))
    tasks = await find_at_offset(server.client, where, limit=limit, offset=offset)
    total = sum(number for (_, word), number in (await count_by_type(request, types, batch)).items() if word in words)
    return ManagedPage(tasks=await _shown(server, tasks), total=total, limit=limit, offset=offset)


@get("/stats", opt=READ | LIMITED, responses=problems())
async def show_managed_stats(request: Request[Any, Any, Any]) -> ManagedStats:
    """The number of tasks by status, in total and by type."""
    totals: dict[Word, int] = dict.fromkeys(WORDS, 0)
    by_type: dict[str, dict[Word, int]] = {}
    for (type_, word), number in (await count_by_type(request)).items():
        totals[word] += number
        by_type.setdefault(type_, dict.fromkeys(WORDS, 0))[word] += number
    return ManagedStats(by_type=by_type, **totals)


async def _shown(server: Server, tasks: list[Task]) -> list[ManagedTask]:
    """All tasks of the page, so that offsets stay valid. Tasks beyond the byte budget come without values."""
    whole = await values_within(server.client.engine, tasks)
    unhandled = await server.unhandled.ids(tasks)
    return [
        *(managed(task, unhandled=task.id in unhandled) for task in whole),
        *(without_values(task, unhandled=task.id in unhandled) for task in tasks[len(whole) :]),
    ]


async def find_at_offset(client: Client, where: Filter | None, *, limit: int, offset: int) -> list[Task]:
    after, left = "", offset
    if where is None:
        return []
    while left > 0:
        skipped = await client.engine.find_without_values(where, limit=min(left, _PAGE_SIZE), after=after)
        if len(skipped) < min(left, _PAGE_SIZE):
            return []
        left -= len(skipped)
        after = cursor(skipped[-1])
    return await client.engine.find_without_values(where, limit=limit, after=after)


async def count_by_type(
    request: Request[Any, Any, Any], types: tuple[str, ...] = (), batch: str | None = None
) -> Counter[tuple[str, Word]]:
    """Counts by type and status, without archived tasks; with `batch`, of the tasks of this batch."""
    server, limits = server_of(request), caller_of(request).limits
    retry_counts: RetryCounts = request.app.state.retry_counts
    if batch is None:
        counts = await server.client.engine.count()
        retrying = await retry_counts.by_type(counts, limits)
    else:
        counts = await server.batches.counts(batch)
        has_pending = any(lane.status is Status.PENDING for lane in counts)
        retrying = await retry_counts.of_batch(server.batches, batch, limits) if has_pending else Counter()
    counted: Counter[tuple[str, Word]] = Counter()
    for lane, number in limits.count(counts).items():
        word = BY_STATUS.get(lane.status)
        if word is not None and number and (not types or lane.type in types):
            counted[lane.type, word] += number
    for type_, waiting in retrying.items():
        moved = min(waiting, counted[type_, "pending"])  # the two counts were not taken at the same moment
        counted[type_, "pending"] -= moved
        counted[type_, "failed"] += moved
    return +counted
