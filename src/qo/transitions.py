"""What happens to tasks, told in one place: a line in the log for each transition, and a count in the statistics.

Everything that adds, claims or settles tasks reports here once the store has taken it: clients, workers, monitors and
servers. The message is for people; the fields of the log record (`extra`) are for machines.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from qo.clock import Clock, system_clock
from qo.model import (
    HIGH,
    Added,
    Change,
    Guard,
    NewTask,
    Status,
    Task,
    effective_priority,
    level_word,
)
from qo.stats import StatsRecorder
from qo.stats.rows import Ending, RowKey, StatsRow

log = logging.getLogger("qo.tasks")
REASONS: Final = ("error", "timeout", "lost", "unknown_type")
_MAX_REMEMBERED = 10_000  # settlements, to recognise repeats
_SECOND, _MINUTE = 1.0, 60.0

Transition = Literal["queued", "started", "completed", "retried", "failed", "lost", "cancelled"]
_LEVELS: Final[dict[Transition, int]] = {
    "queued": logging.INFO,
    "started": logging.DEBUG,
    "completed": logging.INFO,
    "retried": logging.WARNING,
    "lost": logging.WARNING,
    "failed": logging.ERROR,
    "cancelled": logging.INFO,
}


class Transitions:
    """Of one queue, used on its event loop."""

    def __init__(self, stats: StatsRecorder, *, clock: Clock = system_clock) -> None:
        self._stats, self._clock = stats, clock
        self.on_run: Callable[[str, float], None] | None = None  # told the type and seconds of each run
        self._seen: OrderedDict[tuple[str, str | None], None] = OrderedDict()

    def queued(self, tasks: Sequence[NewTask], answers: Sequence[Added]) -> None:
        """Tasks that the store took; those it had already are left out."""
        if not self.tells_queued:
            return
        for task, added in zip(tasks, answers, strict=True):
            if added.new:
                about = {"type": task.type, "queue": task.queue, "trace_id": task.trace_id or added.id, "attempt": 0}
                _tell("queued", added.id, f"{task.type} {added.id} queued", about | {"status": Status.PENDING.value})

    @property
    def tells_queued(self) -> bool:
        return log.isEnabledFor(_LEVELS["queued"])

    def replayed(self, tasks: Iterable[Task]) -> None:
        """Tasks that had ended and were sent back to the start."""
        for task in tasks:
            _tell("queued", task.id, f"{task.type} {task.id} queued again", _about(task, Status.PENDING))

    def settled(self, task: Task, change: Change, *, started_at: float | None = None, ran: float | None = None) -> None:
        """A change that the store took, and the task as it was held before.

        `started_at` is when the handler began, by the store's clock, if the task does not say; `ran` is how long it
        ran, by a clock that does not jump. The caller tells each settlement once (`is_first` knows).
        """
        if change.to not in _SETTLED or (change.to is Status.PENDING and change.failures is None):
            return  # renewed or handed back: nothing has become of the task
        started_at = task.started_at if started_at is None else started_at
        now = self._clock()
        if ran is None and started_at is not None:
            ran = max(0.0, now - started_at)
        self._count(task, change, now, started_at, ran)
        self._tell_settled(task, change, ran)

    def is_first(self, change: Change) -> bool:
        """Whether a settlement that the store took is not the repeat of an earlier one."""
        key = change.id, change.lease_id
        if key in self._seen:
            return False
        if change.to in _SETTLED:
            self._seen[key] = None
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def cancelled(self, tasks: Iterable[Task]) -> None:
        """Tasks that someone cancelled, as they are or were."""
        for task in tasks:
            self._stats.row(RowKey(task.type, level_word(task.priority))).cancelled += 1
            _tell("cancelled", task.id, f"{task.type} {task.id} cancelled", _about(task, Status.CANCELLED))

    def _count(self, task: Task, change: Change, now: float, started_at: float | None, ran: float | None) -> None:
        row = self._stats.row(RowKey(task.type, level_word(task.priority)))
        if started_at is not None:
            waited = started_at - task.due_at
            row.wait.observe(max(0.0, waited))
            if waited > _SECOND:  # nobody is promoted sooner
                _count_promotion(row, task, started_at)
        reason = "" if change.to is Status.COMPLETED else reason_of(change)
        if ran is not None and reason != "lost":  # nobody knows how long a lost attempt ran
            row.run.observe(ran)
            if self.on_run is not None:
                self.on_run(task.type, ran)
        if change.to is Status.PENDING:
            row.retried[reason] = row.retried.get(reason, 0) + 1
            return
        ending: Ending = "completed" if change.to is Status.COMPLETED else "failed"
        durations = row.total.get(ending)
        if durations is None:
            durations = row.total[ending] = type(row.run)()
        durations.observe(max(0.0, now - task.created_at))
        if ending == "completed":
            row.completed += 1
        else:
            row.failed[reason] = row.failed.get(reason, 0) + 1
            row.dead_lettered += is_dead_lettered(task, change)

    def _tell_settled(self, task: Task, change: Change, ran: float | None) -> None:
        kind = transition_of(change)
        if not log.isEnabledFor(_LEVELS[kind]):
            return
        about = _about(task, change.to) | {"duration": None if ran is None else round(ran, 6)}
        name = f"{task.type} {task.id}"
        if kind == "completed":
            took = "" if ran is None else f" in {shown_duration(ran)}"
            _tell(kind, task.id, f"{name} completed{took}", about)
            return
        summary = (change.error or "").partition("\n")[0]
        about |= {"error": summary, "reason": reason_of(change)}
        if change.to is Status.PENDING:
            about["delay"] = change.delay
            further = f"attempt {task.failures + 2} of {task.max_retries + 1}"
            message = f"{name} failed: {summary}; retrying in {shown_duration(change.delay or 0.0)} ({further})"
        else:
            attempts = "1 attempt" if change.failures == 1 else f"{change.failures} attempts"
            message = f"{name} failed permanently after {attempts}: {summary}"
        _tell(kind, task.id, message, about)


def log_started(task: Task) -> None:
    """The handler of a task begins. May be called from any thread."""
    if log.isEnabledFor(_LEVELS["started"]):
        message = f"{task.type} {task.id} started (attempt {task.failures + 1} of {task.max_retries + 1})"
        _tell("started", task.id, message, _about(task, Status.RUNNING))


_SETTLED = frozenset({Status.COMPLETED, Status.FAILED, Status.PENDING})


def transition_of(change: Change) -> Transition:
    """Of a settlement. A lost attempt is told as lost, unless it was the task's last."""
    if change.to is Status.COMPLETED:
        return "completed"
    if change.to is Status.FAILED:
        return "failed"
    return "lost" if reason_of(change) == "lost" else "retried"


def reason_of(change: Change) -> str:
    """Why an attempt failed: one of `REASONS`."""
    error = change.error or ""
    if error.startswith("timed out"):
        return "timeout"
    if change.guard is Guard.EXPIRED or error.startswith("lost"):
        return "lost"
    return "unknown_type" if error.startswith("unknown type") else "error"


def is_dead_lettered(task: Task, change: Change) -> bool:
    """The task failed for good because its retries are used up, and not because its handler gave up before."""
    return change.to is Status.FAILED and (change.failures or 0) > task.max_retries


def shown_duration(seconds: float) -> str:
    if seconds < _SECOND:
        return f"{1000 * seconds:.0f} ms" if seconds < _SECOND / 10 else f"{seconds:.1f} s"
    return f"{seconds:.1f} s" if seconds < _MINUTE else f"{seconds / _MINUTE:.1f} min"


def _count_promotion(row: StatsRow, task: Task, started_at: float) -> None:
    if task.priority == HIGH:
        return
    reached = level_word(effective_priority(task.priority, task.due_at, task.rank, started_at))
    if reached != level_word(task.priority):
        row.promoted[reached] = row.promoted.get(reached, 0) + 1


def _about(task: Task, status: Status) -> dict[str, Any]:
    return {
        "type": task.type,
        "queue": task.queue,
        "attempt": task.attempt,
        "worker_id": task.worker_id,
        "trace_id": task.trace_id or task.id,
        "status": status.value,
    }


def _tell(kind: Transition, task_id: str, message: str, about: dict[str, Any]) -> None:
    log.log(_LEVELS[kind], "%s", message, extra={"transition": kind, "task_id": task_id, **about})
