"""Limits the bytes of payloads and results in one response: a short request must not cost hundreds of megabytes.

Tasks are read in steps. A response ends with the task that exceeds the budget, so it always contains at least one.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from qo.engine import Engine
from qo.model import PAYLOAD_LIMIT, ClaimRequest, Event, Filter, Task, cursor

RESPONSE_BYTES = 8 * 1024 * 1024
_FIRST_STEP = 32  # tasks; 8 MiB of the largest inline values
_GROWTH = 8  # a step reads at most this many times as many tasks as the last one
_SMALLEST_TASK, _USUAL_TASK, _LARGE_TASK = 1024.0, 32 * 1024.0, 4 * 1024 * 1024.0  # expected bytes per claimed task
_ERROR_START = 200  # characters of an error that does not fit
_FIELDS_SIZE = 1024  # bytes of the other fields of a task in JSON
_MAX_PAGES = 4  # read concurrently from one store, so that a short read does not wait for hundreds of them
_LARGE_STEP = 2  # tasks whose large values, of up to 16 MiB each, are read concurrently


class BoundedPage(NamedTuple):
    tasks: list[Task]
    is_cut: bool  # the budget is used up; more tasks may match


def size_of(task: Task) -> int:
    return len(task.payload) + len(task.result or b"") + _text_size(task.error)


def _text_size(text: str | None) -> int:
    """Bytes of a text in JSON. A control character becomes six, and other characters up to four."""
    return 0 if text is None else len(msgspec.json.encode(text))


class PageTurns(NamedTuple):
    loop: asyncio.AbstractEventLoop
    free: asyncio.Semaphore


_turns: WeakKeyDictionary[Engine, PageTurns] = WeakKeyDictionary()


def _page_turn(engine: Engine) -> asyncio.Semaphore:
    loop, turns = asyncio.get_running_loop(), _turns.get(engine)
    if turns is None or turns.loop is not loop:  # a semaphore belongs to its event loop
        turns = _turns[engine] = PageTurns(loop, asyncio.Semaphore(_MAX_PAGES))
    return turns.free


async def find_within(
    engine: Engine,
    where: Filter,
    *,
    limit: int,
    after: str = "",
    created_before: float | None = None,
    budget: int = RESPONSE_BYTES,
) -> BoundedPage:
    """Like `Engine.find`, within the budget. Only a few callers read concurrently; the others wait for their turn."""
    async with _page_turn(engine):
        return await _find_now(engine, where, limit=limit, after=after, created_before=created_before, budget=budget)


async def _find_now(
    engine: Engine, where: Filter, *, limit: int, after: str, created_before: float | None, budget: int
) -> BoundedPage:
    tasks: list[Task] = []
    size, step = 0, _FIRST_STEP
    while len(tasks) < limit:
        requested = min(step, limit - len(tasks))
        inline = _keeps_inline(engine)
        find = engine.find if inline else engine.find_without_values
        batch = await find(where, limit=requested, after=after, created_before=created_before)
        for part in _parts(batch, _FIRST_STEP if inline else _LARGE_STEP):
            whole = part if inline else await engine.with_values(part)
            tasks += whole
            size += sum(map(size_of, whole))
            if size >= budget and (len(tasks) < limit):
                return BoundedPage(tasks, is_cut=True)
        if len(batch) < requested:
            break
        after = cursor(batch[-1])
        step = _next_step(step, size, len(tasks), budget)
    return BoundedPage(tasks, is_cut=False)


async def values_within(engine: Engine, tasks: list[Task], *, budget: int = RESPONSE_BYTES) -> list[Task]:
    """The first of these tasks with their values, as many as fit into the budget."""
    if _keeps_inline(engine):
        read = await get_within(engine, [task.id for task in tasks], budget=budget)
        return [fresh or task for fresh, task in zip(read, tasks, strict=False)]
    whole: list[Task] = []
    size = 0
    async with _page_turn(engine):
        for part in _parts(tasks, _LARGE_STEP):
            if size >= budget:
                break
            some = await engine.with_values(part)
            whole += some
            size += sum(map(size_of, some))
    return whole


async def get_within(engine: Engine, ids: Sequence[str], *, budget: int = RESPONSE_BYTES) -> list[Task | None]:
    """Like `Engine.get`, for as many of the first ids as fit into the budget. A single task is no page."""
    if len(ids) == 1:
        return await engine.get(ids)
    tasks: list[Task | None] = []
    size, step = 0, _FIRST_STEP if _keeps_inline(engine) else _LARGE_STEP
    async with _page_turn(engine):
        while len(tasks) < len(ids) and size < budget:
            tasks += await engine.get(ids[len(tasks) : len(tasks) + step])
            size = sum(size_of(task) for task in tasks if task is not None)
            step = _next_step(step, size, len(tasks), budget)
    return tasks


async def history_within(engine: Engine, task_id: str, *, budget: int = RESPONSE_BYTES) -> list[Event]:
    """Like `Engine.history`. Older events than fit into the budget have no log, and only the beginning of their error.

    A task may have thousands of attempts, each with an error and a log of 16 KiB.
    """
    events = await engine.history(task_id)
    size = 0
    for at in reversed(range(len(events))):
        event = events[at]
        size += _text_size(event.log) + _text_size(event.error)
        if size > budget:
            error = None if event.error is None else event.error[:_ERROR_START]
            events[at] = replace(event, log=None, error=error)
    return events


def copies_within(task: Task, events: Sequence[Event], *, budget: int = RESPONSE_BYTES) -> int:
    """How many of the newest events fit into the budget together with the task at that time; at least one."""
    values, size = len(task.payload) + len(task.result or b"") + _FIELDS_SIZE, 0
    for number, event in enumerate(reversed(events)):
        size += values + _text_size(event.error)
        if size > budget:
            return max(1, number)
    return len(events)


def _next_step(step: int, size: int, number: int, budget: int) -> int:
    fitting = (budget - size) * number // max(size, 1)
    return max(1, min(step * _GROWTH, fitting))


def _keeps_inline(engine: Engine) -> bool:
    """Whether all values are small, so that tasks are read together with them."""
    return engine.payload_limit <= PAYLOAD_LIMIT


def _parts(tasks: list[Task], size: int) -> list[list[Task]]:
    return [tasks[at : at + size] for at in range(0, len(tasks), size)]


class ClaimSizes:
    """Estimates the size of tasks, to claim only as many as fit into one response.

    The size of a task is unknown until it is claimed. The first claims are therefore moderate, and each can be twice as
    large as the last one while tasks are small. A repeated claim returns the tasks of the first one in any case.
    """

    def __init__(self, engine: Engine, budget: int = RESPONSE_BYTES) -> None:
        self._budget = budget
        self._expected = _USUAL_TASK if _keeps_inline(engine) else _LARGE_TASK  # bytes

    def limit(self, requested_tasks: int) -> int:
        return (
            max(1, min(requested_tasks, int(self._budget / self._expected))) if requested_tasks > 0 else requested_tasks
        )

    def claimed(self, tasks: Sequence[Task]) -> None:
        if tasks:
            mean = sum(map(size_of, tasks)) / len(tasks)
            self._expected = max(_SMALLEST_TASK, mean, self._expected / 2)


_sizes: WeakKeyDictionary[Engine, ClaimSizes] = WeakKeyDictionary()


async def claim_within(engine: Engine, request: ClaimRequest) -> list[Task]:
    """Like `Engine.claim`, for about as many tasks as fit into the budget."""
    sizes = _sizes.get(engine)
    if sizes is None:
        sizes = _sizes[engine] = ClaimSizes(engine)
    limit = sizes.limit(request.limit)
    tasks = await engine.claim(request if limit == request.limit else replace(request, limit=limit))
    sizes.claimed(tasks)
    return tasks
