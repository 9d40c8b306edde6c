"""The tasks that a client has dequeued: claims them, renews their leases and settles them.

Code that dequeues needs no monitor: `dequeue` also expires the leases of dead workers and applies retention.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qo.clock import Clock, boot_clock, monotonic_clock, unset_clock
from qo.codec import plain_task
from qo.errors import Conflict, LeaseLost, Refused, StorageError, TaskNotFound
from qo.fleet_limits.limited_claims import LimitedClaims
from qo.group_commit import GroupCommit
from qo.handled_types import REGISTRATION_INTERVAL, ConsumerRegistration
from qo.ids import new_token, new_worker_id
from qo.model import Change, ClaimRequest, Task, group_key, release, renew
from qo.sweep import LeaseExpiry, Retention, lease_length
from qo.transitions import log_started

if TYPE_CHECKING:
    from qo.client.client import Client

log = logging.getLogger("qo.client")
_MIN_WAIT = 0.1  # seconds in one call of `Engine.wait`
_RETENTION_INTERVAL = 60.0  # seconds between two runs of retention


class TaskLeases:
    """One per client. Settlements of concurrent callers share a write."""

    def __init__(self, client: "Client", settlements: GroupCommit[Change, bool], clock: Clock) -> None:
        self._client, self._settlements = client, settlements
        elapsed = unset_clock(clock, monotonic_clock)
        self._expiry = LeaseExpiry(client.engine, client.transitions, elapsed, checks_ahead=True)
        self.worker_id = new_worker_id("dequeue")
        self._registration = ConsumerRegistration(client.engine)
        self._limits = LimitedClaims(client.engine, clock, self._claim)
        self._held_groups: Counter[str] = Counter()  # held tasks by `group_key`
        self._limits.share_fairly(self._held_groups)
        self._may_not_read_limits = False
        self.held: dict[str, Task] = {}  # dequeued and not settled, by id
        self._sources: dict[str, tuple[str, str]] = {}  # the requested queue and type, by id of a held task
        self._recovers_at = self._retains_at = float("-inf")  # the next time, by the boot clock

    async def dequeue(self, request: ClaimRequest, *, wait: float) -> list[Task]:
        """Claim tasks, waiting for up to `wait` seconds until there are some."""
        until = boot_clock() + wait
        while True:
            await self._recover()
            tasks = await self._claim_within_limits(request)
            source = next(iter(request.queues), ""), next(iter(request.types), "")
            self._registration.register(*source, lease=request.lease if tasks else 0.0)
            left = until - boot_clock()
            if tasks or left <= 0:
                tasks = [plain_task(task) for task in tasks]
                for task in tasks:
                    self._hold(task)
                self._sources.update((task.id, source) for task in tasks)
                for task in tasks:
                    log_started(task)
                self._registration.make_known(task.type for task in tasks)
                return tasks
            interval = min(REGISTRATION_INTERVAL, max(_MIN_WAIT, self._client.settings.recovery_interval))
            await self._wait(request, min(left, interval))

    async def _claim_within_limits(self, request: ClaimRequest) -> list[Task]:
        """The tasks of a request that the fleet limits allow to start."""
        try:
            await self._limits.read_rules()
        except Refused as error:
            if not self._may_not_read_limits:
                self._may_not_read_limits = True
                log.warning(
                    "dequeue takes only tasks without a group, because this client may not read the limits: %s",
                    error,
                )
            return await self._claim(request)
        found: list[Task] = []
        has_more = True
        while has_more and len(found) < request.limit:
            left = replace(request, limit=request.limit - len(found), lease_id=new_token())
            try:
                narrowed = await self._limits.narrow(left)
                if narrowed is None:
                    break
                tasks, has_more = await self._limits.claim(narrowed)
            except BaseException:
                await self._limits.release(found)
                raise
            found += tasks
        return found

    async def _wait(self, request: ClaimRequest, longest: float) -> None:
        """Wait until a claim may succeed. The tasks of a full group do not end the wait."""
        gate = self._limits.gate
        narrowed = gate.narrow(request)
        longest = gate.next_request_in(longest)
        # A request for all queues cannot exclude one.
        if narrowed is None or (not narrowed.queues and gate.full_queues):
            await asyncio.sleep(longest)
        else:
            await self._client.engine.wait(narrowed, longest)

    async def finish(self) -> None:
        """Wait for the writes of the consumer's registration and of freed slots."""
        await self._registration.finish()
        await self._limits.gate.close()

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
        self._limits.gate.ended([held])  # the caller has stopped working on it, with or without the lease
        # Where clients do not register, a write after this call could make a write of another process fail.
        if not self._client.engine.registers_consumers:
            await self._limits.gate.release()
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

    def _hold(self, task: Task) -> None:
        self.held[task.id] = task
        if task.group is not None:
            self._held_groups[group_key(task.type, task.group)] += 1

    def _forget(self, held: Task) -> None:
        known = self.held.get(held.id)
        if known is not None and known.lease_id == held.lease_id:  # a later attempt of the task may be held here
            del self.held[held.id]
            if held.group is not None:
                key = group_key(held.type, held.group)
                self._held_groups[key] -= 1
                if not self._held_groups[key]:
                    del self._held_groups[key]
            self._sources.pop(held.id, None)


def _lost(task: Task) -> LeaseLost:
    return LeaseLost(
        f"attempt {task.attempt} of task {task.id} has lost its lease: it expired, or the task was cancelled",
        task_id=task.id,
    )
