"""What a client returns: task handles, producers, consumers, and snapshots; and automatic heartbeats."""

import asyncio
import inspect
import logging
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

from msgspec import Struct

from qo.client.describe import Priority, Seconds, TaskOptions, seconds
from qo.errors import Conflict, InvalidSetting, StorageError, TaskNotFound
from qo.explanation import Explanation
from qo.model import Status, Task, check_number
from qo.sweep import lease_length

if TYPE_CHECKING:
    from qo.client.client import Client

log = logging.getLogger("qo.client")
DEQUEUE_LEASE = 300.0  # seconds; a consumer that works longer sends heartbeats


class TaskHandle(Struct, frozen=True, eq=False, gc=False):
    """A submitted task. `new` is False if a task with its id or idempotency key already existed."""

    id: str
    new: bool
    _client: "Client"

    async def status(self) -> Status:
        """The current status. Raises TaskNotFound if the task was deleted."""
        return (await self.refresh()).status

    async def refresh(self) -> Task:
        """The current state of the task. Raises TaskNotFound if it was deleted."""
        task = await self._client.get(self.id)
        if task is None:
            raise TaskNotFound(f"there is no task {self.id}", task_id=self.id)
        return task

    async def cancel(self) -> None:
        """Cancel the task. Raises WrongStatus if it has finished."""
        await self._client.cancel(self.id)

    async def run_now(self) -> None:
        """Make the task due now. Raises WrongStatus unless it is scheduled or retrying."""
        await self._client.run_now(self.id)

    async def reschedule(self, run_at: datetime | float) -> None:
        """Change when the task becomes due. Raises WrongStatus unless it is pending."""
        await self._client.reschedule(self.id, run_at)

    async def set_priority(self, priority: Priority) -> None:
        """Move the task to another priority. Raises WrongStatus unless it is pending."""
        await self._client.set_priority(self.id, priority)

    async def explain(self) -> Explanation:
        """Why the task is waiting."""
        return await self._client.explain(self.id)

    async def result(self, timeout: Seconds | None = None) -> Any:
        """Wait for the task to finish and return its result. Raises TaskFailed or ResultTimeout."""
        return await self._client.result(self.id, timeout=timeout)

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}>"


class Producer:
    """Submits to one queue. The type defaults to the name of the queue."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self.name = client, name

    async def enqueue(
        self, payload: object = None, *, type: str | None = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle:
        """Submit a task to this queue; as `Client.enqueue`."""
        options["queue"] = self.name
        return await self._client.enqueue(type or self.name, payload, **options)


class Consumer:
    """Dequeues tasks of one queue."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self.name, self.held = client, name, client.held
        self.ack, self.nack, self.release, self.heartbeat = client.ack, client.nack, client.release, client.heartbeat

    async def dequeue(self, *, batch_size: int = 1, lease: Seconds = DEQUEUE_LEASE, wait: Seconds = 0.0) -> list[Task]:
        """Lease tasks of this queue; as `Client.dequeue`."""
        return await self._client.dequeue(queue=self.name, batch_size=batch_size, lease=lease, wait=wait)


class QueueState(Struct, frozen=True, kw_only=True):
    """A snapshot of all tasks, newest first."""

    tasks: tuple[Task, ...] = ()
    version: int | None = None  # of a store that is one object; grows with every write

    def pending(self, type: str | None = None) -> list[Task]:
        """In the order of claims."""
        waiting = (task for task in self.tasks if task.status is Status.PENDING and type in (None, task.type))
        return sorted(waiting, key=lambda task: (task.rank, task.created_at))

    def running(self) -> list[Task]:
        return [task for task in self.tasks if task.status is Status.RUNNING]

    def find(self, task_id: str) -> Task | None:
        return next((task for task in self.tasks if task.id == task_id), None)


class Heartbeating(Protocol):
    """An object that can renew the lease of a task."""

    def heartbeat(self, task: Any, /) -> Any:
        """A coroutine function, or a function that does not block."""


class HeartbeatManager:
    """Renews the lease of a dequeued task while the block runs. If the lease is lost, it stops and `lost` is True.

    `queue` is any object with `heartbeat(task)`, such as a client or a consumer. A heartbeat renews the lease for the
    length it was dequeued with. For a lease shorter than three intervals, the interval is a third of the lease.
    """

    def __init__(self, queue: Heartbeating, task: Task | str, interval: Seconds = 60.0) -> None:
        check_number("interval", duration := seconds(interval), above=0.0)
        if not callable(getattr(queue, "heartbeat", None)):
            raise InvalidSetting(
                f"{queue!r:.80} has no heartbeat(task); pass the client or consumer that dequeued the task"
            )
        self._queue, self._task, self._interval = queue, task, duration
        self.lost = False

    async def __aenter__(self) -> Self:
        held = self._task if isinstance(self._task, Task) else getattr(self._queue, "held", {}).get(self._task)
        if isinstance(held, Task) and (lease := lease_length(held)) > 0:
            self._interval = min(self._interval, lease / 3)
        self._heartbeats = asyncio.create_task(self._send_heartbeats())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeats.cancel()
        await asyncio.wait([self._heartbeats])

    async def _send_heartbeats(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._interval)
            try:
                renewal = self._queue.heartbeat(self._task)
                if inspect.isawaitable(renewal):
                    await renewal
            except (StorageError, Conflict):
                continue  # the lease may still be valid: try again at the next interval
            except Exception as error:  # noqa: BLE001 - an object of the caller may raise anything; `lost` reports it
                self.lost = True
                log.warning("the lease of task %s is no longer renewed: %s", self._task, error)
