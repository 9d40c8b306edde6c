"""Tasks out, and what became of them."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from qo.client.describe import Seconds, seconds
from qo.client.handles import DEQUEUE_LEASE, Consumer, lease_length
from qo.client.opened import Opened
from qo.client.retention import Retention
from qo.clock import boot_clock
from qo.codec import encode_value, plain_task
from qo.errors import Conflict, InvalidTask, LeaseLost, StorageError, TaskNotFound
from qo.ids import luck, new_lease_id
from qo.model import (
    Change,
    ClaimRequest,
    Task,
    after_error,
    check_name,
    check_names,
    check_number,
    check_size,
    check_type,
    complete,
    is_a,
    release,
    renew,
    show,
)
from qo.transitions import log_started

log = logging.getLogger("qo.client")
_SHORTEST_WAIT = 0.1  # seconds
_TIDY_INTERVAL = 60.0  # seconds


class Taking(Opened):
    _recovers_at = _tidies_at = float("-inf")  # by the boot clock

    async def dequeue(
        self,
        type: str | None = None,
        *,
        queue: str | None = None,
        batch_size: int = 1,
        lease: Seconds = DEQUEUE_LEASE,
        capabilities: Iterable[str] = (),
        wait: Seconds = 0.0,
    ) -> list[Task]:
        """Lease up to `batch_size` tasks; an empty list if none came within `wait` seconds.

        `qo.decode(task.payload)` is the payload as it was submitted; bytes need no decoding.
        """
        if not is_a(batch_size, int) or batch_size < 1:
            raise InvalidTask("batch_size", f"{show(batch_size)} is not a whole number from 1 on")
        request = ClaimRequest(
            worker_id=self._worker_id,
            lease_id=new_lease_id(),
            queues=() if queue is None else (check_name("queue", queue),),
            types=() if type is None else (check_type("type", type),),
            capabilities=frozenset(check_names("capabilities", capabilities)),
            limit=batch_size,
            lease=_some("lease", lease),
        )
        until = boot_clock() + seconds(wait)
        while True:
            await self._recover()
            tasks = await self._claim(request)
            left = until - boot_clock()
            if tasks or left <= 0:
                tasks = [plain_task(task) for task in tasks]
                self.held.update((task.id, task) for task in tasks)
                for task in tasks:
                    log_started(task)
                return tasks
            await self.engine.wait(request, min(left, max(_SHORTEST_WAIT, self.settings.recovery_interval)))

    async def _recover(self) -> None:
        """Look for expired leases now and then, because no monitor need run beside code that dequeues."""
        if boot_clock() < self._recovers_at:
            return
        self._recovers_at = boot_clock() + self.settings.recovery_interval
        try:
            await self.requeue_stale()
            await self._tidy()
        except (StorageError, Conflict) as error:  # the claim that follows tells its caller
            log.debug("expired leases were not looked for: %s", error)

    async def _tidy(self) -> None:
        if self.engine.default_retention and boot_clock() >= self._tidies_at:
            self._tidies_at = boot_clock() + _TIDY_INTERVAL
            await Retention(finished=self.settings.retention, window=self.settings.window).tidy(self.engine)

    async def requeue_stale(self, timeout: Seconds = 0.0) -> int:
        """Give the tasks of workers that went silent to others; how many there were.

        These are tasks whose lease ran out at least five seconds ago (clocks may disagree) and whose last heartbeat is
        at least `timeout` ago; a lease that still runs is never ended. A lost attempt is a failure: the task comes
        again after its back-off, or ends when its retries are used up. `dequeue` does this by itself every
        `Settings.recovery_interval` seconds.
        """
        return len(await self._expiry.expire(timeout=_any("timeout", timeout)))

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        claiming = asyncio.ensure_future(self.engine.claim(request))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The store may have leased tasks to a caller who is gone: hand them back.
            await asyncio.wait([claiming])
            if not claiming.cancelled() and claiming.exception() is None and (tasks := claiming.result()):
                await self.engine.apply([release(task, None) for task in tasks])
            raise

    async def ack(self, task: Task | str, result: object = None) -> None:
        """The task is done; keep its result."""
        data = encode_value(result, "result")
        check_size("result", data, self.payload_limit)
        await self._settle(task, lambda held: complete(held, data))

    async def nack(self, task: Task | str, error: str = "nack", *, delay: Seconds | None = None) -> None:
        """The task failed: it comes again after its back-off (or `delay`), or ends when its retries are used up."""
        after = None if delay is None else _any("delay", delay)
        await self._settle(task, lambda held: after_error(held, error, luck=luck(), after=after))

    async def release(self, task: Task | str, *, delay: Seconds = 0.0) -> None:
        """Hand a task back unfinished; it costs no retry."""
        after = _any("delay", delay)
        await self._settle(task, lambda held: release(held, after))

    async def heartbeat(self, task: Task | str, *, lease: Seconds | None = None) -> None:
        """Still working: the lease now runs for `lease` seconds more, or as long as it was dequeued for."""
        held = self._lease_of(task)
        length = lease_length(held) if lease is None else _some("lease", lease)
        if not await self._applying.commit(renew(held, length)):
            self._forget(held)
            raise _lost(held)

    async def _settle(self, task: Task | str, how: Callable[[Task], Change]) -> None:
        held = self._lease_of(task)
        change = how(held)
        settled = await self._applying.commit(change)
        self._forget(held)
        if not settled:
            raise _lost(held)
        if self.transitions.is_first(change):
            self.transitions.settled(held, change)

    def _forget(self, held: Task) -> None:
        known = self.held.get(held.id)
        if known is not None and known.lease_id == held.lease_id:  # a later attempt may be held here by now
            del self.held[held.id]

    def _lease_of(self, task: Task | str) -> Task:
        if isinstance(task, Task):
            return task
        held = self.held.get(task)
        if held is None:
            raise TaskNotFound(f"task {task} was not dequeued here, or is settled already", task_id=task)
        return held

    async def consumer(self, name: str) -> Consumer:
        """A shorthand for taking tasks from one queue."""
        return Consumer(self, check_name("queue", name))


def _some(field: str, duration: Seconds) -> float:
    check_number(field, given := seconds(duration), above=0.0)
    return given


def _any(field: str, duration: Seconds) -> float:
    check_number(field, given := seconds(duration))
    return given


def _lost(task: Task) -> LeaseLost:
    return LeaseLost(
        f"task {task.id} is no longer held by attempt {task.attempt}: its lease expired or it was cancelled",
        task_id=task.id,
    )
