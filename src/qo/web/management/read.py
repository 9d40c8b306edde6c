"""Looking at tasks: one, a page of them, how many there are."""

from collections import Counter
from typing import Annotated, Any

from litestar import Request, get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from qo.client import Client
from qo.model import Filter, Task, check_type, cursor
from qo.web.access import HIDDEN, LIMITED, READ, caller_of
from qo.web.byte_budget import values_within
from qo.web.callers import AccessLimits
from qo.web.management.views import ManagedTask, managed, without_values
from qo.web.management.words import BY_STATUS, WORDS, Word, filter_of
from qo.web.problems import problems
from qo.web.server import Server, server_of
from qo.web.task_access import found

FARTHEST = 10_000  # tasks an offset may skip: they are read to be skipped
_PAGE = 500


class ManagedPage(Struct, frozen=True, kw_only=True):
    """`total` is counted, not read, and may lag a moment behind."""

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
    return managed(await found(request, task_id))


@get("/", opt=READ | LIMITED, responses=problems())
async def list_managed(
    request: Request[Any, Any, Any],
    type: FromQuery[str | None] = None,
    status: FromQuery[list[Word] | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50,
    offset: Annotated[int, QueryParameter(ge=0, le=FARTHEST)] = 0,
) -> ManagedPage:
    """Tasks, newest first; `status` may be repeated. Beyond an offset of 10,000, page with /api/v1/tasks."""
    server = server_of(request)
    words = set(status or WORDS)
    types = () if type is None else (check_type("type", type),)
    limits = caller_of(request).limits
    tasks = await skipping(server.queue, limits.narrow(filter_of(words, types)), limit=limit, offset=offset)
    total = sum(number for (_, word), number in (await tally(server, limits, types)).items() if word in words)
    return ManagedPage(tasks=await _shown(server, tasks), total=total, limit=limit, offset=offset)


@get("/stats", opt=READ | LIMITED, responses=problems())
async def show_managed_stats(request: Request[Any, Any, Any]) -> ManagedStats:
    """How many tasks there are, by status, then by type."""
    totals: dict[Word, int] = dict.fromkeys(WORDS, 0)
    by_type: dict[str, dict[Word, int]] = {}
    for (type_, word), number in (await tally(server_of(request), caller_of(request).limits)).items():
        totals[word] += number
        by_type.setdefault(type_, dict.fromkeys(WORDS, 0))[word] += number
    return ManagedStats(by_type=by_type, **totals)


async def _shown(server: Server, tasks: list[Task]) -> list[ManagedTask]:
    """A page has all the tasks it was asked for, so that offsets hold. Those beyond the budget come without values."""
    whole = await values_within(server.queue.engine, tasks)
    return [*map(managed, whole), *map(without_values, tasks[len(whole) :])]


async def skipping(queue: Client, where: Filter | None, *, limit: int, offset: int) -> list[Task]:
    after, left = "", offset
    if where is None:
        return []
    while left > 0:
        skipped = await queue.engine.find_without_values(where, limit=min(left, _PAGE), after=after)
        if len(skipped) < min(left, _PAGE):
            return []
        left -= len(skipped)
        after = cursor(skipped[-1])
    return await queue.engine.find_without_values(where, limit=limit, after=after)


async def tally(server: Server, limits: AccessLimits, types: tuple[str, ...] = ()) -> Counter[tuple[str, Word]]:
    """Counts by type and word. Archived tasks are left out."""
    counts = await server.queue.engine.count()
    tallied: Counter[tuple[str, Word]] = Counter()
    for lane, number in limits.count(counts).items():
        word = BY_STATUS.get(lane.status)
        if word is not None and number and (not types or lane.type in types):
            tallied[lane.type, word] += number
    for type_, waiting in (await server.retry_counts.by_type(counts, limits)).items():
        moved = min(waiting, tallied[type_, "pending"])  # the two counts are not of one moment
        tallied[type_, "pending"] -= moved
        tallied[type_, "failed"] += moved
    return +tallied
