"""Runs that wait for a slot, in rank order across all executors, and the slots of those that run."""

import heapq
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Protocol

from qo.clock import Clock, boot_clock
from qo.model import effective_rank
from qo.transitions import log_started
from qo.worker.run import Run
from qo.worker.run_table import RunTable


class Puller(Protocol):
    """An executor as the queue sees it: `run.executor`."""

    def pull(self) -> bool:
        """Take the first run if it is for this executor. True: ask again for the next one. From any thread."""


class StartQueue:
    """Only the run that comes first may start, and only the executor it is meant for may take it.

    A claim takes a limited number of tasks, in all and of some types, so the store may hold tasks that come before some
    of those that wait here. Runs behind the rank up to which the last claim took everything do not start (`is_barred`)
    until another claim was answered.

    A handler starts in two steps. `take` gives an executor a run and a slot. `begin` is called right before the
    handler and is the last moment at which a start can be refused: because the queue is closed or the run was recalled
    (a pause), or because the lease is over by this machine's own clock (the process was frozen).
    All methods may be called from any thread.
    """

    def __init__(self, slots: int, *, clock: Clock = boot_clock, table: RunTable | None = None) -> None:
        self._slots = self._free = slots
        self._clock, self._table = clock, table
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: list[tuple[float, int, Run]] = []  # a heap
        self._taken: set[Run] = set()
        self._refused: deque[Run] = deque()
        self._barrier = float("inf")  # the rank up to which the last claim took everything there was
        self._closed = False
        self.on_barred: Callable[[], None] = lambda: None  # called from any thread when a slot waits for a claim

    # --- for the worker

    def put(self, runs: Iterable[Run], *, cut: Collection[str] = (), is_full: bool = False) -> None:
        """Add what one claim gave, in its order. A later claim may give tasks that go before.

        The store may have more tasks of the types in `cut`, and more of any type if the answer `is_full`.
        """
        entries = []
        reached = float("-inf")
        for run in runs:
            task = run.task
            reached = max(reached, effective_rank(task.rank, task.due_at, task.updated_at))
            entries.append((reached, next(self._numbers), run))
        with self._lock:
            self._waiting.extend(entries)
            heapq.heapify(self._waiting)
            self._barrier = min([reached if is_full else float("inf"), *map(self._last_rank, cut)])
        self.pump()

    @property
    def is_barred(self) -> bool:
        """A slot is free, and what waits for it must not start before another claim was answered."""
        with self._lock:
            return self._bars()

    @property
    def free_slots(self) -> int:
        """Slots in which nothing runs, whatever waits for them."""
        return self._free

    def unbar(self) -> None:
        """Let everything that waits start: no claim will bring anything that comes before."""
        with self._lock:
            self._barrier = float("inf")
        self.pump()

    def pump(self) -> None:
        """Let executors take what may start now."""
        asked: Puller | None = None  # it takes one run at a time, and asks for the next one itself
        while (puller := self._next_puller()) is not None and puller is not asked:
            asked = None if puller.pull() else puller

    def redirect(self, old: Puller, new: Puller) -> None:
        """Give what waits for one executor to another."""
        with self._lock:
            for _, _, run in self._waiting:
                if run.executor is old:
                    run.executor = new

    def close(self) -> None:
        """Let nothing begin from the moment this returns."""
        with self._lock:
            self._closed = True

    @property
    def is_closed(self) -> bool:
        return self._closed

    def reopen(self) -> None:
        with self._lock:
            self._closed = False
        self.pump()

    def take_back(
        self, which: Callable[[Run], bool] | None = None, *, received_before: float = float("inf")
    ) -> list[Run]:
        """Take out the waiting runs for which `which` holds."""
        if not self._waiting:
            return []
        with self._lock:
            waiting = [run for _, _, run in self._waiting if run.received < received_before]
            back = waiting if which is None else list(filter(which, waiting))
            if back:
                gone = set(back)
                self._waiting = [entry for entry in self._waiting if entry[2] not in gone]
                heapq.heapify(self._waiting)
        return back

    def recall(self, which: Callable[[Run], bool]) -> None:
        """Have `begin` refuse the runs for which `which` holds that an executor has taken and not begun."""
        with self._lock:
            taken = list(self._taken)
        for run in taken:
            if run.began is None and which(run):
                run.recalled = True

    def withdraw(self, run: Run) -> bool:
        """Keep a run from starting. False: its handler has begun."""
        run.settled = True  # an executor that has taken it is refused by `begin`
        if run.began is not None:
            return False
        self.take_back(lambda waiting: waiting is run)
        return True

    def refused(self) -> list[Run]:
        """The runs that an executor took and could not start, each once."""
        refused = []
        while self._refused:
            refused.append(self._refused.popleft())
        return refused

    def waiting(self) -> Counter[str]:
        """How many runs wait, by type."""
        with self._lock:
            return Counter(run.task.type for _, _, run in self._waiting)

    def running(self) -> list[Run]:
        """The runs whose handlers have begun and not ended, leases or not."""
        return [run for run in list(self._taken) if run.began is not None]

    @property
    def free(self) -> int:
        """Slots for which no run is waiting."""
        return max(0, self._free - len(self._waiting))

    # --- for executors

    def take(self, puller: Puller, ended: Run | None = None) -> Run | None:
        """The first run with a slot for it, if it is for `puller`. The slot of `ended` becomes free first."""
        with self._lock:
            if ended is not None:
                self._release(ended)
            run, barred = self._first(), self._bars()
            if run is not None and run.executor is puller:
                heapq.heappop(self._waiting)
                self._free -= 1
                self._taken.add(run)
                return run
        if barred:
            self.on_barred()
        return None

    def begin(self, run: Run) -> bool:
        """Whether its handler may start now; if not, the slot is free again and the worker hands the task back."""
        now = self._clock()
        # Without the lock, which costs more than all the rest: `close` and `withdraw` set their flag before they look
        # at `began`, and here it is the other way round, so at least one side sees the other.
        run.began = now
        if self._closed or run.recalled or run.settled or now >= run.lease_until:
            run.began = None
            self.refuse(run)
            return False
        run.ends_at = now + run.time_limit
        if self._table is not None:
            self._table.start(run, now)
        log_started(run.task)
        return True

    def refuse(self, run: Run) -> None:
        """Its handler does not start here."""
        self._refused.append(run)
        self.give(run)

    def give(self, run: Run) -> None:
        """The slot of this run is free again."""
        with self._lock:
            self._release(run)
            barred = self._bars()
        if barred:
            self.on_barred()

    def came_back(self, run: Run) -> None:
        """The handler of a run that was left behind has ended."""
        if self._table is not None:
            self._table.came_back(run)

    def _release(self, run: Run) -> None:
        if run in self._taken:
            self._taken.remove(run)
            self._free += 1

    def _next_puller(self) -> Puller | None:
        with self._lock:
            run = self._first()
            return None if run is None else run.executor

    def _first(self) -> Run | None:
        """The run that may start now. The caller has the lock."""
        if self._free <= 0 or self._closed or not self._waiting or self._waiting[0][0] > self._barrier:
            return None
        return self._waiting[0][2]

    def _bars(self) -> bool:
        return self._free > 0 and bool(self._waiting) and self._waiting[0][0] > self._barrier

    def _last_rank(self, type: str) -> float:
        """Of the waiting runs of this type; if there is none, any run may have one in the store before it."""
        return max((rank for rank, _, run in self._waiting if run.task.type == type), default=float("-inf"))

    def is_next(self, puller: Puller) -> bool:
        """Whether the first waiting run is for `puller`. Without the lock: a hint."""
        try:
            return self._waiting[0][2].executor is puller
        except IndexError:
            return False

    def __len__(self) -> int:
        """How many runs wait."""
        return len(self._waiting)
