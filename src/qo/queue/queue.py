"""What an application calls: tasks in, tasks out, and a look at everything between.

async with qo.connect("sqlite:///qo.db") as queue:
    submitted = await queue.enqueue("send_email", {"to": "a@example.com"})
    [task] = await queue.dequeue("send_email")
    await queue.ack(task)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

from qo import notes, tracing
from qo.clock import Clock, boot_clock, system_clock
from qo.codec import decode_value, encode_value
from qo.engine import Engine, Transactional
from qo.engines import open_engine
from qo.errors import InvalidSetting, InvalidTask, LeaseLost, ResultTimeout, TaskFailed, TaskNotFound, WrongStatus
from qo.ids import luck, new_lease_id, new_worker_id
from qo.model import (
    FINISHED,
    STATUSES,
    Added,
    Change,
    Event,
    Filter,
    NewTask,
    Status,
    Task,
    Want,
    after_error,
    archive,
    cancel,
    check_id,
    check_name,
    check_names,
    check_number,
    check_size,
    complete,
    cursor,
    is_a,
    release,
    renew,
    replay,
    show,
)
from qo.queue.describe import Seconds, Settings, describe, seconds
from qo.queue.handles import DEQUEUE_LEASE, Consumer, Producer, Submitted
from qo.queue.switches import Switches
from qo.trips import Trips

PAGE = 500
BULK = 1000  # tasks a trip when many are submitted at once
_QUICKEST, _SLOWEST = 0.005, 0.25  # seconds between two looks for a result

# Inside the class `list` is a method.
Tasks: TypeAlias = list[Task]
Events: TypeAlias = list[Event]
Workers: TypeAlias = list[notes.WorkerNote]
Submissions: TypeAlias = list[Submitted]


class Queue:
    """All queues of one store. Safe for any number of concurrent callers on one event loop."""

    def __init__(self, engine: Engine, settings: Settings | None = None, *, clock: Clock = system_clock) -> None:
        self.engine = engine
        self.switches = Switches(engine)
        self.settings = settings or Settings()
        self._clock = clock
        self._worker_id = new_worker_id("dequeue")
        self._held: dict[str, Task] = {}
        self._adding: Trips[NewTask, Added] = Trips(engine.add)
        self._applying: Trips[Change, bool] = Trips(engine.apply)

    async def open(self) -> Self:
        try:
            await self.engine.open()
        except BaseException:
            await self.engine.close()  # nobody else would: `async with` does not end what did not begin
            raise
        return self

    async def close(self) -> None:
        await self._adding.finish()
        await self._applying.finish()
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- tasks in

    async def enqueue(self, type: str, payload: object = None, *, connection: Any = None, **options: Any) -> Submitted:
        """Submit one task; returns when the store has it. Options: see `describe`.

        With a psycopg `connection` of your own, it is part of your transaction: it exists if and only if you commit.
        """
        return await self.submit(self.new_task(type, encode_value(payload), **options), connection=connection)

    async def submit(self, new: NewTask, *, connection: Any = None) -> Submitted:
        with tracing.submitting((new,)) as span:
            (new,) = span.marked((new,))
            added = await (self._adding.ask(new) if connection is None else self._add_on(connection, new))
        return Submitted(self, added)

    async def _add_on(self, connection: Any, new: NewTask) -> Added:
        if not isinstance(self.engine, Transactional):
            raise InvalidSetting("connection= joins a transaction of yours, and only a postgresql:// store has those")
        (added,) = await self.engine.add_on(connection, [new])
        return added

    async def submit_many(self, tasks: Sequence[NewTask]) -> Submissions:
        """Submit many tasks in as few trips as the store allows. Of one id, the first is taken."""
        first: dict[str, NewTask] = {}
        for task in tasks:
            first.setdefault(task.id, task)
        fresh: dict[str, bool] = {}
        with tracing.submitting([*first.values()]) as span:
            distinct = span.marked([*first.values()])
            for start in range(0, len(distinct), BULK):
                fresh.update(await self.engine.add(distinct[start : start + BULK]))
        return [Submitted(self, Added(task.id, fresh.pop(task.id, False))) for task in tasks]

    def new_task(self, type: str, payload: bytes, **options: Any) -> NewTask:
        """A checked description of a task, ready to submit. Options: see `describe`."""
        return describe(self.settings, type, payload, clock=self._clock, **options)

    async def producer(self, name: str) -> Producer:
        """A shorthand for submitting to one queue."""
        return Producer(self, check_name("queue", name))

    # --- tasks out

    async def dequeue(
        self,
        type: str | None = None,
        *,
        queue: str | None = None,
        batch_size: int = 1,
        lease: Seconds = DEQUEUE_LEASE,
        capabilities: Iterable[str] = (),
        wait: Seconds = 0.0,
    ) -> Tasks:
        """Lease up to `batch_size` tasks; an empty list if none came within `wait` seconds."""
        if not is_a(batch_size, int) or batch_size < 1:
            raise InvalidTask("batch_size", f"{show(batch_size)} is not a whole number from 1 on")
        want = Want(
            worker_id=self._worker_id,
            lease_id=new_lease_id(),
            queues=() if queue is None else (check_name("queue", queue),),
            types=() if type is None else (check_name("type", type),),
            capabilities=frozenset(check_names("capabilities", capabilities)),
            limit=batch_size,
            lease=_some("lease", lease),
        )
        until = boot_clock() + seconds(wait)
        while True:
            tasks = await self._claim(want)
            left = until - boot_clock()
            if tasks or left <= 0:
                self._held.update((task.id, task) for task in tasks)
                return tasks
            await self.engine.wait(want, left)

    async def _claim(self, want: Want) -> Tasks:
        claiming = asyncio.ensure_future(self.engine.claim(want))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The store may have leased tasks to a caller who is gone: hand them back.
            await asyncio.wait([claiming])
            if not claiming.cancelled() and claiming.exception() is None and (tasks := claiming.result()):
                await self.engine.apply([release(task) for task in tasks])
            raise

    async def ack(self, task: Task | str, result: object = None) -> None:
        """The task is done; keep its result."""
        data = encode_value(result, "result")
        check_size("result", data, self.settings.payload_limit)
        await self._settle(task, lambda held: complete(held, data))

    async def nack(self, task: Task | str, error: str = "nack", *, delay: Seconds | None = None) -> None:
        """The task failed: it comes again after its back-off (or `delay`), or ends when its retries are used up."""
        after = None if delay is None else _any("delay", delay)
        await self._settle(task, lambda held: after_error(held, error, luck=luck(), after=after))

    async def release(self, task: Task | str, *, delay: Seconds = 0.0) -> None:
        """Hand a task back unfinished; it costs no retry."""
        after = _any("delay", delay)
        await self._settle(task, lambda held: release(held, after))

    async def heartbeat(self, task: Task | str, *, lease: Seconds = DEQUEUE_LEASE) -> None:
        """Still working: the lease now runs for `lease` seconds more."""
        held = self._lease_of(task)
        if not await self._applying.ask(renew(held, _some("lease", lease))):
            self._forget(held)
            raise _lost(held)

    async def _settle(self, task: Task | str, how: Callable[[Task], Change]) -> None:
        held = self._lease_of(task)
        settled = await self._applying.ask(how(held))
        self._forget(held)
        if not settled:
            raise _lost(held)

    def _forget(self, held: Task) -> None:
        known = self._held.get(held.id)
        if known is not None and known.lease_id == held.lease_id:  # a later attempt may be held here by now
            del self._held[held.id]

    def _lease_of(self, task: Task | str) -> Task:
        if isinstance(task, Task):
            return task
        held = self._held.get(task)
        if held is None:
            raise TaskNotFound(f"task {task} was not dequeued here, or is settled already")
        return held

    async def consumer(self, name: str) -> Consumer:
        """A shorthand for taking tasks from one queue."""
        return Consumer(self, check_name("queue", name))

    # --- a look, and a hand

    async def get(self, task_id: str) -> Task | None:
        (task,) = await self.engine.get([check_id(task_id)])
        return task

    async def list(self, where: Filter | None = None, *, limit: int = 50, after: str = "") -> Tasks:
        """One page of tasks, newest first. The next page starts `after=qo.cursor(page[-1])`."""
        return await self.engine.find(where or Filter(), limit=limit, after=after)

    async def all(self, where: Filter | None = None) -> AsyncIterator[Task]:
        """Every matching task, newest first, page by page."""
        after = ""
        while page := await self.list(where, limit=PAGE, after=after):
            for task in page:
                yield task
            after = cursor(page[-1])

    async def history(self, task_id: str) -> Events:
        return await self.engine.history(check_id(task_id))

    async def stats(self) -> dict[str, Any]:
        """Counts by status, then the same by type and by queue."""
        total: dict[str, int] = {status.value: 0 for status in Status}
        by_type: dict[str, dict[str, int]] = {}
        by_queue: dict[str, dict[str, int]] = {}
        for lane, number in (await self.engine.count()).items():
            for counts in (total, by_type.setdefault(lane.type, {}), by_queue.setdefault(lane.queue, {})):
                counts[lane.status.value] = counts.get(lane.status.value, 0) + number
        return {**total, "by_type": by_type, "by_queue": by_queue}

    async def cancel(self, task_id: str) -> None:
        await self._steer(cancel(check_id(task_id)))

    async def replay(self, task_id: str) -> None:
        await self._steer(replay(check_id(task_id)))

    async def archive(self, task_id: str) -> None:
        await self._steer(archive(check_id(task_id)))

    async def delete(self, task_id: str) -> None:
        (deleted,) = await self.engine.delete([check_id(task_id)])
        if not deleted:
            raise await self._refusal(task_id, "delete", FINISHED)

    async def change_all(self, where: Filter, how: Callable[[str], Change]) -> int:
        """Steer every matching task with `cancel`, `replay` or `archive`; how many it was."""
        ids = [task.id async for task in self.all(where)]
        changed = 0
        for start in range(0, len(ids), PAGE):
            changed += sum(await self.engine.apply([how(task_id) for task_id in ids[start : start + PAGE]]))
        return changed

    async def delete_all(self, where: Filter) -> int:
        """Delete every matching task that is finished; how many it was."""
        ids = [task.id async for task in self.all(where)]
        return sum([sum(await self.engine.delete(ids[start : start + PAGE])) for start in range(0, len(ids), PAGE)])

    async def _steer(self, change: Change) -> None:
        if not await self._applying.ask(change):
            raise await self._refusal(change.id, _VERBS[change.to], STATUSES[change.guard])

    async def _refusal(self, task_id: str, verb: str, allowed: Iterable[Status]) -> TaskNotFound | WrongStatus:
        task = await self.get(task_id)
        if task is None:
            return TaskNotFound(f"there is no task {task_id}")
        names = ", ".join(sorted(allowed))
        return WrongStatus(f"task {task_id} is {task.status}; {verb} takes a task that is one of: {names}")

    async def result(
        self,
        task_id: str,
        *,
        timeout: Seconds | None = None,
        decode: Callable[[bytes], Any] = decode_value,
    ) -> Any:
        """Wait for a task to end and return its result, or raise TaskFailed or ResultTimeout."""
        task = await self.ended(task_id, timeout=timeout)
        gave_up = task.status in _WITHOUT_RESULT or task.error is not None  # a replayed task keeps an older result
        if gave_up or task.result is None:
            raise TaskFailed(f"task {task_id} is {task.status}: {task.error or 'it has no result'}")
        return decode(task.result)

    async def ended(self, task_id: str, *, timeout: Seconds | None = None) -> Task:
        """Wait for a task to end."""
        until = None if timeout is None else boot_clock() + seconds(timeout)
        pause = _QUICKEST
        while True:
            task = await self.get(task_id)
            if task is None:
                raise TaskNotFound(f"there is no task {task_id}")
            if task.status in FINISHED:
                return task
            left = pause if until is None else until - boot_clock()
            if left <= 0:
                raise ResultTimeout(f"task {task_id} is still {task.status}")
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _SLOWEST)

    async def workers(self) -> Workers:
        """Everyone registered here, the silent ones too."""
        return await notes.workers(self.engine)


_WITHOUT_RESULT = frozenset({Status.FAILED, Status.CANCELLED})
_VERBS = {Status.CANCELLED: "cancel", Status.PENDING: "replay", Status.ARCHIVED: "archive"}


def connect(url: str, settings: Settings | None = None) -> Queue:
    """The queue at a URL, as an async context manager."""
    return Queue(open_engine(url), settings)


def _some(field: str, duration: Seconds) -> float:
    check_number(field, given := seconds(duration), above=0.0)
    return given


def _any(field: str, duration: Seconds) -> float:
    check_number(field, given := seconds(duration))
    return given


def _lost(task: Task) -> LeaseLost:
    return LeaseLost(
        f"task {task.id} is no longer held by attempt {task.attempt}: its lease expired or it was cancelled"
    )
