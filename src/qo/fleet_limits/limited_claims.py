"""Claims within the fleet limits, for callers that start tasks when they receive them: `dequeue` and HTTP polls."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from qo import notes
from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import Conflict, StorageError
from qo.fleet_limits.limit_gate import LimitGate
from qo.fleet_limits.rules import LimitRules, read_declared
from qo.model import MAX_NAMES, ClaimRequest, Status, Task, plural, release
from qo.notes import CONTROL, Controls
from qo.store_time import StoreTime

log = logging.getLogger("qo.limits")
_RULES_AGE = 1.0  # seconds for which a read of the limits is reused


class LimitedClaims:
    """One per process. `claim` claims its tasks."""

    def __init__(self, engine: Engine, clock: Clock, claim: Callable[[ClaimRequest], Awaitable[list[Task]]]) -> None:
        self._engine, self._claim = engine, claim
        self._time = StoreTime(engine, clock)
        self.gate = LimitGate(engine, clock=boot_clock, store_time=self._time, starts_at_once=True)
        self.controls = Controls()
        self._read_at = float("-inf")

    def share_fairly(self, held: Mapping[str, int]) -> None:
        """Set the number of tasks that the caller holds, by `group_key`, for the turns between groups."""
        self.gate.turns.held = held

    async def read_rules(self) -> None:
        """Read the limits, at most once a second. Raises StorageError."""
        now = boot_clock()
        if now - self._read_at < _RULES_AGE:
            return
        self.controls, declared = await asyncio.gather(
            notes.read_or(self._engine, CONTROL, Controls, self.controls), read_declared(self._engine)
        )
        self.gate.set_rules(LimitRules(declared.types, self.controls.limits), declared.fair)
        if not self.gate.is_idle:
            await self._time.update()
        self._read_at = now

    async def narrow(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request without what the limits exclude; None if nothing is left. Raises StorageError."""
        await self.gate.refresh(request.types)
        narrowed = self.gate.narrow(request)
        if narrowed is None or narrowed.queues or not (full := self.gate.full_queues):
            return narrowed
        waiting = {lane.queue for lane in await self._engine.count() if lane.status is Status.PENDING}
        return replace(narrowed, queues=tuple(sorted(waiting - full)[:MAX_NAMES])) if waiting - full else None

    async def claim(self, request: ClaimRequest) -> tuple[list[Task], bool]:
        """Claim tasks of a narrowed request, and wait until the last of them may start. Raises StorageError.

        Also returns whether another claim now may return more, because the request was limited to the turn of each
        group.
        """
        tasks = await self._claim(request)
        has_more = self.gate.turns.claimed(len(tasks), request.limit)
        if self.gate.is_idle or not tasks:
            return tasks, has_more
        try:
            started, are_timed = await self._admit(tasks)
        except BaseException:
            await self.release(tasks)
            raise
        return started, has_more and not are_timed  # tasks with a start time must not wait for another claim

    async def _admit(self, tasks: list[Task]) -> tuple[list[Task], bool]:
        """The tasks that may start, returned when the last of them may start.

        Also returns whether a rate limit set the start time of some.
        """
        admitted = await self.gate.admit(tasks)
        refused = [task for task in tasks if task.id not in admitted]
        await self.release(refused, are_refused=True)  # before the start times of the others
        last = max((admission.start_at for admission in admitted.values()), default=float("-inf"))
        await asyncio.sleep(max(0.0, self.gate.seconds_until(last)))
        while late := {id for id, each in admitted.items() if self.gate.seconds_until(each.start_by) < 0}:
            admitted = {id: each for id, each in admitted.items() if id not in late}
            back = [task for task in tasks if task.id in late]
            await self.release(back, are_refused=True)  # this takes time, during which other tasks may become late
        are_timed = any(each.is_timed for each in admitted.values())
        return [task for task in tasks if task.id in admitted], are_timed

    async def release(self, tasks: list[Task], *, are_refused: bool = False) -> None:
        """Release tasks that do not start. This uses up no retries.

        If the store is unreachable, their leases expire.
        """
        if not tasks:
            return
        changes = [self.gate.refusal(task).release(task) if are_refused else release(task, None) for task in tasks]
        try:
            await self._engine.apply(changes)
        except (StorageError, Conflict) as error:
            log.warning("cannot release %s before the lease expires: %s", plural(len(tasks)), error)
        self.gate.ended(tasks)  # none of them runs
