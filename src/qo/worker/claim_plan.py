"""Builds a worker's claim requests: what it may claim, how many tasks ahead, and for how long."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from qo.clock import Clock
from qo.executors.run import Run
from qo.executors.run_table import LeasedRuns
from qo.executors.start_queue import StartQueue
from qo.ids import new_token
from qo.model import ClaimRequest, Task
from qo.worker.controls import ClaimScope
from qo.worker.settings import WorkerSettings

log = logging.getLogger("qo.worker")
HORIZON, _MAX_HORIZON = 0.1, 1.0  # seconds of work to prefetch, at least and at most
# On a store with slow writes one half of the tasks is claimed while the other half is settled, and each takes about as
# long as a claim. A horizon of only two claims would lower the rate, which would shrink the next claim, and so on.
_CLAIMS_AHEAD = 8
_MIN_CLAIM_SHARE = 4  # of the prefetch; a claim of fewer quick tasks waits until more of them have started
_RATE_WINDOW = 0.02  # seconds over which the rate is measured
_MIN_FIRST_RUNS = 4  # from which the first rate is measured, if they end sooner
_OLD_RATE_WEIGHT = 0.5  # weight of the previous rate when the rate falls
_RUN_TIME_WEIGHT = 0.2  # weight of the latest run in the average run time of its type
_MIN_RUN_TIME = 1e-6  # seconds; avoids a division by zero
_BUSY_PERIOD = 10.0  # seconds a worker counts as busy after a claim that returned tasks
_CLAIM_FACTOR = 4  # a lease lasts this many claims, to receive the tasks and to renew their leases in time
_MAX_LEASE = 60.0  # seconds; a slower store counts as unreachable
_LEASE_DECAY = 0.98  # per claim; slow, because a claim that returns nothing is quick and does not predict the next one
_OVERTAKEN_PERIOD = 30.0  # seconds for which a type is not prefetched after its tasks were overtaken


class Prefetch:
    """How many tasks to prefetch: those that will start soon, judged by recent run times of each type."""

    def __init__(self, limit: int, slots: int, clock: Clock, ended: Callable[[], int]) -> None:
        """`clock` stands still while the worker has nothing to run: only the rate at which it can run tasks counts.

        `ended` tells how many runs have ended so far. It includes those that a slow store has not settled yet.
        """
        self._limit, self._slots, self._clock, self._ended = limit, slots, clock, ended
        self._since, self._ended_before, self._rate = clock(), ended(), 0.0
        self.horizon, self._previous_claim = HORIZON, 0.0  # both in seconds
        self._usual: dict[str, float] = {}  # average seconds of a run, by type

    def ran(self, type: str, took: float, runs: int = 1) -> None:
        """Adapt to this many runs, which took `took` seconds on average."""
        usual = self._usual.get(type, took)
        self._usual[type] = usual + (took - usual) * (1 - (1 - _RUN_TIME_WEIGHT) ** runs)

    def claimed(self, took: float) -> None:
        """Adapt to a claim that took `took` seconds: the prefetched tasks should last for several claims.

        A single slow claim does not predict the next ones, so the quicker of the last two counts.
        """
        usual, self._previous_claim = min(took, self._previous_claim), took
        self.horizon = min(_MAX_HORIZON, max(HORIZON, _CLAIMS_AHEAD * usual))

    @property
    def parts(self) -> int:
        """Into how many claims the prefetched tasks are divided.

        Two: one half runs while the other half is being claimed or settled. Three on a store with slow writes: one part
        runs while another one is being claimed and the last one settled, so that neither waits for the other.
        """
        return 2 if self.horizon <= HORIZON else 3

    def ahead(self) -> int:
        """How many tasks to hold beyond the running ones, if all are quick."""
        now, ended = self._clock(), self._ended()
        passed, runs = now - self._since, ended - self._ended_before
        is_first = passed > 0 and not self._rate and runs >= _MIN_FIRST_RUNS
        if passed >= _RATE_WINDOW or is_first:
            rate = runs / passed
            # The number of claimed tasks limits the measured rate, so a rising rate is adopted immediately.
            self._rate = max(rate, _OLD_RATE_WEIGHT * self._rate + (1 - _OLD_RATE_WEIGHT) * rate)
            self._since, self._ended_before = now, ended
        return min(self._limit, int(self._rate * self.horizon))

    def ahead_of(self, type: str) -> int:
        """How many tasks of this type all slots together would start within the horizon; 0 if none has ended yet."""
        usual = self._usual.get(type)
        return 0 if usual is None else min(self._limit, int(self._slots * self.horizon / max(usual, _MIN_RUN_TIME)))


class OvertakenTypes:
    """Types whose tasks do not start because the tasks of other types rank before them.

    A claim returns tasks of each type up to its limit, so also some that rank behind thousands of another type. They
    would get no slot, be released and be claimed again. Instead, while no slot is free, the worker does not prefetch
    these types, and periodically claims the store's first task of all types.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}  # by type: when its last settled run began
        self._until: dict[str, float] = {}  # by type: when it is prefetched again
        self._first_claim_at = float("-inf")

    def began(self, type: str, at: float) -> None:
        """Record that a handler began. A type whose handlers begin is not overtaken."""
        self._began[type] = max(at, self._began.get(type, at))
        self._until.pop(type, None)

    def unstarted(self, type: str, since: float) -> None:
        """Record a task that has been waiting for a slot since this time and got none."""
        if self._began.get(type, since) <= since and any(at > since for at in self._began.values()):
            self._until[type] = self._clock() + _OVERTAKEN_PERIOD

    def current(self) -> frozenset[str]:
        now = self._clock()
        return frozenset(type for type, until in self._until.items() if now < until)

    def needs_first_task(self, interval: float) -> bool:
        """Whether to claim the store's first task now, which may be of an overtaken type. True once in an interval."""
        now = self._clock()
        if now - self._first_claim_at < interval:
            return False
        self._first_claim_at = now
        return True


class LeaseLength:
    """The length of a worker's leases: as configured, or longer if the store is slow.

    A task starts only under a lease that has not expired, counted from the moment its claim was sent. If a claim took
    longer than a lease, the worker would release every task.
    """

    def __init__(self, asked: float) -> None:
        self.asked = self._needed = asked
        self._has_warned = False

    @property
    def seconds(self) -> float:
        return max(self.asked, self._needed)

    def claimed(self, took: float) -> None:
        """Adapt to a claim that took `took` seconds."""
        self._needed = max(min(_MAX_LEASE, _CLAIM_FACTOR * took), _LEASE_DECAY * self._needed)
        if self._needed > self.asked and took > self.asked / 2 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "a claim takes %.1f s, too long for leases of %g s: using leases of %.1f s",
                took,
                self.asked,
                self.seconds,
            )


class ClaimPlan:
    def __init__(
        self,
        scope: ClaimScope,
        leased_runs: LeasedRuns,
        queue: StartQueue,
        settings: WorkerSettings,
        *,
        worker_id: str,
        clock: Clock,
    ) -> None:
        self._scope, self._leased_runs, self._queue, self._settings = scope, leased_runs, queue, settings
        self._worker_id, self._clock = worker_id, clock
        self._limits = scope.limits
        self.lease = LeaseLength(settings.lease)
        # A worker that waits for a slow claim has nothing to run. If this time counted, the rate would fall, which
        # would shrink the next claim, and so on.
        self.prefetch = Prefetch(settings.prefetch, settings.concurrency, queue.busy_time, lambda: queue.ended_runs)
        self.overtaken = OvertakenTypes(clock)
        # Of the last request: prefetch limits by type, without rate and concurrency limits.
        self._caps: dict[str, int] = {}
        self._busy_until = float("-inf")
        self.claim_took = 0.0  # seconds that the last claim took
        self.changed = asyncio.Event()  # set when the next request may differ from the last one

    @property
    def is_busy(self) -> bool:
        """Whether a claim has returned tasks within the last `_BUSY_PERIOD` seconds."""
        return self._clock() < self._busy_until

    def request(self) -> ClaimRequest | None:
        """The next claim request; None if the worker is paused or has no free slot for a task it may run."""
        if self._scope.is_paused:
            return None
        barred, overtaken = self._queue.needs_claim, frozenset[str]()
        if barred:  # claim only the store's first tasks, for the slots that wait for them
            limit, self._caps = self._limits.total(self._queue.free_slots), {}
        else:
            ahead = self.prefetch.ahead()
            room = self._settings.concurrency + ahead - len(self._leased_runs)
            part = ahead // self.prefetch.parts
            if room <= part:  # a nearly full worker waits until a claim returns enough tasks to be worth its cost
                return None
            limit = self._limits.total(min(room, max(self._settings.concurrency, part)))
            limit, self._caps = self._startable(limit)
            if self._is_nearly_full(ahead):
                return None
            overtaken = self.overtaken.current() if self._queue.free <= 0 else frozenset[str]()
            if overtaken and self.overtaken.needs_first_task(self.prefetch.horizon):  # as old as claims ahead
                limit, self._caps, overtaken = min(limit, 1), {}, frozenset()
            self._caps = {type: most for type, most in self._caps.items() if type not in overtaken}
        per_type_limits = dict(self._caps)
        for type, most in self._limits.per_type_limits(self._scope.handlers, self._leased_runs.by_type).items():
            per_type_limits[type] = min(most, per_type_limits.get(type, most))
            if most <= self._caps.get(type, most):
                self._caps.pop(type, None)
        types = tuple(type for type in self._scope.types if per_type_limits.get(type, 1) > 0 and type not in overtaken)
        if limit <= 0 or not types:
            if barred:
                self._queue.lift_barrier()
            return None
        return self._build_request(
            types, limit, {type: most for type, most in per_type_limits.items() if 0 < most < limit}
        )

    def _is_nearly_full(self, ahead: int) -> bool:
        """Whether a claim would return few tasks: all types are quick, and many of their tasks wait for a slot."""
        if self._queue.free > 0 or not all(map(self.prefetch.ahead_of, self._scope.types)):
            return False
        return sum(self._caps.values()) <= ahead // _MIN_CLAIM_SHARE and bool(self._queue.waiting())

    def claimed(self, tasks: list[Task], took: float) -> None:
        """Adapt to a claim that took `took` seconds and returned `tasks`."""
        self.claim_took = took
        self.prefetch.claimed(took)
        self.lease.claimed(took)
        if tasks:
            self._busy_until = self._clock() + _BUSY_PERIOD

    def settled(self, runs: list[Run]) -> None:
        """Adapt to runs that were settled, and let the claim loop use their slots."""
        began: dict[str, float] = {}
        times: dict[str, list[float]] = {}
        for run in runs:
            if run.began is None:
                self._limits.returned(run.task.type)
            elif run.ended is not None:
                began[run.task.type] = max(run.began, began.get(run.task.type, run.began))
                times.setdefault(run.task.type, []).append(run.ended - run.began)
        for type, took in times.items():
            self.overtaken.began(type, began[type])
            self.prefetch.ran(type, fmean(took), len(took))
        self.changed.set()

    def unstarted(self, run: Run) -> None:
        """Adapt to a run that has waited for a slot for too long."""
        self.overtaken.unstarted(run.task.type, run.received)

    def cut(self, tasks: Iterable[Task]) -> list[str]:
        """The types whose prefetch limit cut off the last claim, so the store may hold more tasks of them.

        Tasks of other types must not overtake these, but may overtake tasks that a rate or concurrency limit blocks.
        """
        got = Counter(task.type for task in tasks) if self._caps else Counter[str]()
        return [type for type, most in self._caps.items() if got[type] >= most]

    def _startable(self, limit: int) -> tuple[int, dict[str, int]]:
        """How many tasks will start within the prefetch horizon: in total, and by type.

        A task of any type starts immediately in a free slot. Beyond that, only tasks of quick types are prefetched.
        While quick tasks are prefetched, slow types share the slots that slow tasks do not use. These slots become free
        soon, and without this share prefetched quick tasks would starve slow ones. A type counts as slow until one of
        its tasks has finished.
        """
        free, waiting = self._queue.free, self._queue.waiting()
        quick = {type: self.prefetch.ahead_of(type) for type in self._scope.types}
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
            queues=self._scope.queues,
            types=types,
            capabilities=frozenset(self._settings.capabilities),
            limit=limit,
            lease=self.lease.seconds,
            per_type_limits=per_type_limits,
            is_prefetch=True,
        )
