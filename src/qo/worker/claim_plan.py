"""Builds a worker's claim requests: its queues and types without those that are paused, full or out of tokens."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

from qo.clock import Clock
from qo.engine import Engine
from qo.ids import new_token
from qo.model import MAX_NAMES, ClaimRequest, Status, Task
from qo.notes import CONTROL, NO_HANDLER, Controls, read_or
from qo.tasks import Handler
from qo.worker.lease_length import LeaseLength
from qo.worker.leased_runs import LeasedRuns
from qo.worker.limits import Limits
from qo.worker.prefetch import Prefetch
from qo.worker.settings import WorkerSettings
from qo.worker.start_queue import StartQueue


class ClaimPlan:
    def __init__(
        self,
        engine: Engine,
        handlers: Mapping[str, Handler],
        held: LeasedRuns,
        queue: StartQueue,
        settings: WorkerSettings,
        *,
        worker_id: str,
        clock: Clock,
    ) -> None:
        self._engine, self._handlers, self._settings = engine, handlers, settings
        self._leased_runs, self._queue = held, queue
        self._worker_id, self._clock = worker_id, clock
        self.limits = Limits(clock)
        self.lease = LeaseLength(settings.lease)
        self.prefetch = Prefetch(settings.prefetch, settings.concurrency, clock)
        self._control = Controls()
        self.controls_read_at = float("-inf")
        self._reads, self._last_read = count(1), 0  # of the controls; two reads may be in progress at once
        self._queues = settings.queues
        self._types = tuple(handlers)
        self._caps: dict[
            str, int
        ] = {}  # of the last request: prefetch limits by type, without rate and concurrency limits
        self.limits.apply_controls(self._control, handlers)

    def request(self) -> ClaimRequest | None:
        """The next claim request; None if the worker is paused or has no free slot for a task it may run."""
        if self.is_paused:
            return None
        barred = self._queue.needs_claim
        if barred:  # claim only the store's first tasks, for the slots that wait for them
            limit, self._caps = self.limits.total(self._queue.free_slots), {}
        else:
            ahead = self.prefetch.ahead()
            room = self._settings.concurrency + ahead - len(self._leased_runs)
            if room <= ahead // 2:  # a nearly full worker waits until a claim returns enough tasks to be worth its cost
                return None
            # Claim half of the capacity: one half runs while the other half is being claimed or settled.
            limit = self.limits.total(min(room, max(self._settings.concurrency, ahead // 2)))
            limit, self._caps = self._startable(limit)
        per_type_limits = dict(self._caps)
        for type, most in self.limits.per_type_limits(self._handlers, self._leased_runs.by_type).items():
            per_type_limits[type] = min(most, per_type_limits.get(type, most))
            if most <= self._caps.get(type, most):
                self._caps.pop(type, None)
        types = tuple(type for type in self._types if per_type_limits.get(type, 1) > 0)
        if limit <= 0 or not types:
            if barred:
                self._queue.lift_barrier()
            return None
        return self._build_request(
            types, limit, {type: most for type, most in per_type_limits.items() if 0 < most < limit}
        )

    def cut(self, tasks: Iterable[Task]) -> list[str]:
        """The types whose prefetch limit cut off the last claim, so the store may hold more tasks of them.

        Tasks of other types must not overtake these, but may overtake tasks that a rate or concurrency limit blocks.
        """
        got = Counter(task.type for task in tasks) if self._caps else Counter[str]()
        return [type for type, most in self._caps.items() if got[type] >= most]

    def _startable(self, limit: int) -> tuple[int, dict[str, int]]:
        """How many tasks will start within the prefetch horizon: in total, and by type.

        A task of any type starts at once in a free slot. Beyond that, only tasks of quick types are prefetched.
        While quick tasks are prefetched, slow types share the slots that slow tasks do not use. These slots become
        free soon, and without this share prefetched quick tasks would starve slow ones. A type counts as slow until a
        task of it has ended.
        """
        free, waiting = self._queue.free, self._queue.waiting()
        quick = {type: self.prefetch.ahead_of(type) for type in self._types}
        slow = [type for type, ahead in quick.items() if ahead <= 0]
        if free > 0 and len(slow) > 1 and (limit <= free or len(slow) == len(quick)):
            return min(limit, free), {}
        per_type_limits = {type: max(0, free + ahead - waiting[type]) for type, ahead in quick.items()}
        if slow and (free <= 0 or len(slow) > 1):
            left = self._settings.concurrency - sum(self._leased_runs.by_type[type] for type in slow)
            share = max(1, left // len(slow)) if left > 0 else 0
            per_type_limits |= {type: max(0, share - waiting[type]) for type in slow}
        return limit, per_type_limits

    def _build_request(self, types: tuple[str, ...], limit: int, per_type_limits: Mapping[str, int]) -> ClaimRequest:
        return ClaimRequest(
            worker_id=self._worker_id,
            lease_id=new_token(),
            queues=self._queues,
            types=types,
            capabilities=frozenset(self._settings.capabilities),
            limit=limit,
            lease=self.lease.seconds,
            per_type_limits=per_type_limits,
            is_prefetch=True,
        )

    @property
    def drain_requested(self) -> bool:
        """Whether the controls ask this worker to drain."""
        return self._worker_id in self._control.draining

    def refresh(self) -> None:
        """Apply a change of the handlers or the controls."""
        self.limits.apply_controls(self._control, self._handlers)
        self._types = tuple(type for type in self._handlers if type not in self._control.paused_types)

    async def apply_controls(self) -> None:
        """Read and apply the controls. Raises StorageError."""
        # Set before the read: if the store is unreachable, the next read waits until the controls are stale.
        self.controls_read_at = self._clock()
        number = next(self._reads)
        control = await read_or(self._engine, CONTROL, Controls, self._control)
        if number < self._last_read:  # a later read was answered first, so this answer may predate a pause
            return
        self._control, self._last_read = control, number
        self.refresh()
        self._queues = self._settings.queues
        if control.paused_queues:
            queues = self._settings.queues or await self._queues_with_tasks(control)
            if number < self._last_read:
                return
            self._queues = tuple(queue for queue in queues if queue not in control.paused_queues)[:MAX_NAMES]
            if not self._queues:
                self._types = ()

    async def _queues_with_tasks(self, control: Controls) -> list[str]:
        """Queues that are not paused, those with pending tasks first, because a server limits the queues of a claim."""
        queues: dict[str, bool] = {}
        for lane in await self._engine.count():
            if lane.queue not in control.paused_queues:
                queues[lane.queue] = queues.get(lane.queue, False) or lane.status is Status.PENDING
        return sorted(queues, key=lambda queue: (not queues[queue], queue))

    def is_held_back(self, task: Task) -> bool:
        """Whether a pause keeps this task from starting."""
        control = self._control
        return control.paused or task.type in control.paused_types or task.queue in control.paused_queues

    @property
    def types(self) -> tuple[str, ...]:
        """The types this worker has handlers for, without paused ones."""
        return () if self._control.paused else self._types

    def why_not(self, queue: str, type: str, *, is_handled: bool) -> str:
        """Why pending tasks of this queue and type were left although the worker has drained.

        `is_handled`: this or another worker handles them.
        """
        control = self._control
        if control.paused:
            return "paused"
        if queue in control.paused_queues:
            return f"queue {queue} paused"
        if type in control.paused_types:
            return "type paused"
        if type in self._handlers:
            return "not due yet, or for other workers"
        return "no handler here" if is_handled else NO_HANDLER

    def serves_queue(self, queue: str) -> bool:
        return not self._settings.queues or queue in self._settings.queues

    @property
    def is_paused(self) -> bool:
        """Whether everything this worker could run is paused."""
        return self._control.paused or not self._types

    def lacks_handler(self, queue: str, type: str) -> bool:
        """Whether this worker serves the queue, has no handler for the type, and neither is paused."""
        control = self._control
        is_held_back = control.paused or type in control.paused_types or queue in control.paused_queues
        return type not in self._handlers and self.serves_queue(queue) and not is_held_back
