"""How the tasks of the demo must have ended, and the table of how they did."""

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from qo.cli.output import duration
from qo.cli.rich_output import data, status_text, table, took
from qo.model import LEVELS, Status, Task

_NAMES = {level: name for name, level in LEVELS.items()}


class ExpectedOutcome(Struct, frozen=True):
    """How a task must have ended. It must be completed."""

    id: str
    failures: int
    attempt: int | None = None  # None: one more than failures
    worker_id: str | None = None
    on_time: bool = False  # did not start before its scheduled time


def find_problems(outcomes: list[ExpectedOutcome], found: list[Task]) -> list[str]:
    """One line for each unexpected outcome."""
    by_id = {task.id: task for task in found}
    problems = [problem for expected in outcomes for problem in _problems(expected, by_id.get(expected.id))]
    unknown = by_id.keys() - {expected.id for expected in outcomes}
    return problems + [f"task {task_id} was not submitted by the demo" for task_id in sorted(unknown)]


def _problems(expected: ExpectedOutcome, task: Task | None) -> list[str]:
    if task is None:
        return [f"task {expected.id} is lost"]
    attempt = expected.failures + 1 if expected.attempt is None else expected.attempt
    checks = (
        (task.status is Status.COMPLETED, f"is {task.status}, not completed"),
        (task.failures == expected.failures, f"has {task.failures} failures, not {expected.failures}"),
        (task.attempt == attempt, f"took {task.attempt} attempts, not {attempt}"),
        (expected.worker_id in (None, task.worker_id), f"was run by {task.worker_id}, not {expected.worker_id}"),
        (not expected.on_time or (task.started_at or 0.0) >= task.available_at, "started before its scheduled time"),
    )
    return [f"{task.type} {task.id} {problem}" for is_met, problem in checks if not is_met]


def show_tasks(found: list[Task]) -> Table:
    numbers = ("attempts", "failures", "took")
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
