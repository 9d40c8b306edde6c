"""The slots of a worker, for which runs wait in rank order across all executors."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from qo.clock import Clock, boot_clock
from qo.executors.run import Run
from qo.executors.run_table import RunTable
from qo.executors.start_order import StartOrder
from qo.model import Task
from qo.transitions import log_started


class Puller(Protocol):
    """What the queue needs of an executor (`run.executor`)."""

    def pull(self) -> bool:
        """Take the first run if it is for this executor. Returns True if the queue should call again for the next one.

        May be called from any thread.
        """


class StartQueue:
    """Only the first run may start, and only its own executor may take it.

    A run behind the barrier of the last claim (`start_order.py`) does not start until another claim was answered
    (`needs_claim`).

    A handler starts in two steps. `take` gives an executor a run and a slot. `begin` is called right before the handler
    and can still refuse the start: after a pause (the queue is closed, or the run was recalled), or if the lease has
    expired by the local clock (the process was frozen), or if it is too late for a rate limit.
    All methods may be called from any thread.
    """

    def __init__(self, slots: int, *, clock: Clock = boot_clock, table: RunTable | None = None) -> None:
        self._slots = self._free = slots
        self.ended_runs = 0  # those whose handlers have ended or were abandoned
        self._clock, self._table = clock, table
        self._lock = threading.Lock()
        self._order = StartOrder()  # the waiting runs
        self._taken: set[Run] = set()
        self._refused: deque[Run] = deque()
        self._closed = False
        self._idle_since: float | None = clock()  # None while a run waits or runs
        self._idle_time = 0.0  # seconds, without those since `_idle_since`
        # Called from any thread when `needs_claim` becomes true.
        self.on_claim_needed: Callable[[], None] = lambda: None
        self.on_started: Callable[[Run], None] = lambda _: None  # called from any thread right before a handler

    # --- for the worker

    def put(
        self, runs: Iterable[Run], *, cut: Collection[str] = (), is_full: bool = False, others: Iterable[Task] = ()
    ) -> None:
        """Add the runs of one claim, in its order. A later claim may return tasks that rank before them.

        The store may hold more tasks of the types in `cut`, and more of every type if `is_full`. `others` are tasks of
        the claim that do not wait here: they go back, or have their own start time.
        """
        with self._lock:
            self._order.add(runs, cut=cut, is_full=is_full, others=others)
            self._track_idle_time()
        self.dispatch()

    def put_first(self, run: Run) -> None:
        """Add a run that a claim returned earlier and whose time to start has come."""
        with self._lock:
            self._order.add_first(run)
            self._track_idle_time()
        self.dispatch()

    @property
    def needs_claim(self) -> bool:
        """Whether a slot is free, but the first waiting run must not start before another claim was answered."""
        with self._lock:
            return self._needs_claim()

    @property
    def free_slots(self) -> int:
        """Slots in which no handler runs, whether or not runs wait for them."""
        return self._free

    def lift_barrier(self) -> None:
        """Let all waiting runs start, because no claim can return a task that ranks before them."""
        with self._lock:
            self._order.lift_barrier()
        self.dispatch()

    def dispatch(self) -> None:
        """Let executors take the runs that may start now."""
        asked: Puller | None = None  # an executor that takes one run at a time and calls `take` for the next one itself
        while (puller := self._next_puller()) is not None and puller is not asked:
            asked = None if puller.pull() else puller

    def redirect(self, old: Puller, new: Puller) -> None:
        """Reassign the waiting runs of one executor to another."""
        with self._lock:
            for run in self._order:
                if run.executor is old:
                    run.executor = new

    def close(self) -> None:
        """Refuse all starts. After this returns, no handler starts until `reopen`."""
        with self._lock:
            self._closed = True

    @property
    def is_closed(self) -> bool:
        return self._closed

    def reopen(self) -> None:
        with self._lock:
            self._closed = False
        self.dispatch()

    def take_back(
        self, which: Callable[[Run], bool] | None = None, *, received_before: float = float("inf")
    ) -> list[Run]:
        """Remove and return the waiting runs for which `which` is true and that arrived before `received_before`."""
        if not self._order:
            return []
        with self._lock:
            waiting = [run for run in self._order if run.received < received_before]
            back = waiting if which is None else list(filter(which, waiting))
            if back:
                self._order.remove(back)
                self._track_idle_time()
        return back

    def recall(self, which: Callable[[Run], bool]) -> None:
        """Make `begin` refuse those runs that an executor has taken but not begun and for which `which` is true."""
        with self._lock:
            taken = list(self._taken)
        for run in taken:
            if run.began is None and which(run):
                run.recalled = True

    def withdraw(self, run: Run) -> bool:
        """Keep a run from starting. Returns False if its handler has begun."""
        run.settled = True  # if an executor has taken it already, `begin` refuses it
        if run.began is not None:
            return False
        self.take_back(lambda waiting: waiting is run)
        return True

    def refused(self) -> list[Run]:
        """Remove and return the runs that `begin` or an executor refused."""
        refused = []
        while self._refused:
            refused.append(self._refused.popleft())
        return refused

    def waiting(self) -> Counter[str]:
        """The number of waiting runs by type."""
        with self._lock:
            return Counter(run.task.type for run in self._order)

    def running(self) -> list[Run]:
        """The runs whose handlers run, whether or not their leases are still held."""
        return [run for run in list(self._taken) if run.began is not None]

    @property
    def free(self) -> int:
        """Free slots for which no run waits."""
        return max(0, self._free - len(self._order))

    def busy_time(self) -> float:
        """A clock that stands still while no run waits or runs."""
        with self._lock:
            now = self._clock()
            return now - self._idle_time - (0.0 if self._idle_since is None else now - self._idle_since)

    # --- for executors

    def take(self, puller: Puller, ended: Run | None = None) -> Run | None:
        """Take the first run and a slot if the run is for `puller`. The slot of `ended` is released first."""
        with self._lock:
            if ended is not None:
                self._release(ended)
            run, barred = self._first(), self._needs_claim()
            if run is not None and run.executor is puller:
                self._order.pop()
                self._free -= 1
                self._taken.add(run)
                return run
            self._track_idle_time()
        if barred:
            self.on_claim_needed()
        return None

    def begin(self, run: Run) -> bool:
        """Whether the run's handler may start now. If not, its slot is released and the worker hands the task back."""
        now = self._clock()
        # No lock, because it would cost more than the rest of this method. `close` and `withdraw` set their flag before
        # they read `began`; this method sets `began` before it reads the flags. So at least one side sees the other.
        run.began = now
        if self._closed or run.recalled or run.settled or now >= run.lease_until or now > run.start_by:
            run.began = None
            self.refuse(run)
            return False
        run.ends_at = now + run.time_limit
        if self._table is not None:
            self._table.start(run, now)
        log_started(run.task)
        self.on_started(run)
        return True

    def refuse(self, run: Run) -> None:
        """Release the slot of a run whose handler cannot start; the worker hands its task back."""
        self._refused.append(run)
        self.release_slot(run)

    def release_slot(self, run: Run) -> None:
        """Release the slot of this run."""
        with self._lock:
            self._release(run)
            self._track_idle_time()
            barred = self._needs_claim()
        if barred:
            self.on_claim_needed()

    def abandoned_ended(self, run: Run) -> None:
        """Record that the handler of an abandoned run has ended."""
        if self._table is not None:
            self._table.abandoned_ended(run)

    def _release(self, run: Run) -> None:
        if run in self._taken:
            self._taken.remove(run)
            self._free += 1
            self.ended_runs += run.began is not None

    def _track_idle_time(self) -> None:
        """Call when runs have come or gone. The caller holds the lock."""
        is_idle = not self._order and not self._taken
        if is_idle and self._idle_since is None:
            self._idle_since = self._clock()
        elif not is_idle and self._idle_since is not None:
            self._idle_time += self._clock() - self._idle_since
            self._idle_since = None

    def _next_puller(self) -> Puller | None:
        with self._lock:
            run = self._first()
            return None if run is None else run.executor

    def _first(self) -> Run | None:
        """The run that may start now, if any. The caller holds the lock."""
        return None if self._free <= 0 or self._closed else self._order.first()

    def _needs_claim(self) -> bool:
        return self._free > 0 and self._order.is_barred()

    def is_next(self, puller: Puller) -> bool:
        """Whether the first waiting run is for `puller`. Reads without the lock, so the answer is only a hint."""
        run = self._order.peek()
        return run is not None and run.executor is puller

    def __len__(self) -> int:
        """The number of waiting runs."""
        return len(self._order)
