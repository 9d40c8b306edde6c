"""The client of a store: submits, reads, dequeues, settles and changes tasks.

async with qo.connect("sqlite:///qo.db") as client:
    handle = await client.enqueue("send_email", {"to": "a@example.com"})
    [task] = await client.dequeue("send_email")
    await client.ack(task)
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, Unpack

from qo import notes, tracing
from qo.backoff import Backoff
from qo.client.changes_by_id import PAGE_SIZE, CancelReport, ChangesById, not_found
from qo.client.describe import (
    Priority,
    Seconds,
    Settings,
    TaskOptions,
    ageing_of,
    check_option_names,
    check_payloads,
    describe,
    parse_instant,
    seconds,
)
from qo.client.handles import DEQUEUE_LEASE, Consumer, Producer, QueueState, TaskHandle
from qo.client.leases import TaskLeases
from qo.client.schedules import SchedulesClient
from qo.client.submission import LiveTypes, check_repeats, distinct_tasks, resolve_duplicate
from qo.client.workflows import WorkflowsClient
from qo.clock import Clock, boot_clock, system_clock
from qo.codec import decode_value, encode_value, plain_task
from qo.controls import ControlsClient
from qo.damage import decode_damage, note_name
from qo.encryption import Encrypted, check_codec
from qo.engine import Engine
from qo.engines import open_engine, open_storage
from qo.errors import (
    InvalidTask,
    ResultTimeout,
    TaskFailed,
)
from qo.explanation import Explanation, explain_task
from qo.group_commit import GroupCommit
from qo.ids import new_token, random_fraction
from qo.model import (
    FINISHED,
    Added,
    Change,
    ClaimRequest,
    Event,
    Filter,
    NewTask,
    Status,
    Task,
    after_error,
    archive,
    cancel,
    check_depth,
    check_id,
    check_name,
    check_names,
    check_number,
    check_payload,
    check_size,
    check_type,
    complete,
    cursor,
    ended_because,
    is_a,
    level,
    release,
    replay,
    replay_finished,
    reschedule,
    run_now,
    set_priority,
    show,
    withdraw,
)
from qo.model.task import LATEST
from qo.pending_counts import PendingCounts, count_pending
from qo.stats import Interval, StatsRecorder, read_stats
from qo.storages import ObjectStorage
from qo.transitions import Transitions
from qo.workflows import WorkflowEngine

log = logging.getLogger("qo.client")
MAX_SUBMIT_SIZE = 1000  # tasks in one request that submits many
_MIN_RESULT_POLL, _MAX_RESULT_POLL = 0.005, 0.25  # seconds between two reads while waiting for a result

# Inside the class, `list` is a method.
Tasks: TypeAlias = list[Task]
Events: TypeAlias = list[Event]
Intervals: TypeAlias = list[Interval]
Workers: TypeAlias = list[notes.WorkerNote]
Handles: TypeAlias = list[TaskHandle]
Answers: TypeAlias = list[bool]


class Client:
    """A client of all queues of one store. Safe for concurrent callers on one event loop."""

    def __init__(self, engine: Engine, settings: Settings | None = None, *, clock: Clock = system_clock) -> None:
        self.recorder = StatsRecorder(engine, clock=clock)
        self.transitions = Transitions(self.recorder, clock=clock)
        self.store = engine  # without workflows
        self.engine = engine = WorkflowEngine.around(engine, CancelReport(engine, self.transitions))
        self.controls = ControlsClient(engine)
        self.live_types = LiveTypes(engine)
        self.settings = settings or Settings()
        self._clock = clock
        self._direct_payload_limit: int | None = None  # None: the engine cannot add directly, or is not open
        self._adding: GroupCommit[NewTask, Added] = GroupCommit(engine.add, is_repeatable=True)
        self._applying: GroupCommit[Change, bool] = GroupCommit(engine.apply)
        self._leases = TaskLeases(self, self._applying, clock)
        self._changes = ChangesById(self, self._applying)
        self.schedules = SchedulesClient(self, clock)
        self.workflows = WorkflowsClient(self)

    @property
    def payload_limit(self) -> int:
        """The maximum size of a payload or result in bytes, from the settings or else from the store."""
        return self.settings.payload_limit or self.engine.payload_limit

    async def open(self) -> Self:
        try:
            await self.engine.open()
        except BaseException:
            await self.engine.close()  # `async with` does not call __aexit__ if __aenter__ raises
            raise
        self._direct_payload_limit = self.payload_limit if self.engine.adds_directly else None
        return self

    async def close(self) -> None:
        await self.live_types.finish()
        await self._leases.finish()
        await self._adding.finish()
        await self._applying.finish()
        await self.recorder.close()
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- submitting

    async def enqueue(
        self, type: str, payload: object = None, *, connection: Any = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle:
        """Submit one task; returns when it is stored. Options: see `TaskOptions`.

        With a psycopg `connection`, the task is part of your transaction: it exists if and only if you commit.
        """
        return await self.submit(self.new_task(type, encode_value(payload), **options), connection=connection)

    async def submit(self, new: NewTask, *, connection: Any = None) -> TaskHandle:
        """As `enqueue`, for a task from `new_task`. Raises KeyReused if its key belongs to another payload."""
        check_size("payload", new.payload, self.payload_limit)
        check_depth("payload", new.payload)
        if connection is not None and new.on_duplicate == "replace":
            problem = 'on_duplicate="replace" cannot be part of your transaction; use "keep" or "raise"'
            raise InvalidTask("unique", problem)
        await self.live_types.check((new,))
        with tracing.submitting((new,)) as span:
            (new,) = span.marked((new,))
            added = await (self._adding.commit(new) if connection is None else self._add_on(connection, new))
        if connection is None:  # otherwise the task exists only once the caller commits
            self.transitions.queued((new,), (added,))
        return await self.resolve_duplicate(new, TaskHandle(added.id, added.new, self))

    async def resolve_duplicate(self, new: NewTask, handle: TaskHandle) -> TaskHandle:
        """The stored task for `new`. Raises KeyReused if it already existed with another payload."""
        if handle.new or new.idempotency_key is None:
            return handle
        added = await resolve_duplicate(self.engine, new, Added(handle.id, new=False))
        return TaskHandle(added.id, added.new, self)

    def submit_directly(self, new: NewTask) -> TaskHandle | None:
        """As `submit`, but blocking, from any thread. Returns None, and stores nothing, if `submit` must be used."""
        limit = self._direct_payload_limit
        if limit is None or not self.live_types.is_known(new):
            return None
        check_payload(new.payload, limit)
        if not tracing.is_on():  # as below, in fewer steps
            (added,) = self.engine.add_directly((new,))
        else:
            with tracing.submitting((new,)) as span:
                (new,) = span.marked((new,))
                (added,) = self.engine.add_directly((new,))
        if self.transitions.logs_queued:
            self.transitions.queued((new,), (added,))
        return TaskHandle(added.id, added.new, self)

    async def _add_on(self, connection: Any, new: NewTask) -> Added:
        (added,) = await self.engine.add_on(connection, [new])
        return added

    async def submit_many(self, tasks: Sequence[NewTask]) -> Handles:
        """Submit many tasks in as few requests as the store allows. Of tasks with the same id, the first is stored.

        Raises KeyReused if some keys belong to tasks with other payloads. The other tasks are stored.
        """
        check_payloads(tasks, self.payload_limit)
        first = distinct_tasks(tasks)
        await self.live_types.check(tasks)
        answers: list[Added] = []
        with tracing.submitting([*first.values()]) as span:
            distinct = span.marked([*first.values()])
            for start in range(0, len(distinct), MAX_SUBMIT_SIZE):
                answers += await self.engine.add(distinct[start : start + MAX_SUBMIT_SIZE])
        self.transitions.queued(distinct, answers)
        last = dict(zip(first, answers, strict=True))
        repeated = [task for task in first.values() if task.idempotency_key and not last[task.id].new]
        for task in repeated:
            if task.on_duplicate is not None:
                last[task.id] = await resolve_duplicate(self.engine, task, last[task.id])
        keyed = [task for task in repeated if task.on_duplicate is None]
        await check_repeats(self.engine, keyed, [last[new.id].id for new in keyed])
        fresh = {task_id: added.new for task_id, added in last.items()}
        return [TaskHandle(last[task.id].id, fresh.pop(task.id, False), self) for task in tasks]

    def new_task(self, type: str, payload: bytes, **options: Unpack[TaskOptions]) -> NewTask:
        """A validated task, ready to submit. Options: see `TaskOptions`."""
        if options:
            check_option_names(options)
        return describe(self.settings, type, payload, clock=self._clock, **options)

    async def producer(self, name: str) -> Producer:
        """A producer for one queue."""
        return Producer(self, check_name("queue", name))

    # --- reading

    async def get(self, task_id: str) -> Task | None:
        """The current state of a task; None if it does not exist. Raises DamagedTask if it cannot be read."""
        (task,) = await self.engine.get([check_id(task_id)])
        if task is None:
            await self.check_not_damaged(task_id)
            return None
        return plain_task(task)

    async def check_not_damaged(self, task_id: str) -> None:
        """Raise DamagedTask if a missing task is in quarantine because it cannot be read."""
        note = await self.engine.read_note(note_name(task_id))
        if note is not None:
            raise decode_damage(task_id, note.data)

    async def list(self, where: Filter | None = None, *, limit: int = 50, after: str = "") -> Tasks:
        """One page of tasks, newest first. The next page starts `after=qo.cursor(page[-1])`."""
        return [plain_task(task) for task in await self.engine.find(where or Filter(), limit=limit, after=after)]

    async def all(self, where: Filter | None = None) -> AsyncIterator[Task]:
        """Every matching task, newest first, page by page."""
        after = ""
        while page := await self.list(where, limit=PAGE_SIZE, after=after):
            for task in page:
                yield task
            after = cursor(page[-1])

    async def read_state(self) -> QueueState:
        """All tasks. A store of one object returns a consistent snapshot."""
        found = await self.engine.snapshot()
        return QueueState(tasks=tuple(plain_task(task) for task in found.tasks), version=found.version)

    async def history(self, task_id: str) -> Events:
        """Every transition of a task, in order."""
        return await self.engine.history(check_id(task_id))

    async def explain(self, task_id: str) -> Explanation:
        """Why a task is waiting. Raises TaskNotFound."""
        task = await self.get(task_id)
        if task is None:
            raise not_found(task_id)
        return await explain_task(self.engine, task, await self.engine.now())

    async def pending(self) -> PendingCounts:
        """How many pending tasks are ready, scheduled, retrying and blocked."""
        return await count_pending(self.engine, await self.engine.count(), await self.engine.now())

    async def stats(self) -> dict[str, Any]:
        """Counts by status, then the same by type and by queue."""
        total: dict[str, int] = {status.value: 0 for status in Status}
        by_type: dict[str, dict[str, int]] = {}
        by_queue: dict[str, dict[str, int]] = {}
        for lane, number in (await self.engine.count()).items():
            for counts in (total, by_type.setdefault(lane.type, {}), by_queue.setdefault(lane.queue, {})):
                counts[lane.status.value] = counts.get(lane.status.value, 0) + number
        return {**total, "by_type": by_type, "by_queue": by_queue}

    async def activity(self, since: Seconds = 3600.0) -> Intervals:
        """The activity of all processes in the last `since` seconds, oldest interval first.

        The intervals are minutes for the last hour, and hours for the last week. Counts may be some seconds old.
        `qo.stats.add_up` adds them up.
        """
        await self.recorder.flush()
        now = self._clock()
        return await read_stats(self.engine, now - seconds(since), now)

    async def workers(self) -> Workers:
        """All registered workers, including those that stopped sending heartbeats."""
        return await notes.workers(self.engine)

    async def result(
        self,
        task_id: str,
        *,
        timeout: Seconds | None = None,
        decode: Callable[[bytes], Any] = decode_value,
    ) -> Any:
        """Wait for a task to finish and return its result. Raises TaskFailed or ResultTimeout."""
        task = await self.ended(task_id, timeout=timeout)
        if task.result is None:
            raise TaskFailed(task, kind=ended_because(task))
        return decode(task.result)

    async def ended(self, task_id: str, *, timeout: Seconds | None = None) -> Task:
        """Wait for a task to finish. Raises ResultTimeout."""
        until = None if timeout is None else boot_clock() + seconds(timeout)
        backoff = Backoff(_MIN_RESULT_POLL, _MAX_RESULT_POLL, factor=1.5)
        while True:
            task = await self.get(task_id)
            if task is None:
                raise not_found(task_id)
            if task.status in FINISHED:
                return task
            pause = backoff.next()
            left = pause if until is None else until - boot_clock()
            if left <= 0:
                raise ResultTimeout(f"task {task_id} is still {task.status}", task_id=task_id)
            await asyncio.sleep(min(pause, left))

    # --- dequeuing and settling

    @property
    def held(self) -> dict[str, Task]:
        """The tasks that were dequeued here and are not settled, by id."""
        return self._leases.held

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
        """Lease up to `batch_size` tasks; returns an empty list if none were due within `wait` seconds.

        `qo.decode(task.payload)` is the payload as it was submitted; bytes need no decoding.
        """
        if not is_a(batch_size, int) or batch_size < 1:
            raise InvalidTask("batch_size", f"{show(batch_size)} is not a positive whole number")
        request = ClaimRequest(
            worker_id=self._leases.worker_id,
            lease_id=new_token(),
            queues=() if queue is None else (check_name("queue", queue),),
            types=() if type is None else (check_type("type", type),),
            capabilities=frozenset(check_names("capabilities", capabilities)),
            limit=batch_size,
            lease=_positive("lease", lease),
        )
        return await self._leases.dequeue(request, wait=seconds(wait))

    async def requeue_stale(self, timeout: Seconds = 0.0) -> int:
        """Retry or fail the tasks of dead workers; returns their number.

        These are tasks whose lease expired at least five seconds ago (clocks may differ) and whose last heartbeat is
        at least `timeout` seconds old. A lease that has not expired is never ended. A lost attempt counts as a failure:
        the task is retried after its back-off, or fails permanently. `dequeue` does this every
        `Settings.recovery_interval` seconds.
        """
        return await self._leases.expire(timeout=_not_negative("timeout", timeout))

    async def ack(self, task: Task | str, result: object = None) -> None:
        """Complete a dequeued task and store its result. Raises LeaseLost."""
        data = encode_value(result, "result")
        check_size("result", data, self.payload_limit)
        await self._leases.settle(task, lambda held: complete(held, data))

    async def nack(self, task: Task | str, error: str = "nack", *, delay: Seconds | None = None) -> None:
        """Fail this attempt: the task is retried after its back-off (or `delay`), or fails permanently.

        Raises LeaseLost.
        """
        after = None if delay is None else _not_negative("delay", delay)
        await self._leases.settle(task, lambda held: after_error(held, error, random=random_fraction(), after=after))

    async def release(self, task: Task | str, *, delay: Seconds = 0.0) -> None:
        """Return a dequeued task to its queue. This uses up no retry. Raises LeaseLost."""
        after = _not_negative("delay", delay)
        await self._leases.settle(task, lambda held: release(held, after))

    async def heartbeat(self, task: Task | str, *, lease: Seconds | None = None) -> None:
        """Extend the lease by `lease` seconds from now, or by the length it was dequeued with. Raises LeaseLost."""
        await self._leases.renew(task, None if lease is None else _positive("lease", lease))

    async def consumer(self, name: str) -> Consumer:
        """A consumer of one queue."""
        return Consumer(self, check_name("queue", name))

    # --- changing tasks by their ids

    async def cancel(self, task_id: str) -> None:
        """Cancel a pending or running task. Raises WrongStatus if it has finished, TaskNotFound if there is none."""
        await self._changes.change(cancel(check_id(task_id)))

    async def replay(self, task_id: str, *, completed: bool = False) -> None:
        """Run a failed, cancelled or archived task again, with `completed` also one that completed."""
        await self._changes.change((replay_finished if completed else replay)(check_id(task_id)))

    async def run_now(self, task_id: str) -> None:
        """Make a scheduled or retrying task due now.

        Raises WrongStatus for other tasks. A task that is already due keeps its place; `set_priority` moves it.
        """
        await self._changes.change(run_now(check_id(task_id)))

    async def reschedule(self, task_id: str, run_at: datetime | float) -> None:
        """Change when a pending task becomes due. A time in the past means now."""
        await self._changes.change(self.reschedule_change(run_at)(check_id(task_id)))

    def reschedule_change(self, run_at: datetime | float) -> Callable[[str], Change]:
        """For `change_all`: as `reschedule`."""
        check_number("run_at", at := parse_instant("run_at", run_at), maximum=LATEST)
        return lambda task_id: reschedule(task_id, at)

    async def set_priority(self, task_id: str, priority: Priority) -> None:
        """Move a pending task to another priority. It ranks as if it had been submitted with it."""
        await self._changes.change(self.priority_change(priority)(check_id(task_id)))

    def priority_change(self, priority: Priority) -> Callable[[str], Change]:
        """For `change_all`: as `set_priority`."""
        number = level(priority)
        ageing = ageing_of(self.settings.ageing, number)
        return lambda task_id: set_priority(task_id, number, ageing)

    async def archive(self, task_id: str) -> None:
        """Archive a finished task, which removes it from the default listing.

        Raises WrongStatus if it has not finished.
        """
        await self._changes.change(archive(check_id(task_id)))

    async def delete(self, task_id: str, *, cancel: bool = False) -> None:
        """Delete a finished or damaged task. With `cancel`, a pending task is cancelled first."""
        if cancel:
            await self.apply([withdraw(check_id(task_id))])
        await self._changes.delete(check_id(task_id))

    async def change_all(self, where: Filter, how: Callable[[str], Change]) -> int:
        """Change all matching tasks with a function of `qo.model` such as `cancel`, `replay` or `run_now`.

        Returns the number of changed tasks.
        """
        ids = await self._changes.ids(where)
        return sum(await self.apply([how(task_id) for task_id in ids]))

    async def apply(self, changes: Sequence[Change], *, page_size: int = PAGE_SIZE) -> Answers:
        """Change many tasks by their ids; returns for each whether it was changed."""
        return await self._changes.apply(changes, page_size)

    async def delete_all(
        self, where: Filter, *, cancel: bool = False, progress: Callable[[int], None] | None = None
    ) -> int:
        """Delete all matching finished tasks; returns their number. With `cancel`, pending ones are cancelled first.

        `progress` is called with the number of tasks in each batch.
        """
        return await self._changes.delete_all(where, cancel=cancel, progress=progress)


def connect(
    url: str | ObjectStorage,
    settings: Settings | None = None,
    *,
    mode: Literal["group", "direct"] = "group",
    codec: Encrypted | None = None,
) -> Client:
    """The client of the store at a URL, as an async context manager.

    Instead of a URL you can pass an object with `read` and `write`, which then contains the whole store as one JSON
    document. Its concurrent calls share a write (mode `group`) or make one each (`direct`).

    With a `codec`, payloads, results and errors are encrypted in the store.
    """
    check_codec(codec)
    engine = open_engine(url) if isinstance(url, str) else open_storage(url, mode)
    return Client(engine if codec is None else codec.wrap(engine), settings)


def _positive(field: str, duration: Seconds) -> float:
    check_number(field, value := seconds(duration), above=0.0)
    return value


def _not_negative(field: str, duration: Seconds) -> float:
    check_number(field, value := seconds(duration))
    return value
