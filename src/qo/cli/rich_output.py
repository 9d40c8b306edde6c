"""Output with colours, tables and panels. Data from tasks is escaped, so that it cannot control the terminal."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import IO, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from qo.cli.output import age, as_json, duration, shorten
from qo.client import Client
from qo.clock import iso, system_clock
from qo.codec import shown_text, to_json
from qo.handled_types import NO_HANDLER, Lanes, find_unhandled
from qo.model import BLOCKED_AT, Status, Task, pending_kind, plural, shown_group
from qo.safe_text import clean, clean_lines, escape

STYLES = {
    Status.PENDING: "blue",
    Status.RUNNING: "yellow",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "magenta",
    Status.ARCHIVED: "dim",
}
_PIPE_WIDTH = 240  # columns if stdout is not a terminal: enough for whole ids
_WIDTHS = {"id": 36, "status": 9, "at": 19, "ago": 4, "failure": 12}


class SafeConsole(Console):
    """Escapes the characters that control a terminal in everything it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control or (text.isascii() and text.isprintable()) else _escaped(segment)


def _escaped(segment: Segment) -> Segment:
    return segment._replace(text=escape(segment.text))


def console(stream: IO[str] | None = None) -> Console:
    """A console on stdout, or on `stream`. It interprets no markup, so data is printed literally."""
    stream = stream or sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return SafeConsole(file=stream, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def data(text: object, style: str = "") -> Text:
    """Data from a user, on one line."""
    return Text(clean(str(text)), style=style)


def status_text(status: Status | str) -> Text:
    return Text(str(status), style=STYLES[Status(status)])


class LineTable(Table):
    """A table with one line per row. A cell that is too long for its column ends with an ellipsis, or is folded."""

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        for cell, column in zip(cells, self.columns, strict=False):
            if isinstance(cell, Text) and column.overflow != "fold":
                cell.no_wrap, cell.overflow = True, "ellipsis"
        super().add_row(*cells, **settings)


def table(*columns: str, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """An empty table. In a narrow window, the first column, numbers, statuses and times shrink after the others."""
    empty = LineTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        show_edge=False,
    )
    for column in columns:
        width = _WIDTHS.get(column)
        # rich shrinks the columns that may wrap before the others
        shrinks = width is None and column not in right and column != columns[0]
        empty.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=not shrinks,
            min_width=len(column) if shrinks else width,
        )
    return empty


def bar(share: float, width: int, style: str) -> Text:
    """A bar of `width` cells, filled to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return Text("█" * full + ("" if not part else "▏▎▍▌▋▊▉"[part - 1]), style=style)


_MAX_TEXT = 4000  # characters of a payload, result or error in a panel
_WIDE = 110  # columns; wider tables show queues and workers too
_MAX_TYPES = 10  # in the note about unhandled types


def panel(task: Task, now: float, *, is_unhandled: bool = False) -> Panel:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in _facts(task, now):
        rows.add_row(name, value)
    if is_unhandled:
        rows.add_row("waiting because", Text(NO_HANDLER, style="yellow"))
    title = Text.assemble((clean(task.type), "bold"), " ", task_status(task, now))
    return Panel(rows, title=title, title_align="left", box=box.ROUNDED, border_style=STYLES[task.status], expand=False)


def _facts(task: Task, now: float) -> list[tuple[str, Text]]:
    facts: list[tuple[str, object]] = [
        ("id", task.id),
        ("queue", task.queue),
        ("was", task.ended_as.value if task.status is Status.ARCHIVED else None),
        ("priority", task.priority),
        ("attempts", f"{task.attempt} ({plural(task.failures, 'failure')}, max. retries: {task.max_retries})"),
        ("created", _when(task.created_at, now)),
        ("runs at" if task.status is Status.PENDING else "", _due(task.available_at, now)),
        ("started", "not yet" if task.is_claimed_only else task.started_at and _when(task.started_at, now)),
        ("finished", task.completed_at and _when(task.completed_at, now)),
        ("took", duration(took(task))),
        ("lease until", task.lease_expires_at and _when(task.lease_expires_at, now)),
        ("worker", task.worker_id),
        ("needs", ", ".join(task.needs)),
        ("group", task.group and shown_group(task.group)),
        ("timeout", duration(task.timeout)),
        ("key", task.idempotency_key),
        ("trace", task.trace_id),
        ("batch", task.batch),
        ("progress", progress_text(task)),
    ]
    shown = [(name, data(value)) for name, value in facts if name and value not in (None, "")]
    shown.append(("payload", _long(as_json(to_json(task.payload)))))
    if task.result is not None:
        shown.append(("result", _long(as_json(to_json(task.result)), STYLES[Status.COMPLETED])))
    if task.error:
        if task.failure_kind is not None:
            shown.append(("failure kind", data(task.failure_kind.value)))
        shown.append(("error", _long(shown_text(task.error), STYLES[Status.FAILED])))
    return shown


def _long(text: str, style: str = "") -> Text:
    return Text(shorten(clean_lines(text.rstrip()), _MAX_TEXT), style=style)


def _when(instant: float, now: float) -> str:
    ago = now - instant
    return f"{iso(instant)} ({duration(ago)} ago)" if ago >= 0 else f"{iso(instant)} (in {duration(-ago)})"


def _due(available_at: float, now: float) -> str:
    return "when its parent tasks have completed" if available_at == BLOCKED_AT else _when(available_at, now)


def task_status(task: Task, now: float) -> Text:
    """The status; the kind of a pending task, and "claimed" for a task that a worker has leased and not started."""
    status = "claimed" if task.is_claimed_only else pending_kind(task, now) or task.status
    return Text(str(status), style=STYLES[task.status])


def took(task: Task) -> float | None:
    if task.started_at is None or task.completed_at is None:
        return None
    return task.completed_at - task.started_at


def task_table(tasks: list[Task], now: float, *, width: int) -> Table:
    wide = width >= _WIDE
    has_failures = wide and any(task.failure_kind is not None for task in tasks)
    has_progress = any(task.status is Status.RUNNING and task.progress is not None for task in tasks)
    more = (*(("failure",) if has_failures else ()), "queue", "worker") if wide else ()
    more = (*(("progress",) if has_progress else ()), *more)
    rows = table("id", "type", "status", "prio", "tries", "age", *more, right=("prio", "tries", "age"))
    for task in tasks:
        cells: list[Any] = [
            Text(task.id),
            data(task.type),
            task_status(task, now),
            Text(str(task.priority)),
            _tries(task),
            Text(age(now - task.created_at), style="dim"),
        ]
        if has_progress:
            cells.append(data(progress_text(task) if task.status is Status.RUNNING else ""))
        if has_failures:
            cells.append(Text("" if task.failure_kind is None else task.failure_kind.value))
        rows.add_row(*cells, *((data(task.queue), data(task.worker_id or "", "dim")) if wide else ()))
    return rows


def progress_text(task: Task) -> str:
    """The progress that the handler reported, such as `40 % resizing`."""
    if task.progress is None:
        return ""
    return f"{task.progress:.0%} {clean(task.progress_text or '')}".replace("%", " %").rstrip()


def _tries(task: Task) -> Text:
    return Text.assemble(str(task.attempt), (f" ({task.failures}✗)", "red") if task.failures else "")


def by_type(lanes: Lanes) -> dict[str, int]:
    numbers: Counter[str] = Counter()
    for (_, type_), number in lanes.items():
        numbers[type_] += number
    return dict(numbers.most_common())


def unhandled_note(types: Mapping[str, int]) -> Text:
    shown = ", ".join(f"{clean(type_)} ({plural(number)})" for type_, number in list(types.items())[:_MAX_TYPES])
    more = f" and {plural(len(types) - _MAX_TYPES, 'more type')}" if len(types) > _MAX_TYPES else ""
    return Text(f"{NO_HANDLER}: {shown}{more}", style="yellow")


async def find_unhandled_of(client: Client, tasks: Iterable[Task | None]) -> Lanes:
    """Call `find_unhandled` if one of these tasks is pending."""
    if not any(task is not None and task.status is Status.PENDING for task in tasks):
        return {}
    return await find_unhandled(client.engine, system_clock())
