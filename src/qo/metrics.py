"""What happens to tasks, counted for Prometheus by the names of docs/http.md.

A room of its own, beside the worker and not in it: meters watch the engine port, so a worker that is not measured pays
nothing, and everything that goes through the port is seen, the monitor's work included. Labels hold names from short
lists only; ids, types and messages never become labels.
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
from qo.stats import BOUNDS
from qo.transitions import REASONS, is_dead_lettered, reason_of

LEVELS: Final = ("high", "medium", "low")
ENDED: Final = (Status.COMPLETED, Status.FAILED)


class Meters:
    """Counters of one process, in a registry of their own. All their labels exist from the start, at zero."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry()
        self.promoted = Counter(
            "tasks_promoted_total",
            "Tasks claimed at a higher level than their own, because they had waited.",
            ["from", "to"],
            registry=registry,
        )
        self.duration = Histogram(
            "task_duration_seconds",
            "From submission to the end.",
            ["priority", "status"],
            registry=registry,
            buckets=BOUNDS,
        )
        self.run = Histogram("task_run_seconds", "How long handlers ran.", ["type"], registry=registry, buckets=BOUNDS)
        self.retries = Counter(
            "task_retries_total", "Attempts that failed and come again.", ["priority", "reason"], registry=registry
        )
        self.failed = Counter("tasks_failed_total", "Attempts that failed.", ["reason"], registry=registry)
        self.dead = Counter("tasks_dlq_total", "Tasks whose retries were used up.", registry=registry)
        self.silent = Counter(
            "worker_heartbeat_failures_total", "Signs of life that did not arrive.", registry=registry
        )
        self._show_zeros()

    def _show_zeros(self) -> None:
        """A counter that appears with its first event has no rate when it matters."""
        for above, level in enumerate(LEVELS):
            for higher in LEVELS[:above]:
                self.promoted.labels(level, higher)
            for status in ENDED:
                self.duration.labels(level, status.value)
            for reason in REASONS:
                self.retries.labels(level, reason.value)
        for reason in REASONS:
            self.failed.labels(reason.value)

    def claimed(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.priority == HIGH:
                continue
            reached = effective_priority(task.priority, task.due_at, task.rank, task.started_at or task.updated_at)
            before, after = level_word(task.priority), level_word(reached)
            if before != after:
                self.promoted.labels(before, after).inc()

    def settled(self, task: Task, change: Change) -> None:
        """A change that landed on a task as it was held before."""
        level = level_word(task.priority)
        if change.to in ENDED:
            self.duration.labels(level, change.to.value).observe(max(0.0, self._clock() - task.created_at))
        if change.to is not Status.FAILED and change.failures is None:  # done, or handed back, which is no failure
            return
        why = reason_of(change).value
        self.failed.labels(why).inc()
        if is_dead_lettered(task, change):
            self.dead.inc()
        elif change.to is not Status.FAILED:
            self.retries.labels(level, why).inc()

    def measured(self, client: Client) -> Client:
        """The same queue, seen through these meters."""
        measured = Client(Measured(client.engine, self), client.settings)
        measured.recorder, measured.transitions = client.recorder, client.transitions  # closed with the queue
        client.transitions.on_run = lambda type_, seconds: self.run.labels(type_).observe(seconds)
        return measured

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Show them at `http://host:port/metrics`, from a thread of its own, for as long as the process lives."""
        start_http_server(port, addr=host, registry=self.registry)


class Measured(ForwardingEngine):
    """An engine, watched: what it claims and settles goes to the meters."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        super().__init__(engine)
        self._meters = meters
        self._held: dict[str, Task] = {}  # claimed through here and not settled yet
        self._expired: dict[str, Task] = {}  # the last page of lost tasks that a monitor looked at
        self._waiting: dict[str, Task] = {}  # the last page of pending tasks that a worker looked at

    async def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await self.engine.claim(request)
        self._meters.claimed(tasks)
        self._held.update((task.id, task) for task in tasks)
        return tasks

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await self.engine.apply(changes)
        for change, landed in zip(changes, answers, strict=True):
            if change.guard is Guard.WAITING and change.to is Status.FAILED:
                task = self._waiting.pop(change.id, None)
                if landed and task is not None:
                    self._meters.settled(task, change)
                continue
            known = self._expired if change.guard is Guard.EXPIRED else self._held
            if landed and change.to is Status.RUNNING:
                continue
            task = known.pop(change.id, None)  # so that a repeat is not counted again
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
        """Keep a page of a monitor or worker, which fails tasks of it next."""
        if where.expired_for is not None:
            self._expired = {task.id: task for task in found}
        elif where.statuses == (Status.PENDING,):
            self._waiting = {task.id: task for task in found}
