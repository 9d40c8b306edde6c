"""`qo top`: watch the queue live."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qo.cli.batches import batch_table, view
from qo.cli.context import DURATION, Invocation, common, examples, option
from qo.cli.controls import controls_lines, controls_view
from qo.cli.monitor_options import DEFAULTS
from qo.cli.output import age
from qo.cli.rich_output import STYLES, by_type, data, status_text, table, unhandled_note
from qo.cli.stats import lane_table
from qo.cli.workers import worker_table, worker_view
from qo.client import Client
from qo.client.batches import BatchProgress, BatchReader
from qo.clock import boot_clock, iso, system_clock
from qo.codec import shown_text, task_view
from qo.errors import StorageError
from qo.handled_types import find_unhandled
from qo.model import UNFINISHED, Filter, Status, Task
from qo.notes import Controls, WorkerNote
from qo.safe_text import clean, clean_lines

_MIN_INTERVAL = 0.1  # seconds; each refresh costs the store several reads
_MAX_FAILURES = 10
_MAX_RATES = 60  # refreshes in the sparkline
_MIN_ROWS, _MAX_ROWS = 2, 8  # of each table, depending on the height of the screen
_OTHER_LINES = 20  # lines of a frame that are not rows of its tables
_MAX_BATCHES = 5
_SEARCHED_TASKS = 100  # newest unfinished tasks among which batches and progress are searched
_UNFINISHED = Filter(statuses=tuple(sorted(UNFINISHED)))
_BLOCKS = "▁▂▃▄▅▆▇█"


class QueueSnapshot(Struct, frozen=True, kw_only=True):
    at: float
    stats: dict[str, Any]
    workers: list[WorkerNote]
    failures: list[Task]
    batches: list[BatchProgress]  # with unfinished tasks
    running: list[Task]  # that have reported progress
    controls: Controls
    error: str = ""

    def with_error(self, error: str) -> "QueueSnapshot":
        return replace(self, error=error)


class ThroughputMeter:
    """Completed tasks per second, from one snapshot to the next."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self.rates: deque[float] = deque(maxlen=_MAX_RATES)

    def add(self, stats: Mapping[str, Any], now: float) -> None:
        done = stats[Status.COMPLETED] + stats[Status.ARCHIVED]
        if self._last is not None and now > self._last[1]:
            self.rates.append(max(0, done - self._last[0]) / (now - self._last[1]))
        self._last = (done, now)


@click.command("top", epilog=examples("qo top", "qo top --interval 5", "qo top --once", "qo top --json | jq .stats"))
@common
@option("--interval", type=DURATION, default=1.0, help="Refresh interval.")
@option("--once", is_flag=True, help="Print once and exit.")
@option(
    "--worker-health-threshold",
    "threshold",
    type=DURATION,
    default=DEFAULTS.worker_health_threshold,
    var="QO_MONITOR_WORKER_HEALTH_THRESHOLD",
    help="Time without a heartbeat after which a worker is shown as stale.",
)
def command(call: Invocation, *, interval: float, once: bool, threshold: float) -> None:
    """Watch counts, throughput, types, workers, batches, progress and recent failures. Press q to quit."""
    if call.json:
        call.print_json(snapshot_view(call.run(take_snapshot), threshold))
    elif once or not call.console.is_terminal:
        call.console.print(frame(call.run(take_snapshot), ThroughputMeter(), call.shown_url, threshold, height=None))
    else:
        call.run(lambda client: _watch(call, client, max(_MIN_INTERVAL, interval), threshold))


async def _watch(call: Invocation, client: Client, interval: float, threshold: float) -> None:
    quit_pressed, throughput, console = asyncio.Event(), ThroughputMeter(), call.console
    reader = BatchReader(client.engine)
    snapshot = await take_snapshot(client, reader)
    with _keys(quit_pressed.set), Live(console=console, screen=True, auto_refresh=False) as live:
        while not quit_pressed.is_set():
            throughput.add(snapshot.stats, boot_clock())
            live.update(frame(snapshot, throughput, call.shown_url, threshold, height=console.height), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await quit_pressed.wait()
            snapshot = await _refresh(client, snapshot, reader)


async def _refresh(client: Client, last: QueueSnapshot, reader: BatchReader) -> QueueSnapshot:
    """A new snapshot, or the last one with the error while the store is unreachable."""
    try:
        return await take_snapshot(client, reader)
    except StorageError as error:
        return last.with_error(str(error))


@contextlib.contextmanager
def _keys(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` when q, Escape or Ctrl-C is pressed. Keys are not echoed inside the block."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if os.read(descriptor, 16)[:1] in (b"q", b"Q", b"\x1b", b"\x03", b"\x04", b""):
            end()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def take_snapshot(client: Client, reader: BatchReader | None = None) -> QueueSnapshot:
    reader = reader or BatchReader(client.engine)
    running = await client.engine.find_without_values(Filter(statuses=(Status.RUNNING,)), limit=_SEARCHED_TASKS)
    return QueueSnapshot(
        at=system_clock(),
        stats=await client.stats() | {"unhandled": by_type(await find_unhandled(client.engine, system_clock()))},
        workers=await client.workers(),
        failures=await client.list(Filter(statuses=(Status.FAILED,)), limit=_MAX_FAILURES),
        controls=await client.controls.in_force(),
        batches=await reader.newest(_UNFINISHED, limit=_MAX_BATCHES, among=_SEARCHED_TASKS),
        running=[task for task in running if task.progress is not None],
    )


def snapshot_view(snapshot: QueueSnapshot, threshold: float) -> dict[str, Any]:
    return {
        "at": iso(snapshot.at),
        "stats": snapshot.stats,
        "workers": [worker_view(worker, snapshot.at, threshold) for worker in snapshot.workers],
        "batches": [view(batch) for batch in snapshot.batches],
        "running": [task_view(task, snapshot.at) for task in snapshot.running],
        "recent_failures": [task_view(task, snapshot.at) for task in snapshot.failures],
        "control": controls_view(snapshot.controls),
    }


def frame(
    snapshot: QueueSnapshot, throughput: ThroughputMeter, url: str, threshold: float, *, height: int | None
) -> RenderableType:
    rows = _MAX_ROWS if height is None else max(_MIN_ROWS, min(_MAX_ROWS, (height - _OTHER_LINES) // 3))
    parts: list[RenderableType] = [
        _head(snapshot, url, live=height is not None),
        Text(),
        _counts(snapshot.stats),
        _sparkline(throughput),
    ]
    parts += controls_lines(snapshot.controls)
    if snapshot.error:
        parts.append(Text(f"the store is unreachable: {clean(snapshot.error)}", style="bold red"))
    if snapshot.stats["by_type"]:
        parts += [Text(), lane_table("type", snapshot.stats["by_type"], max_rows=rows)]
    if snapshot.stats["unhandled"]:
        parts.append(unhandled_note(snapshot.stats["unhandled"]))
    if snapshot.workers:
        parts += [Text(), worker_table(snapshot.workers[:rows], snapshot.at, threshold)]
    else:
        parts.append(Text("\nno workers; start one with: qo worker MODULE:APP", style="dim"))
    if snapshot.batches:
        parts += [Text(), batch_table(snapshot.batches[:rows])]
    if snapshot.running:
        parts += [Text(), _running(snapshot.running[:rows], snapshot.at)]
    if snapshot.failures:
        parts += [Text(), _failures(snapshot.failures[:rows], snapshot.at)]
    return Group(*parts)


def _head(snapshot: QueueSnapshot, url: str, *, live: bool) -> Text:
    time = (iso(snapshot.at) or "").replace("T", " ")[:19]
    return Text.assemble(
        ("qo top ", "bold cyan"), clean(url), (f"  {time} UTC{'  press q to quit' if live else ''}", "dim")
    )


def _counts(stats: Mapping[str, Any]) -> Table:
    """Two lines: the statuses, and the number of tasks in each."""
    grid = Table.grid(padding=(0, 3))
    for _ in Status:
        grid.add_column(justify="right", no_wrap=True)
    grid.add_row(*(status_text(status) for status in Status))
    grid.add_row(*(Text(f"{stats[status]:,}", style=f"bold {STYLES[status]}") for status in Status))
    return grid


def _sparkline(throughput: ThroughputMeter) -> Text:
    if not throughput.rates:
        return Text()
    highest = max(throughput.rates)
    line = "".join(
        _BLOCKS[round((len(_BLOCKS) - 1) * rate / highest)] if highest else _BLOCKS[0] for rate in throughput.rates
    )
    return Text.assemble(("\n" + line, "green"), (f" {throughput.rates[-1]:,.1f} per second", "bold"))


def _running(tasks: list[Task], now: float) -> Table:
    rows = table("running", "id", "for", "progress", right=("for",))
    for task in tasks:
        since = Text("" if task.started_at is None else age(now - task.started_at), style="dim")
        share = f"{task.progress or 0.0:.0%}"
        rows.add_row(data(task.type), Text(task.id), since, Text(f"{share} {clean(task.progress_text or '')}".rstrip()))
    return rows


def _failures(tasks: list[Task], now: float) -> Table:
    rows = table("failure", "id", "ago", "error", right=("ago",))
    for task in tasks:
        lines = clean_lines(shown_text(task.error or "").strip()).splitlines() or [""]
        ago = Text(age(now - (task.completed_at or task.updated_at)), style="dim")
        rows.add_row(data(task.type), Text(task.id), ago, Text(lines[0], style="red"))
    return rows
