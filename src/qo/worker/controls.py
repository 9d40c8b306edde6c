"""Pauses, rate limits and drain requests, as one worker applies them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import count

from qo import controls
from qo.clock import Clock
from qo.engine import Engine
from qo.executors.run import HANDED_BACK, Run
from qo.executors.start_queue import StartQueue
from qo.fleet_limits.limit_gate import LimitGate
from qo.fleet_limits.rules import LimitRules
from qo.handled_types import NO_HANDLER
from qo.model import MAX_NAMES, Status
from qo.notes import CONTROL, Controls, read_or
from qo.rate_limits import WHOLE, RateLimits
from qo.tasks import Handler
from qo.worker.settings import WorkerSettings
from qo.worker.settler import Settler
from qo.worker.waits import StopSignal, StoreCalls, idle_interval

log = logging.getLogger("qo.worker")
# All constants are in seconds.
_READ_INTERVAL = 0.75  # between two reads while there is work
_MAX_AGE = 1.0  # before a claim, older controls are read again, so a pause takes effect within a second
_MIN_READ_INTERVAL = 0.05  # however short the poll interval is
_MAX_PAUSED_INTERVAL = 5.0  # between two reads by a paused worker
_TOKEN_INTERVAL = 0.1  # between two claims of a type that has used up its rate


class Limits(RateLimits):
    """The limits of handlers and controls on the tasks a worker may start."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._omitted: set[str] = set()  # types that had no token when the last request was built

    def apply_controls(self, control: Controls, handlers: Mapping[str, Handler]) -> None:
        """Apply the rates. Those of the controls override those that handlers declare."""
        declared = {type: handler.options.rate_limit for type, handler in handlers.items()}
        self.set_rates(declared | control.rate_limits | {WHOLE: control.rate_limit})

    def per_type_limits(self, handlers: Mapping[str, Handler], held: Mapping[str, int]) -> dict[str, int]:
        """How many more tasks of each limited type may be claimed."""
        now, most = self._clock(), {}
        self._omitted = set()
        for type, handler in handlers.items():
            allowed = []
            if handler.options.concurrency:
                allowed.append(handler.options.concurrency - held.get(type, 0))
            if (bucket := self._buckets.get(type)) is not None:
                allowed.append(tokens := bucket.available(now))
                if tokens < 1:
                    self._omitted.add(type)
            if allowed:
                most[type] = max(0, min(allowed))
        return most

    def returned(self, type: str) -> None:
        """Return the token of a task that did not start."""
        for key in (type, WHOLE):
            if (bucket := self._buckets.get(key)) is not None:
                bucket.take(-1)

    def next_tokens(self, longest: float) -> float:
        """Seconds until a claim is worthwhile for a type without tokens; `longest` if every type has tokens.

        A type that the last request omitted counts as one without tokens, even if a token arrived during the claim.
        A type with a high rate collects the tokens of `_TOKEN_INTERVAL`, so that it does not cost a claim per token.
        """
        now = self._clock()
        # Cleared: a full or paused worker builds no request, and must not wake up repeatedly for tokens it has.
        omitted, self._omitted = self._omitted, set()
        spent = [bucket for type, bucket in self._buckets.items() if bucket.available(now) < 1 or type in omitted]
        return min([longest, *(max(0.001, bucket.wait(max(1.0, bucket.rate * _TOKEN_INTERVAL))) for bucket in spent)])


class ClaimScope:
    """The queues and types a worker may claim: those of its settings and handlers, without paused ones."""

    def __init__(
        self,
        engine: Engine,
        handlers: Mapping[str, Handler],
        settings: WorkerSettings,
        *,
        worker_id: str,
        clock: Clock,
        gate: LimitGate | None = None,
    ) -> None:
        self._engine, self.handlers, self._settings, self._gate = engine, handlers, settings, gate
        self._worker_id, self._clock = worker_id, clock
        self.limits = Limits(clock)
        self._control = Controls()
        self.read_at = float("-inf")
        self.is_known = False  # the controls were read at least once
        self._reads, self._last_read = count(1), 0  # two reads may be in progress concurrently
        self.queues = settings.queues
        self._types: tuple[str, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Apply a change of the handlers or the controls."""
        self.limits.apply_controls(self._control, self.handlers)
        if self._gate is not None:
            self._set_rules(self._gate)
        self._types = tuple(type for type in self.handlers if type not in self._control.paused_types)

    def _set_rules(self, gate: LimitGate) -> None:
        options = {type: handler.options for type, handler in self.handlers.items()}
        declared = {type: option.limit for type, option in options.items() if option.limit is not None}
        fair_types = [type for type, option in options.items() if option.fair_by is not None]
        gate.set_rules(LimitRules(declared, self._control.limits), fair_types)

    async def read(self) -> None:
        """Read and apply the controls. Raises StorageError."""
        # Set before the read: if the store is unreachable, the next read waits until the controls are stale.
        self.read_at = self._clock()
        number = next(self._reads)
        control = await read_or(self._engine, CONTROL, Controls, self._control)
        if number < self._last_read:  # a later read was answered first, so this answer may predate a pause
            return
        self._control, self._last_read = control, number
        self.refresh()
        self.queues = self._settings.queues
        if control.paused_queues:
            queues = self._settings.queues or await self._queues_with_tasks(control)
            if number < self._last_read:
                return
            self.queues = tuple(queue for queue in queues if queue not in control.paused_queues)[:MAX_NAMES]
            if not self.queues:
                self._types = ()
        self.is_known = True

    async def _queues_with_tasks(self, control: Controls) -> list[str]:
        """Queues that are not paused, those with pending tasks first, because a server limits the queues of a claim."""
        queues: dict[str, bool] = {}
        for lane in await self._engine.count():
            if lane.queue not in control.paused_queues:
                queues[lane.queue] = queues.get(lane.queue, False) or lane.status is Status.PENDING
        return sorted(queues, key=lambda queue: (not queues[queue], queue))

    @property
    def types(self) -> tuple[str, ...]:
        """The types this worker has handlers for, without paused ones."""
        return () if self._control.paused else self._types

    @property
    def is_paused(self) -> bool:
        """Whether everything this worker could run is paused."""
        return not self.types

    @property
    def drain_requested(self) -> bool:
        """Whether the controls ask this worker to drain."""
        return self._worker_id in self._control.draining

    def holds_back(self, queue: str, type: str) -> bool:
        """Whether a pause keeps tasks of this queue and type from starting."""
        control = self._control
        return control.paused or type in control.paused_types or queue in control.paused_queues

    def serves(self, queue: str) -> bool:
        return not self._settings.queues or queue in self._settings.queues

    def lacks_handler(self, queue: str, type: str) -> bool:
        """Whether this worker serves the queue, has no handler for the type, and neither is paused."""
        return type not in self.handlers and self.serves(queue) and not self.holds_back(queue, type)

    def why_not(self, queue: str, type: str, *, is_handled: bool) -> str:
        """Why pending tasks of this queue and type were left although the worker has drained; empty if it handles them.

        `is_handled`: this or another worker handles them.
        """
        control = self._control
        if control.paused:
            return "paused"
        if queue in control.paused_queues:
            return f"queue {queue} paused"
        if type in control.paused_types:
            return "type paused"
        if type in self.handlers:
            return ""
        return "no handler here" if is_handled else NO_HANDLER


class ControlsReader:
    """Reads the controls regularly and when they change in this process, and hands back the tasks that they pause."""

    def __init__(
        self,
        scope: ClaimScope,
        queue: StartQueue,
        settler: Settler,
        *,
        calls: StoreCalls,
        signal: StopSignal,
        is_busy: Callable[[], bool],
        poll: float | None,
        clock: Clock,
    ) -> None:
        self._scope, self._queue, self._settler = scope, queue, settler
        self._calls, self._signal, self._is_busy, self._clock = calls, signal, is_busy, clock
        # A pause takes effect within one poll interval, at most one second. A quarter of that is left for the read.
        self._interval = min(_READ_INTERVAL, max(_MIN_READ_INTERVAL, _READ_INTERVAL * (poll or 1.0)))
        self._holds = 0  # pauses announced in this process
        self._reads: set[asyncio.Future[None]] = set()  # in progress, after changes in this process
        self.drain_requested = False  # the controls asked this worker to drain before it was stopped

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen for changes that are made in this process while the block runs."""
        self._loop = asyncio.get_running_loop()
        controls.add_listener(self)
        try:
            yield
        finally:
            controls.remove_listener(self)

    async def read_regularly(self) -> None:
        """Read the controls while there is work. An idle worker reads them before each claim instead."""
        while True:
            began, pause = self._clock(), self._interval
            paused = self._scope.is_paused
            if paused or self._queue.is_closed or self._is_busy():
                await self.read()
                if paused:
                    pause = idle_interval(self._clock() - began, _READ_INTERVAL, _MAX_PAUSED_INTERVAL)
            await asyncio.sleep(pause)

    @property
    def is_stale(self) -> bool:
        """Whether the controls must be read again before the next claim."""
        return self._clock() - self._scope.read_at >= self._interval * _MAX_AGE / _READ_INTERVAL

    def controls_changed(self, *, hold: bool) -> "Future[None]":
        """Read and apply the controls now. With `hold`, no handler starts before that.

        May be called from any thread of this process. The future completes once the controls are applied.
        """
        applied: Future[None] = Future()
        if hold:
            self._holds += 1
            self._queue.close()

        async def apply() -> None:
            await self.read()
            applied.set_result(None)

        def read() -> None:
            self._reads.add(reading := asyncio.ensure_future(apply()))
            reading.add_done_callback(self._reads.discard)

        try:
            self._loop.call_soon_threadsafe(read)
        except RuntimeError:  # the worker has ended
            applied.set_result(None)
        return applied

    async def read(self) -> None:
        """Read and apply the controls. If the store is unreachable, back off and keep the last ones."""
        await self._calls.attempt(self._read)

    async def _read(self) -> None:
        holds = self._holds
        await self._scope.read()
        self._queue.recall(self._is_held_back)  # before `reopen`: an executor may have taken these runs already
        for run in self._queue.take_back(self._is_held_back):
            self._settler.report(run, HANDED_BACK)
        if holds == self._holds:  # otherwise these controls may be older than the last pause
            self._queue.reopen()
        if self._scope.drain_requested and not self._signal.is_stopping:
            log.info("drain requested: claiming no more tasks")
            self.drain_requested = True
            self._signal.stop()

    def _is_held_back(self, run: Run) -> bool:
        return self._scope.holds_back(run.task.queue, run.task.type)
