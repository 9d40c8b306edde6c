"""What a client hands out: task handles, producers, consumers, heartbeats, and a view of all tasks."""

import asyncio
import inspect
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

from msgspec import Struct

from qo.client.describe import Seconds, TaskOptions, seconds
from qo.errors import Conflict, InvalidSetting, StorageError, TaskNotFound
from qo.model import Status, Task, check_number
from qo.sweep import lease_length

if TYPE_CHECKING:
    from qo.client.client import Client

log = logging.getLogger("qo.client")
DEQUEUE_LEASE = 300.0  # seconds; a consumer that works longer sends heartbeats


class TaskHandle(Struct, frozen=True, eq=False, gc=False):
    """A task that the store has. `new` is False if its idempotency key had made the task before."""

    id: str
    new: bool
    _client: "Client"

    async def status(self) -> Status:
        return (await self.refresh()).status

    async def refresh(self) -> Task:
        """The task as it is now. Raises TaskNotFound if it was deleted."""
        task = await self._client.get(self.id)
        if task is None:
            raise TaskNotFound(f"there is no task {self.id}", task_id=self.id)
        return task

    async def cancel(self) -> None:
        """Raises WrongStatus if the task has ended."""
        await self._client.cancel(self.id)

    async def result(self, timeout: Seconds | None = None) -> Any:
        """Wait for the task to end; its result. Raises TaskFailed or ResultTimeout."""
        return await self._client.result(self.id, timeout=timeout)

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}>"


class Producer:
    """Submits to one queue; the type is the queue's name unless one is given."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self.name = client, name

    async def enqueue(
        self, payload: object = None, *, type: str | None = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle:
        options["queue"] = self.name
        return await self._client.enqueue(type or self.name, payload, **options)


class Consumer:
    """Takes tasks from one queue."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self.name, self.held = client, name, client.held
        self.ack, self.nack, self.release, self.heartbeat = client.ack, client.nack, client.release, client.heartbeat

    async def dequeue(self, *, batch_size: int = 1, lease: Seconds = DEQUEUE_LEASE, wait: Seconds = 0.0) -> list[Task]:
        return await self._client.dequeue(queue=self.name, batch_size=batch_size, lease=lease, wait=wait)


class QueueState(Struct, frozen=True, kw_only=True):
    """All tasks at one moment, newest first."""

    tasks: tuple[Task, ...] = ()
    version: int | None = None  # grows with every write, where the whole queue is one object

    def pending(self, type: str | None = None) -> list[Task]:
        """In the order they come."""
        waiting = (task for task in self.tasks if task.status is Status.PENDING and type in (None, task.type))
        return sorted(waiting, key=lambda task: (task.rank, task.created_at))

    def running(self) -> list[Task]:
        return [task for task in self.tasks if task.status is Status.RUNNING]

    def find(self, task_id: str) -> Task | None:
        return next((task for task in self.tasks if task.id == task_id), None)


class Heartbeating(Protocol):
    """A queue that can be told that a task is still being worked on."""

    def heartbeat(self, task: Any, /) -> Any:
        """A coroutine, or a function that returns at once."""


class HeartbeatManager:
    """Keeps a dequeued task's lease alive while the block runs. If the lease is lost, it stops and `lost` is True.

    `queue` is any object with `heartbeat(task)`. Each beat renews the lease for as long as it was dequeued for; a lease
    shorter than three intervals gets three beats.
    """

    def __init__(self, queue: Heartbeating, task: Task | str, interval: Seconds = 60.0) -> None:
        check_number("interval", given := seconds(interval), above=0.0)
        if not callable(getattr(queue, "heartbeat", None)):
            raise InvalidSetting(f"{queue!r:.80} has no heartbeat(task); pass the queue or consumer that has the task")
        self._queue, self._task, self._interval = queue, task, given
        self.lost = False

    async def __aenter__(self) -> Self:
        held = self._task if isinstance(self._task, Task) else getattr(self._queue, "held", {}).get(self._task)
        if isinstance(held, Task) and (lease := lease_length(held)) > 0:
            self._interval = min(self._interval, lease / 3)
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        await asyncio.wait([self._beating])

    async def _beat(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._interval)
            try:
                answer = self._queue.heartbeat(self._task)
                if inspect.isawaitable(answer):
                    await answer
            except (StorageError, Conflict):
                continue  # the lease may outlive the trouble: try again at the next beat
            except Exception as error:  # noqa: BLE001 - an object of the caller's raises what it likes; `lost` tells
                self.lost = True
                log.warning("the lease of task %s is no longer renewed: %s", self._task, error)
