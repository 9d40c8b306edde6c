"""Logs and counts the transitions of tasks.

Clients, workers, monitors and servers report here what they have added, claimed or settled, once it is stored. The
message of a log record is for people; its fields (`extra`) are for machines.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from qo.clock import Clock, system_clock
from qo.model import (
    HIGH,
    Added,
    Change,
    FailureKind,
    NewTask,
    Status,
    Task,
    effective_priority,
    level_word,
    plural,
)
from qo.stats import StatsRecorder
from qo.stats.rows import Durations, Ending, RowKey, StatsRow

log = logging.getLogger("qo.tasks")
REASONS: Final = (FailureKind.ERROR, FailureKind.TIMEOUT, FailureKind.LOST, FailureKind.UNKNOWN_TYPE)
_MAX_REMEMBERED = 10_000  # settlements, for recognising repeats
_SECOND, _MINUTE = 1.0, 60.0

Transition = Literal["queued", "started", "completed", "retried", "failed", "lost", "cancelled"]
_LEVELS: Final[dict[Transition, int]] = {
    "queued": logging.INFO,
    "started": logging.INFO,
    "completed": logging.INFO,
    "retried": logging.WARNING,
    "lost": logging.WARNING,
    "failed": logging.ERROR,
    "cancelled": logging.INFO,
}


class Settlement(NamedTuple):
    """A change that settles a task, and the task before it."""

    task: Task
    change: Change
    started_at: float | None = None  # when the handler started, by the store's clock, if the task has no `started_at`
    ran: float | None = None  # seconds, by a monotonic clock


class Transitions:
    """The transitions of one client. Use it only on the client's event loop."""

    def __init__(self, stats: StatsRecorder, *, clock: Clock = system_clock) -> None:
        self._stats, self._clock = stats, clock
        self.on_run: Callable[[str, float], None] | None = None  # called with the type and the seconds of each run
        self._seen: OrderedDict[tuple[str, str | None], None] = OrderedDict()

    def queued(self, tasks: Sequence[NewTask], answers: Sequence[Added]) -> None:
        """Report submitted tasks; those that already existed are skipped."""
        if not self.logs_queued:
            return
        for task, added in zip(tasks, answers, strict=True):
            if added.new:
                fields = {"type": task.type, "queue": task.queue, "trace_id": task.trace_id or added.id, "attempt": 0}
                _log("queued", added.id, f"{task.type} {added.id} queued", fields | {"status": Status.PENDING.value})

    @property
    def logs_queued(self) -> bool:
        return log.isEnabledFor(_LEVELS["queued"])

    def replayed(self, tasks: Iterable[Task]) -> None:
        """Report replayed tasks."""
        for task in tasks:
            _log("queued", task.id, f"{task.type} {task.id} queued again", _log_fields(task, Status.PENDING))

    def settled(self, task: Task, change: Change, *, started_at: float | None = None, ran: float | None = None) -> None:
        """Report a written change; `task` is the task before it."""
        self.settled_all([Settlement(task, change, started_at, ran)])

    def settled_all(self, settlements: Iterable[Settlement]) -> None:
        """Report the written changes of one batch. The caller reports each settlement once (see `is_first`)."""
        now, logs_completed = self._clock(), log.isEnabledFor(_LEVELS["completed"])
        counts: dict[tuple[str, int], _BatchCount] = {}
        for task, change, started_at, ran in settlements:
            if not _is_settlement(change):
                continue
            count = counts.get((task.type, task.priority))
            if count is None:
                row = self._stats.row(RowKey(task.type, level_word(task.priority)))
                count = counts[task.type, task.priority] = _BatchCount(row, now)
            took = count.add(task, change, started_at, ran)
            if logs_completed or change.to is not Status.COMPLETED:
                self._log_settled(task, change, took)
        for (type_, _), count in counts.items():
            count.write()
            if self.on_run is not None:
                for seconds in count.runs:
                    self.on_run(type_, seconds)

    def is_first(self, change: Change) -> bool:
        """Whether a written settlement is not a repeat of an earlier one."""
        key = change.id, change.lease_id
        if key in self._seen:
            return False
        if change.to in _SETTLED:
            self._seen[key] = None
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def cancelled(self, tasks: Iterable[Task]) -> None:
        """Report cancelled tasks, as they were before or after."""
        for task in tasks:
            self._stats.row(RowKey(task.type, level_word(task.priority))).cancelled += 1
            _log("cancelled", task.id, f"{task.type} {task.id} cancelled", _log_fields(task, Status.CANCELLED))

    def _log_settled(self, task: Task, change: Change, ran: float | None) -> None:
        kind = transition_of(change)
        if not log.isEnabledFor(_LEVELS[kind]):
            return
        fields = _log_fields(task, change.to) | {"duration": None if ran is None else round(ran, 6)}
        name = f"{task.type} {task.id}"
        if kind == "completed":
            took = "" if ran is None else f" in {shown_duration(ran)}"
            _log(kind, task.id, f"{name} completed{took}", fields)
            return
        summary = (change.error or "").partition("\n")[0]
        fields |= {"error": summary, "reason": reason_of(change).value}
        if change.to is Status.PENDING:
            fields["delay"] = change.delay
            further = f"attempt {task.failures + 2} of {task.max_retries + 1}"
            message = f"{name} failed: {summary}; retrying in {shown_duration(change.delay or 0.0)} ({further})"
        else:
            failures = task.failures if change.failures is None else change.failures
            after = "" if not failures else f" after {plural(failures, 'attempt')}"
            message = f"{name} failed permanently{after}: {summary}"
        _log(kind, task.id, message, fields)


def log_started(task: Task) -> None:
    """Log that the handler of a task starts. Thread-safe."""
    if log.isEnabledFor(_LEVELS["started"]):
        message = f"{task.type} {task.id} started (attempt {task.failures + 1} of {task.max_retries + 1})"
        _log("started", task.id, message, _log_fields(task, Status.RUNNING))


def log_stopped(task: Task, *, cancelled: bool, ran: float | None, has_ended: bool = False) -> None:
    """Log that a worker stops the handler of a task that was cancelled, or whose lease is lost."""
    name = f"{task.type} {task.id}"
    if not cancelled:
        message = f"lease lost: the outcome of {name} was dropped" if has_ended else f"lease lost: stopping {name}"
        _log("lost", task.id, message, _log_fields(task, Status.RUNNING))
        return
    after = "before it started" if ran is None else f"after {shown_duration(ran)}"
    then = "its result is dropped" if has_ended else "stopping its handler"
    fields = _log_fields(task, Status.CANCELLED) | {"duration": ran, "reason": FailureKind.CANCELLED.value}
    _log("cancelled", task.id, f"{name} cancelled {after}" + ("" if ran is None else f"; {then}"), fields)


_SETTLED = frozenset({Status.COMPLETED, Status.FAILED, Status.PENDING})


def _is_settlement(change: Change) -> bool:
    """Whether a change is an outcome; renewals and releases are not."""
    to = change.to
    return to is Status.COMPLETED or to is Status.FAILED or (to is Status.PENDING and change.failures is not None)


def transition_of(change: Change) -> Transition:
    """The transition of a settlement. A lost attempt is `lost`, unless it was the task's last: then it is `failed`."""
    if change.to is Status.COMPLETED:
        return "completed"
    if change.to is Status.FAILED:
        return "failed"
    return "lost" if reason_of(change) is FailureKind.LOST else "retried"


def reason_of(change: Change) -> FailureKind:
    """Why an attempt failed: one of `REASONS`."""
    return change.failure_kind or FailureKind.ERROR


def is_dead_lettered(task: Task, change: Change) -> bool:
    """Whether the task failed because its retries are used up, not because its handler raised `Fail`."""
    return change.to is Status.FAILED and (change.failures or 0) > task.max_retries


def shown_duration(seconds: float) -> str:
    if seconds < _SECOND:
        return f"{1000 * seconds:.0f} ms" if seconds < _SECOND / 10 else f"{seconds:.1f} s"
    return f"{seconds:.1f} s" if seconds < _MINUTE else f"{seconds / _MINUTE:.1f} min"


class _BatchCount:
    """Collects the durations of one row: adding many together is much cheaper than adding each."""

    __slots__ = ("completed", "failed", "now", "row", "runs", "waits")

    def __init__(self, row: StatsRow, now: float) -> None:
        self.row, self.now = row, now
        self.waits: list[float] = []
        self.runs: list[float] = []
        self.completed: list[float] = []  # seconds from submission to the end
        self.failed: list[float] = []

    def add(self, task: Task, change: Change, started_at: float | None, ran: float | None) -> float | None:
        """Count a settlement. Returns the seconds the handler ran, if they are known."""
        if started_at is None:
            started_at = task.started_at
        if started_at is not None:
            self._add_start(task, started_at)
            if ran is None:
                ran = max(0.0, self.now - started_at)
        if change.to is not Status.COMPLETED:
            self._add_failure(task, change, ran)
            return ran
        self.completed.append(self.now - task.created_at)
        if ran is not None:
            self.runs.append(ran)
        return ran

    def _add_start(self, task: Task, started_at: float) -> None:
        due_at = task.due_at
        waited = started_at - due_at
        self.waits.append(waited)
        if task.priority == HIGH or waited * task.priority < task.rank - due_at:
            return  # it was not promoted by a level
        reached = level_word(effective_priority(task.priority, due_at, task.rank, started_at))
        if reached != level_word(task.priority):
            self.row.promoted[reached] = self.row.promoted.get(reached, 0) + 1

    def _add_failure(self, task: Task, change: Change, ran: float | None) -> None:
        row, reason = self.row, reason_of(change).value
        if ran is not None and reason != "lost":  # how long a lost attempt ran is unknown
            self.runs.append(ran)
        if change.to is Status.PENDING:
            row.retried[reason] = row.retried.get(reason, 0) + 1
            return
        self.failed.append(self.now - task.created_at)
        row.failed[reason] = row.failed.get(reason, 0) + 1
        row.dead_lettered += is_dead_lettered(task, change)

    def write(self) -> None:
        row = self.row
        row.completed += len(self.completed)
        row.wait.observe_all(self.waits)
        row.run.observe_all(self.runs)
        endings: dict[Ending, list[float]] = {"completed": self.completed, "failed": self.failed}
        for ending, durations in endings.items():
            if durations:
                row.total.setdefault(ending, Durations()).observe_all(durations)


def _log_fields(task: Task, status: Status) -> dict[str, Any]:
    return {
        "type": task.type,
        "queue": task.queue,
        "attempt": task.attempt,
        "worker_id": task.worker_id,
        "trace_id": task.trace_id or task.id,
        "status": status.value,
    }


def _log(kind: Transition, task_id: str, message: str, fields: dict[str, Any]) -> None:
    """Log a transition.

    `Logger.log` searches the stack for the line that called it, which takes longer than to format the record. That
    line is always in this function.
    """
    level = _LEVELS[kind]
    if log.isEnabledFor(level):
        extra = {"transition": kind, "task_id": task_id, **fields}
        line = _log.__code__.co_firstlineno
        log.handle(log.makeRecord(log.name, level, __file__, line, "%s", (message,), None, _log.__name__, extra))
