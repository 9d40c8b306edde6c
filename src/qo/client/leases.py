"""The tasks that a client has dequeued: claims them, renews their leases and settles them.

Code that dequeues needs no monitor: `dequeue` also expires the leases of dead workers and applies retention.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from qo.clock import Clock, boot_clock, monotonic_clock, unset_clock
from qo.codec import plain_task
from qo.errors import Conflict, LeaseLost, StorageError, TaskNotFound
from qo.group_commit import GroupCommit
from qo.handled_types import REGISTRATION_INTERVAL, ConsumerRegistration
from qo.ids import new_worker_id
from qo.model import Change, ClaimRequest, Task, release, renew
from qo.sweep import LeaseExpiry, Retention, lease_length
from qo.transitions import log_started

if TYPE_CHECKING:
    from qo.client.client import Client

log = logging.getLogger("qo.client")
_MIN_WAIT = 0.1  # seconds in one call of `Engine.wait`
_RETENTION_INTERVAL = 60.0  # seconds between two runs of retention


class TaskLeases:
    """Of one client. Settlements of concurrent callers share a write."""

    def __init__(self, client: "Client", settlements: GroupCommit[Change, bool], clock: Clock) -> None:
        self._client, self._settlements = client, settlements
        elapsed = unset_clock(clock, monotonic_clock)
        self._expiry = LeaseExpiry(client.engine, client.transitions, elapsed, checks_ahead=True)
        self.worker_id = new_worker_id("dequeue")
        self._registration = ConsumerRegistration(client.engine)
        self.held: dict[str, Task] = {}  # dequeued and not settled, by id
        self._sources: dict[str, tuple[str, str]] = {}  # the queue and type that were asked for, by id of a held task
        self._recovers_at = self._retains_at = float("-inf")  # the next time, by the boot clock

    async def dequeue(self, request: ClaimRequest, *, wait: float) -> list[Task]:
        """Claim tasks, waiting for up to `wait` seconds until there are some."""
        until = boot_clock() + wait
        while True:
            await self._recover()
            tasks = await self._claim(request)
            source = next(iter(request.queues), ""), next(iter(request.types), "")
            self._registration.register(*source, lease=request.lease if tasks else 0.0)
            left = until - boot_clock()
            if tasks or left <= 0:
                tasks = [plain_task(task) for task in tasks]
                self.held.update((task.id, task) for task in tasks)
                self._sources.update((task.id, source) for task in tasks)
                for task in tasks:
                    log_started(task)
                self._registration.make_known(task.type for task in tasks)
                return tasks
            interval = min(REGISTRATION_INTERVAL, max(_MIN_WAIT, self._client.settings.recovery_interval))
            await self._client.engine.wait(request, min(left, interval))

    async def finish(self) -> None:
        """Wait for the writes of the consumer's registration."""
        await self._registration.finish()

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        engine = self._client.engine
        claim = asyncio.ensure_future(engine.claim(request))
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            # The store may have leased tasks although the caller was cancelled: release them.
            await asyncio.wait([claim])
            if not claim.cancelled() and claim.exception() is None and (tasks := claim.result()):
                await engine.apply([release(task, None) for task in tasks])
            raise

    async def _recover(self) -> None:
        """Expire leases and apply retention, each at its interval."""
        if boot_clock() < self._recovers_at:
            return
        engine, settings = self._client.engine, self._client.settings
        self._recovers_at = boot_clock() + settings.recovery_interval
        try:
            await self.expire(timeout=0.0)
            if engine.default_retention and boot_clock() >= self._retains_at:
                self._retains_at = boot_clock() + _RETENTION_INTERVAL
                await Retention(finished=settings.retention, window=settings.window).tidy(engine)
        except (StorageError, Conflict) as error:  # the claim that follows raises if the store is unreachable
            log.debug("did not expire leases: %s", error)

    async def expire(self, *, timeout: float) -> int:
        """Expire the leases of dead workers; returns their number. See `LeaseExpiry.expire`."""
        return len(await self._expiry.expire(timeout=timeout))

    async def renew(self, task: Task | str, lease: float | None) -> None:
        """Extend the lease of a task, by the length it was dequeued with if `lease` is None. Raises LeaseLost."""
        held = self._find(task)
        length = lease_length(held) if lease is None else lease
        if not await self._settlements.commit(renew(held, length)):
            self._forget(held)
            raise _lost(held)
        if held.id in self._sources:
            self._registration.register(*self._sources[held.id], lease=length)

    async def settle(self, task: Task | str, make_change: Callable[[Task], Change]) -> None:
        """Write the outcome of an attempt. Raises LeaseLost."""
        held = self._find(task)
        change = make_change(held)
        is_settled = await self._settlements.commit(change)
        self._forget(held)
        if not is_settled:
            raise _lost(held)
        transitions = self._client.transitions
        if transitions.is_first(change):
            transitions.settled(held, change)

    def _find(self, task: Task | str) -> Task:
        if isinstance(task, Task):
            return task
        held = self.held.get(task)
        if held is None:
            raise TaskNotFound(f"task {task} was not dequeued by this client, or is already settled", task_id=task)
        return held

    def _forget(self, held: Task) -> None:
        known = self.held.get(held.id)
        if known is not None and known.lease_id == held.lease_id:  # a later attempt of the task may be held here
            del self.held[held.id]
            self._sources.pop(held.id, None)


def _lost(task: Task) -> LeaseLost:
    return LeaseLost(
        f"attempt {task.attempt} of task {task.id} has lost its lease: it expired, or the task was cancelled",
        task_id=task.id,
    )
