"""Tasks as people look at them: a panel for one, a table for many."""

from typing import Any

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from qo.cli.output import age, as_json, clean, clean_lines, duration, shorten
from qo.cli.rich_output import STYLES, data, status_text, table
from qo.clock import iso
from qo.codec import to_json
from qo.model import Status, Task
from qo.notes import NO_HANDLER

LONGEST_SHOWN = 4000  # characters of a payload, result or error in a panel
WIDE = 110  # columns from which a table shows queues and workers too


def panel(task: Task, now: float, *, is_unhandled: bool = False) -> Panel:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in _facts(task, now):
        rows.add_row(name, value)
    if is_unhandled:
        rows.add_row("waits because", Text(NO_HANDLER, style="yellow"))
    title = Text.assemble((clean(task.type), "bold"), " ", task_status(task))
    return Panel(rows, title=title, title_align="left", box=box.ROUNDED, border_style=STYLES[task.status], expand=False)


def _facts(task: Task, now: float) -> list[tuple[str, Text]]:
    facts: list[tuple[str, object]] = [
        ("id", task.id),
        ("queue", task.queue),
        ("priority", task.priority),
        ("tries", f"{task.attempt} ({task.failures} of {1 + task.max_retries} failures allowed)"),
        ("created", _when(task.created_at, now)),
        ("runs at" if task.status is Status.PENDING else "", _when(task.available_at, now)),
        ("started", "not yet" if task.is_claimed_only else task.started_at and _when(task.started_at, now)),
        ("finished", task.completed_at and _when(task.completed_at, now)),
        ("took", duration(took(task))),
        ("lease until", task.lease_expires_at and _when(task.lease_expires_at, now)),
        ("worker", task.worker_id),
        ("needs", ", ".join(task.needs)),
        ("timeout", duration(task.timeout)),
        ("key", task.idempotency_key),
        ("trace", task.trace_id),
    ]
    shown = [(name, data(value)) for name, value in facts if name and value not in (None, "")]
    shown.append(("payload", _long(as_json(to_json(task.payload)))))
    if task.result is not None:
        shown.append(("result", _long(as_json(to_json(task.result)), STYLES[Status.COMPLETED])))
    if task.error:
        shown.append(("error", _long(task.error, STYLES[Status.FAILED])))
    return shown


def _long(text: str, style: str = "") -> Text:
    return Text(shorten(clean_lines(text.rstrip()), LONGEST_SHOWN), style=style)


def _when(instant: float, now: float) -> str:
    ago = now - instant
    return f"{iso(instant)} ({duration(ago)} ago)" if ago >= 0 else f"{iso(instant)} (in {duration(-ago)})"


def task_status(task: Task) -> Text:
    """The status; a task that a worker holds and has not started is claimed."""
    return Text("claimed", style=STYLES[task.status]) if task.is_claimed_only else status_text(task.status)


def took(task: Task) -> float | None:
    if task.started_at is None or task.completed_at is None:
        return None
    return task.completed_at - task.started_at


def task_table(tasks: list[Task], now: float, *, width: int) -> Table:
    wide = width >= WIDE
    more = ("queue", "worker") if wide else ()
    made = table("id", "type", "status", "prio", "tries", "age", *more, right=("prio", "tries", "age"))
    for task in tasks:
        cells: list[Any] = [
            Text(task.id),
            data(task.type),
            task_status(task),
            Text(str(task.priority)),
            _tries(task),
            Text(age(now - task.created_at), style="dim"),
        ]
        made.add_row(*cells, *((data(task.queue), data(task.worker_id or "", "dim")) if wide else ()))
    return made


def _tries(task: Task) -> Text:
    return Text.assemble(str(task.attempt), (f" ({task.failures}✗)", "red") if task.failures else "")
