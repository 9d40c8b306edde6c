"""How the demo ends: a table of everything, and a check that each promise was kept."""

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from qo.cli.output import duration
from qo.cli.rich_output import data, status_text, table
from qo.cli.views import took
from qo.model import LEVELS, Status, Task

_NAMES = {level: name for name, level in LEVELS.items()}


class Promise(Struct, frozen=True):
    """How a task must have ended. It must be completed in any case."""

    id: str
    failures: int
    attempt: int | None = None  # None: one more than failures
    worker_id: str | None = None
    on_time: bool = False  # not before its time


def keep_promises(promises: list[Promise], found: list[Task]) -> list[str]:
    """What is not as promised, a line each."""
    by_id = {task.id: task for task in found}
    problems = [problem for promise in promises for problem in _problems(promise, by_id.get(promise.id))]
    strangers = by_id.keys() - {promise.id for promise in promises}
    return problems + [f"task {task_id} is one too many" for task_id in sorted(strangers)]


def _problems(promise: Promise, task: Task | None) -> list[str]:
    if task is None:
        return [f"task {promise.id} is lost"]
    attempt = promise.failures + 1 if promise.attempt is None else promise.attempt
    checks = (
        (task.status is Status.COMPLETED, f"is {task.status}, not completed"),
        (task.failures == promise.failures, f"has {task.failures} failures, not {promise.failures}"),
        (task.attempt == attempt, f"took {task.attempt} tries, not {attempt}"),
        (promise.worker_id in (None, task.worker_id), f"was run by {task.worker_id}, not {promise.worker_id}"),
        (not promise.on_time or (task.started_at or 0.0) >= task.available_at, "ran before its time"),
    )
    return [f"{task.type} {task.id} {problem}" for kept, problem in checks if not kept]


def show_tasks(found: list[Task]) -> Table:
    numbers = ("tries", "failures", "took")
    rows = table("type", "priority", "status", *numbers[:2], "worker", "took", right=numbers)
    for task in found:
        rows.add_row(
            data(task.type),
            Text(_NAMES.get(task.priority, str(task.priority))),
            status_text(task.status),
            str(task.attempt),
            Text(str(task.failures), style="red" if task.failures else "dim"),
            data(task.worker_id or "", "dim"),
            duration(took(task)),
        )
    return rows
