"""Prometheus metrics of tasks. docs/http.md describes them.

The metrics wrap the engine port, so they include the work of the monitor, and a worker without metrics has no overhead.
Labels have few possible values, except the type of `task_run_seconds`; ids and messages are never labels.
"""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from qo.client import Client
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    HIGH,
    Change,
    ClaimRequest,
    Filter,
    Guard,
    Status,
    Task,
    effective_priority,
    level_word,
)
from qo.notes import WORKERS
from qo.schedules.schedule import OUTCOMES, Fire
from qo.stats import BOUNDS
from qo.transitions import REASONS, is_dead_lettered, reason_of

LEVELS: Final = ("high", "medium", "low")
ENDED: Final = (Status.COMPLETED, Status.FAILED)


class Meters:
    """The metrics of one process, in their own registry. All labels exist from the start, with zeros."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry()
        self.promoted = Counter(
            "tasks_promoted_total",
            "Tasks claimed at a higher level than their own because of their waiting time.",
            ["from", "to"],
            registry=registry,
        )
        self.duration = Histogram(
            "task_duration_seconds",
            "Time from submission to the end of a task.",
            ["priority", "status"],
            registry=registry,
            buckets=BOUNDS,
        )
        self.run = Histogram("task_run_seconds", "Run time of handlers.", ["type"], registry=registry, buckets=BOUNDS)
        self.retries = Counter(
            "task_retries_total", "Failed attempts that are retried.", ["priority", "reason"], registry=registry
        )
        self.failed = Counter("tasks_failed_total", "Attempts that failed.", ["reason"], registry=registry)
        self.dead = Counter("tasks_dlq_total", "Tasks whose retries were used up.", registry=registry)
        self.silent = Counter(
            "worker_heartbeat_failures_total", "Heartbeats that could not be written.", registry=registry
        )
        self.fires = Counter(
            "schedule_fires_total", "Fire times of schedules that this process decided.", ["outcome"], registry=registry
        )
        self.lateness = Histogram(
            "schedule_lateness_seconds",
            "Time from a fire time to the decision to submit its task.",
            registry=registry,
            buckets=BOUNDS,
        )
        self._show_zeros()

    def _show_zeros(self) -> None:
        """Create all labels now: a counter that first appears with its first event has no rate for it."""
        for above, level in enumerate(LEVELS):
            for higher in LEVELS[:above]:
                self.promoted.labels(level, higher)
            for status in ENDED:
                self.duration.labels(level, status.value)
            for reason in REASONS:
                self.retries.labels(level, reason.value)
        for reason in REASONS:
            self.failed.labels(reason.value)
        for outcome in OUTCOMES:
            self.fires.labels(outcome)

    def claimed(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.priority == HIGH:
                continue
            reached = effective_priority(task.priority, task.due_at, task.rank, task.started_at or task.updated_at)
            before, after = level_word(task.priority), level_word(reached)
            if before != after:
                self.promoted.labels(before, after).inc()

    def fired(self, fire: Fire) -> None:
        self.fires.labels(fire.outcome).inc(fire.count)
        if fire.outcome == "fired":
            self.lateness.observe(max(0.0, fire.decided_at - fire.at))

    def settled(self, task: Task, change: Change) -> None:
        """Count a written change; `task` is the task before it."""
        level = level_word(task.priority)
        if change.to in ENDED:
            self.duration.labels(level, change.to.value).observe(max(0.0, self._clock() - task.created_at))
        if change.to is not Status.FAILED and change.failures is None:  # completed, or released without a failure
            return
        reason = reason_of(change).value
        self.failed.labels(reason).inc()
        if is_dead_lettered(task, change):
            self.dead.inc()
        elif change.to is not Status.FAILED:
            self.retries.labels(level, reason).inc()

    def measured(self, client: Client) -> Client:
        """The same client, with these metrics."""
        measured = Client(Measured(client.engine, self), client.settings)
        measured.recorder, measured.transitions = client.recorder, client.transitions  # closed with the client
        measured.schedules.on_fire = self.fired
        client.transitions.on_run = lambda type_, seconds: self.run.labels(type_).observe(seconds)
        return measured

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Serve the metrics at `http://host:port/metrics` in a thread until the process exits."""
        start_http_server(port, addr=host, registry=self.registry)


class Measured(ForwardingEngine):
    """An engine that reports its claims and settlements to the metrics."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        super().__init__(engine)
        self._meters = meters
        self.held: dict[str, Task] = {}  # claimed and not settled
        self._expired: dict[str, Task] = {}  # the last page of expired tasks that a monitor read
        self._waiting: dict[str, Task] = {}  # the last page of pending tasks that a worker read

    async def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await self.engine.claim(request)
        self._meters.claimed(tasks)
        self.held.update((task.id, task) for task in tasks)
        return tasks

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await self.engine.apply(changes)
        for change, landed in zip(changes, answers, strict=True):
            if change.guard is Guard.WAITING and change.to is Status.FAILED:
                task = self._waiting.pop(change.id, None)
                if landed and task is not None:
                    self._meters.settled(task, change)
                continue
            known = self._expired if change.guard is Guard.EXPIRED else self.held
            if landed and change.to is Status.RUNNING:
                continue
            task = known.pop(change.id, None)  # so that a repeated settlement is not counted again
            if landed and task is not None and task.lease_id == change.lease_id:
                self._meters.settled(task, change)
        return answers

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found = await self.engine.find(where, limit=limit, after=after, created_before=created_before)
        self._remember(where, found)
        return found

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        try:
            return await self.engine.write_note(name, data, expected=expected)
        except StorageError:
            if name.startswith(WORKERS):
                self._meters.silent.inc()
            raise

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        found = await self.engine.find_without_values(where, limit=limit, after=after, created_before=created_before)
        self._remember(where, found)
        return found

    def _remember(self, where: Filter, found: list[Task]) -> None:
        """Keep a page that a monitor or worker read, because it may fail these tasks next."""
        if where.expired_for is not None:
            self._expired = {task.id: task for task in found}
        elif where.statuses == (Status.PENDING,):
            self._waiting = {task.id: task for task in found}
