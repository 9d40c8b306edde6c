"""One look at the queue, and how it is drawn."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qo.cli.controls import control_lines, control_view
from qo.cli.output import age, clean, clean_lines
from qo.cli.rich_output import STYLES, data, status_text, table
from qo.cli.stats import lane_table
from qo.cli.unhandled import by_type, unhandled_note
from qo.cli.workers import worker_table, worker_view
from qo.client import Client
from qo.clock import iso, system_clock
from qo.codec import task_view
from qo.model import Filter, Status, Task
from qo.notes import Controls, WorkerNote, find_unhandled

RECENT = 10  # failures
BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 60  # looks the sparkline remembers
FEWEST, SOME = 2, 8  # rows of a table when the screen is low, and when it is not
FURNITURE = 20  # lines of a frame that are not rows of its three tables


class QueueSnapshot(Struct, frozen=True, kw_only=True):
    at: float
    stats: dict[str, Any]
    workers: list[WorkerNote]
    failures: list[Task]
    control: Controls
    trouble: str = ""

    def with_trouble(self, reason: str) -> "QueueSnapshot":
        return replace(self, trouble=reason)


class Pulse:
    """Throughput from one look to the next."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self.rates: deque[float] = deque(maxlen=SPARKS)

    def feel(self, stats: Mapping[str, Any], now: float) -> None:
        done = stats[Status.COMPLETED] + stats[Status.ARCHIVED]
        if self._last is not None and now > self._last[1]:
            self.rates.append(max(0, done - self._last[0]) / (now - self._last[1]))
        self._last = (done, now)


async def look(client: Client) -> QueueSnapshot:
    return QueueSnapshot(
        at=system_clock(),
        stats=await client.stats() | {"unhandled": by_type(await find_unhandled(client.engine, system_clock()))},
        workers=await client.workers(),
        failures=await client.list(Filter(statuses=(Status.FAILED,)), limit=RECENT),
        control=await client.controls.in_force(),
    )


def look_view(seen: QueueSnapshot, threshold: float) -> dict[str, Any]:
    return {
        "at": iso(seen.at),
        "stats": seen.stats,
        "workers": [worker_view(worker, seen.at, threshold) for worker in seen.workers],
        "recent_failures": [task_view(task, seen.at) for task in seen.failures],
        "control": control_view(seen.control),
    }


def frame(seen: QueueSnapshot, pulse: Pulse, url: str, threshold: float, *, height: int | None) -> RenderableType:
    rows = SOME if height is None else max(FEWEST, min(SOME, (height - FURNITURE) // 3))
    parts: list[RenderableType] = [
        _head(seen, url, live=height is not None),
        Text(),
        _counts(seen.stats),
        _throughput(pulse),
    ]
    parts += control_lines(seen.control)
    if seen.trouble:
        parts.append(Text(f"the store is unreachable: {clean(seen.trouble)}", style="bold red"))
    if seen.stats["by_type"]:
        parts += [Text(), lane_table("type", seen.stats["by_type"], most=rows)]
    if seen.stats["unhandled"]:
        parts.append(unhandled_note(seen.stats["unhandled"]))
    if seen.workers:
        parts += [Text(), worker_table(seen.workers[:rows], seen.at, threshold)]
    else:
        parts.append(Text("\nno workers; start one with: qo worker MODULE:APP", style="dim"))
    if seen.failures:
        parts += [Text(), _failures(seen.failures[:rows], seen.at)]
    return Group(*parts)


def _head(seen: QueueSnapshot, url: str, *, live: bool) -> Text:
    moment = (iso(seen.at) or "").replace("T", " ")[:19]
    return Text.assemble(("qo top ", "bold cyan"), clean(url), (f"  {moment} UTC{'  q ends' if live else ''}", "dim"))


def _counts(stats: Mapping[str, Any]) -> Table:
    """Two lines: the statuses, and how many there are of each."""
    grid = Table.grid(padding=(0, 3))
    for _ in Status:
        grid.add_column(justify="right", no_wrap=True)
    grid.add_row(*(status_text(status) for status in Status))
    grid.add_row(*(Text(f"{stats[status]:,}", style=f"bold {STYLES[status]}") for status in Status))
    return grid


def _throughput(pulse: Pulse) -> Text:
    if not pulse.rates:
        return Text()
    most = max(pulse.rates)
    line = "".join(BLOCKS[round((len(BLOCKS) - 1) * rate / most)] if most else BLOCKS[0] for rate in pulse.rates)
    return Text.assemble(("\n" + line, "green"), (f" {pulse.rates[-1]:,.1f} a second", "bold"))


def _failures(tasks: list[Task], now: float) -> Table:
    rows = table("failure", "id", "ago", "error", right=("ago",))
    for task in tasks:
        lines = clean_lines((task.error or "").strip()).splitlines() or [""]
        ago = Text(age(now - (task.completed_at or task.updated_at)), style="dim")
        rows.add_row(data(task.type), Text(task.id), ago, Text(lines[0], style="red"))
    return rows
