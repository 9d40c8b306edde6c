"""The client for code without an event loop: every method of `Client`, with the same arguments, blocking.

with qo.sync.connect("sqlite:///qo.db") as client:
    handle = client.enqueue("send_email", {"to": "a@example.com"})
    print(handle.status())
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, Unpack

from qo.background import BackgroundClient
from qo.client import Client, Priority, QueueState, Seconds, Settings, TaskHandle, TaskOptions
from qo.client import connect as connect_client
from qo.client.changes_by_id import PAGE_SIZE
from qo.client.handles import DEQUEUE_LEASE
from qo.codec import decode_value, encode_value
from qo.controls import ControlsClient
from qo.encryption import Encrypted
from qo.engine import Engine
from qo.errors import InvalidSetting
from qo.explanation import Explanation
from qo.model import Change, Event, Filter, Limit, NewTask, Status, Task
from qo.notes import Controls, WorkerNote
from qo.pending_counts import PendingCounts
from qo.stats import Interval
from qo.storages import ObjectStorage
from qo.sync_schedules import SyncSchedules

R = TypeVar("R")
_END = object()

# Inside the class, `list` is a method.
_Tasks: TypeAlias = list[Task]
_Events: TypeAlias = list[Event]
_Intervals: TypeAlias = list[Interval]
_Workers: TypeAlias = list[WorkerNote]
_Answers: TypeAlias = list[bool]


class SyncTaskHandle(Generic[R]):
    """A submitted task. Each method blocks, and has an async form with the prefix `a` for any event loop."""

    __slots__ = ("_background", "_decode", "id", "new")

    def __init__(
        self,
        background: BackgroundClient,
        handle: TaskHandle,
        decode: Callable[[bytes], Any] = decode_value,
    ) -> None:
        self._background, self._decode = background, decode
        self.id = handle.id
        self.new = handle.new  # False: a task with its id or idempotency key already existed

    def status(self) -> Status:
        """The current status. Raises TaskNotFound if the task was deleted."""
        return self.refresh().status

    async def astatus(self) -> Status:
        return (await self.arefresh()).status

    def refresh(self) -> Task:
        """The current state of the task. Raises TaskNotFound if it was deleted."""
        return self._background.call_client(lambda client: TaskHandle(self.id, self.new, client).refresh())

    async def arefresh(self) -> Task:
        return await self._background.acall_client(lambda client: TaskHandle(self.id, self.new, client).refresh())

    def cancel(self) -> None:
        """Cancel the task. Raises WrongStatus if it has finished."""
        self._background.call_client(lambda client: client.cancel(self.id))

    async def acancel(self) -> None:
        await self._background.acall_client(lambda client: client.cancel(self.id))

    def run_now(self) -> None:
        """Make the task due now. Raises WrongStatus unless it is scheduled for later or waits for a retry."""
        self._background.call_client(lambda client: client.run_now(self.id))

    async def arun_now(self) -> None:
        await self._background.acall_client(lambda client: client.run_now(self.id))

    def reschedule(self, run_at: datetime | float) -> None:
        """Change when the task becomes due. Raises WrongStatus unless it is pending."""
        self._background.call_client(lambda client: client.reschedule(self.id, run_at))

    async def areschedule(self, run_at: datetime | float) -> None:
        await self._background.acall_client(lambda client: client.reschedule(self.id, run_at))

    def set_priority(self, priority: Priority) -> None:
        """Move the task to another priority. Raises WrongStatus unless it is pending."""
        self._background.call_client(lambda client: client.set_priority(self.id, priority))

    async def aset_priority(self, priority: Priority) -> None:
        await self._background.acall_client(lambda client: client.set_priority(self.id, priority))

    def explain(self) -> Explanation:
        """Why the task is waiting."""
        return self._background.call_client(lambda client: client.explain(self.id))

    async def aexplain(self) -> Explanation:
        return await self._background.acall_client(lambda client: client.explain(self.id))

    def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the task to finish and return its result. Raises TaskFailed or ResultTimeout."""
        result: R = self._background.call_client(
            lambda client: client.result(self.id, timeout=timeout, decode=self._decode)
        )
        return result

    async def aresult(self, timeout: Seconds | None = None) -> R:
        result: R = await self._background.acall_client(
            lambda client: client.result(self.id, timeout=timeout, decode=self._decode)
        )
        return result

    def __repr__(self) -> str:
        return f"<SyncTaskHandle {self.id}>"


_Handles: TypeAlias = list[SyncTaskHandle[Any]]


class SyncProducer:
    """Submits to one queue. The type defaults to the name of the queue."""

    def __init__(self, client: "SyncClient", name: str) -> None:
        self._client, self.name = client, name

    def enqueue(
        self, payload: object = None, *, type: str | None = None, **options: Unpack[TaskOptions]
    ) -> SyncTaskHandle[Any]:
        options["queue"] = self.name
        return self._client.enqueue(type or self.name, payload, **options)


class SyncConsumer:
    """Dequeues tasks of one queue."""

    def __init__(self, client: "SyncClient", name: str) -> None:
        self._client, self.name = client, name
        self.ack, self.nack, self.release, self.heartbeat = client.ack, client.nack, client.release, client.heartbeat

    @property
    def held(self) -> Mapping[str, Task]:
        return self._client.held

    def dequeue(self, *, batch_size: int = 1, lease: Seconds = DEQUEUE_LEASE, wait: Seconds = 0.0) -> list[Task]:
        return self._client.dequeue(queue=self.name, batch_size=batch_size, lease=lease, wait=wait)


class SyncControlsClient:
    """Pauses, rate limits and drains; see `ControlsClient`."""

    def __init__(self, background: BackgroundClient, controls: ControlsClient) -> None:
        self._background, self._controls = background, controls

    def read(self) -> Controls:
        return self._background.run(self._controls.read())

    def in_force(self) -> Controls:
        return self._background.run(self._controls.in_force())

    def pause(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> Controls:
        return self._background.run(self._controls.pause(queues=queues, types=types))

    def resume(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> Controls:
        return self._background.run(self._controls.resume(queues=queues, types=types))

    def drain(self, workers: Iterable[str]) -> Controls:
        return self._background.run(self._controls.drain(workers))

    def limit_types(self, number: int) -> Controls:
        return self._background.run(self._controls.limit_types(number))

    def limit_rate(self, tasks_per_second: float, *, type: str | None = None) -> Controls:
        return self._background.run(self._controls.limit_rate(tasks_per_second, type=type))

    def limit_fleet(self, scope: str, limit: Limit | None) -> Controls:
        return self._background.run(self._controls.limit_fleet(scope, limit))


class SyncClient:
    """As `Client`, with blocking methods. Safe for concurrent threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_open = False
        self._background = BackgroundClient(self._connect, "qo-sync")
        self.controls = SyncControlsClient(self._background, client.controls)
        self.schedules = SyncSchedules(lambda: self._background)

    @property
    def settings(self) -> Settings:
        return self._client.settings

    @property
    def payload_limit(self) -> int:
        return self._client.payload_limit

    @property
    def engine(self) -> Engine:
        return self._client.engine

    @property
    def held(self) -> Mapping[str, Task]:
        """The tasks that were dequeued here and are not settled, by id."""
        return self._client.held

    def _connect(self) -> Client:
        if not self._is_open:
            raise InvalidSetting("the client is not open; use `with qo.sync.connect(url) as client:`")
        return self._client

    def open(self) -> Self:
        self._is_open = True
        try:
            self._background.run(self._background.client())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self._is_open = False
        self._background.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- submitting

    def enqueue(
        self, type: str, payload: object = None, *, connection: Any = None, **options: Unpack[TaskOptions]
    ) -> SyncTaskHandle[Any]:
        """Submit one task; returns when it is stored."""
        new = self._client.new_task(type, encode_value(payload), **options)
        return SyncTaskHandle(self._background, self._background.submit(new, connection=connection))

    def submit(self, new: NewTask, *, connection: Any = None) -> SyncTaskHandle[Any]:
        return SyncTaskHandle(self._background, self._background.submit(new, connection=connection))

    def submit_many(self, tasks: Sequence[NewTask]) -> _Handles:
        handles = self._background.call_client(lambda client: client.submit_many(tasks))
        return [SyncTaskHandle(self._background, handle) for handle in handles]

    def new_task(self, type: str, payload: bytes, **options: Unpack[TaskOptions]) -> NewTask:
        return self._client.new_task(type, payload, **options)

    def producer(self, name: str) -> SyncProducer:
        return SyncProducer(self, self._background.call_client(lambda client: client.producer(name)).name)

    # --- reading

    def get(self, task_id: str) -> Task | None:
        return self._background.call_client(lambda client: client.get(task_id))

    def check_not_damaged(self, task_id: str) -> None:
        self._background.call_client(lambda client: client.check_not_damaged(task_id))

    def list(self, where: Filter | None = None, *, limit: int = 50, after: str = "") -> _Tasks:
        return self._background.call_client(lambda client: client.list(where, limit=limit, after=after))

    def all(self, where: Filter | None = None) -> Iterator[Task]:
        """Every matching task, newest first, page by page."""
        tasks: AsyncIterator[Task] = self._client.all(where)

        async def next_task() -> Any:
            await self._background.client()
            return await anext(tasks, _END)

        async def stop() -> None:
            await tasks.aclose()  # type: ignore[attr-defined]  # an async generator

        try:
            while (task := self._background.run(next_task())) is not _END:
                yield task
        finally:
            self._background.run(stop())

    def read_state(self) -> QueueState:
        return self._background.call_client(lambda client: client.read_state())

    def history(self, task_id: str) -> _Events:
        return self._background.call_client(lambda client: client.history(task_id))

    def explain(self, task_id: str) -> Explanation:
        return self._background.call_client(lambda client: client.explain(task_id))

    def pending(self) -> PendingCounts:
        return self._background.call_client(lambda client: client.pending())

    def stats(self) -> dict[str, Any]:
        return self._background.call_client(lambda client: client.stats())

    def activity(self, since: Seconds = 3600.0) -> _Intervals:
        return self._background.call_client(lambda client: client.activity(since))

    def workers(self) -> _Workers:
        return self._background.call_client(lambda client: client.workers())

    def result(
        self, task_id: str, *, timeout: Seconds | None = None, decode: Callable[[bytes], Any] = decode_value
    ) -> Any:
        return self._background.call_client(lambda client: client.result(task_id, timeout=timeout, decode=decode))

    def ended(self, task_id: str, *, timeout: Seconds | None = None) -> Task:
        return self._background.call_client(lambda client: client.ended(task_id, timeout=timeout))

    # --- dequeuing and settling

    def dequeue(
        self,
        type: str | None = None,
        *,
        queue: str | None = None,
        batch_size: int = 1,
        lease: Seconds = DEQUEUE_LEASE,
        capabilities: Iterable[str] = (),
        wait: Seconds = 0.0,
    ) -> _Tasks:
        return self._background.call_client(
            lambda client: client.dequeue(
                type, queue=queue, batch_size=batch_size, lease=lease, capabilities=capabilities, wait=wait
            )
        )

    def requeue_stale(self, timeout: Seconds = 0.0) -> int:
        return self._background.call_client(lambda client: client.requeue_stale(timeout))

    def ack(self, task: Task | str, result: object = None) -> None:
        self._background.call_client(lambda client: client.ack(task, result))

    def nack(self, task: Task | str, error: str = "nack", *, delay: Seconds | None = None) -> None:
        self._background.call_client(lambda client: client.nack(task, error, delay=delay))

    def release(self, task: Task | str, *, delay: Seconds = 0.0) -> None:
        self._background.call_client(lambda client: client.release(task, delay=delay))

    def heartbeat(self, task: Task | str, *, lease: Seconds | None = None) -> None:
        self._background.call_client(lambda client: client.heartbeat(task, lease=lease))

    def consumer(self, name: str) -> SyncConsumer:
        return SyncConsumer(self, self._background.call_client(lambda client: client.consumer(name)).name)

    # --- changing tasks by their ids

    def cancel(self, task_id: str) -> None:
        self._background.call_client(lambda client: client.cancel(task_id))

    def replay(self, task_id: str, *, completed: bool = False) -> None:
        self._background.call_client(lambda client: client.replay(task_id, completed=completed))

    def run_now(self, task_id: str) -> None:
        self._background.call_client(lambda client: client.run_now(task_id))

    def reschedule(self, task_id: str, run_at: datetime | float) -> None:
        self._background.call_client(lambda client: client.reschedule(task_id, run_at))

    def reschedule_change(self, run_at: datetime | float) -> Callable[[str], Change]:
        return self._client.reschedule_change(run_at)

    def set_priority(self, task_id: str, priority: Priority) -> None:
        self._background.call_client(lambda client: client.set_priority(task_id, priority))

    def priority_change(self, priority: Priority) -> Callable[[str], Change]:
        return self._client.priority_change(priority)

    def archive(self, task_id: str) -> None:
        self._background.call_client(lambda client: client.archive(task_id))

    def delete(self, task_id: str, *, cancel: bool = False) -> None:
        self._background.call_client(lambda client: client.delete(task_id, cancel=cancel))

    def change_all(self, where: Filter, how: Callable[[str], Change]) -> int:
        return self._background.call_client(lambda client: client.change_all(where, how))

    def apply(self, changes: Sequence[Change], *, page_size: int = PAGE_SIZE) -> _Answers:
        return self._background.call_client(lambda client: client.apply(changes, page_size=page_size))

    def delete_all(self, where: Filter, *, cancel: bool = False, progress: Callable[[int], None] | None = None) -> int:
        return self._background.call_client(lambda client: client.delete_all(where, cancel=cancel, progress=progress))


def connect(
    url: str | ObjectStorage,
    settings: Settings | None = None,
    *,
    codec: Encrypted | None = None,
    make: Callable[..., Client] = connect_client,
) -> SyncClient:
    """The client of the store at a URL, as a context manager."""
    return SyncClient(make(url, settings, codec=codec))
