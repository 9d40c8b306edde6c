"""`qo stats`: count tasks by status, type and queue, or show what was done in the last hours."""

from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from qo.cli.context import DURATION, Invocation, common, examples, option
from qo.cli.rich_output import STYLES, bar, by_type, data, status_text, table, unhandled_note
from qo.client import Client
from qo.clock import iso, system_clock
from qo.handled_types import find_unhandled
from qo.model import Status
from qo.stats import Durations, Interval, Rows, StatsRow, add_up
from qo.stats.archive import RETENTION
from qo.transitions import shown_duration

_BAR_WIDTH = 30  # cells of the longest bar; fewer in a narrow window
_NAME_WIDTH = len("  scheduled") + 4  # with the space between the columns
_PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_NUMBERS = ("completed", "retried", "failed", "dead_lettered", "lost", "cancelled")


@click.command("stats", epilog=examples("qo stats", "qo stats --json | jq .failed", "qo stats --since 1h"))
@common
@option("--since", type=DURATION, help="Show what ran in this last period instead, by type: 10m, 1h, up to 7d.")
def command(call: Invocation, since: float | None) -> None:
    """Count tasks. With --json: counts by status at the top level, then `by_type`, `by_queue` and `unhandled`.

    `pending_kinds` counts pending tasks by kind: ready (due now), scheduled (due later), retrying (due later after a
    failure) and blocked (waiting for other tasks of a workflow). `pending_kinds_complete` is false if more than 20,000
    tasks are due later; the others count as ready.

    `unhandled` counts, by type, the pending tasks for which no running worker has a handler.

    With --since: the outcomes of tasks, how long they waited, and how long they ran. All processes add to these
    statistics in the store: by the minute for the last hour, by the hour for older times. They are up to 30 s old.
    """
    if since is not None:
        if since > RETENTION:
            raise click.BadParameter("statistics are kept for 7d; pass at most that.", param_hint="'--since'")
        _show_activity(call, since)
        return

    async def work(client: Client) -> dict[str, Any]:
        kinds = await client.pending()
        counted = {"pending_kinds": kinds.total(), "pending_kinds_complete": kinds.is_complete}
        unhandled = by_type(await find_unhandled(client.engine, system_clock()))
        return await client.stats() | counted | {"unhandled": unhandled}

    stats = call.run(work)
    if call.json:
        call.print_json(stats)
        return
    call.console.print(status_table(stats, width=call.console.width))
    for title, key in (("by type", "by_type"), ("by queue", "by_queue")):
        if stats[key]:
            call.console.print(Text(), lane_table(title, stats[key]), sep="\n")
    if stats["unhandled"]:
        call.console.print(Text(), unhandled_note(stats["unhandled"]), sep="\n", soft_wrap=True)


def status_table(stats: Mapping[str, Any], *, width: int) -> Table:
    total = sum(stats[status] for status in Status)
    bar_width = max(0, min(_BAR_WIDTH, width - len(f"{total:,}") - _NAME_WIDTH))
    most = max(1, *(stats[status] for status in Status))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(no_wrap=True)
    for status in Status:
        number = stats[status]
        rows.add_row(
            status_text(status),
            Text(f"{number:,}", style="bold" if number else "dim"),
            bar(number / most, bar_width, STYLES[status]),
        )
        if status is Status.PENDING and number:
            for kind, part in stats.get("pending_kinds", {}).items():
                rows.add_row(Text(f"  {kind}", style="dim"), Text(f"{part:,}", style="dim"), "")
    rows.add_row(Text("all", style="dim"), Text(f"{total:,}", style="dim"), "")
    return rows


def lane_table(title: str, lanes: Mapping[str, Mapping[str, int]], *, max_rows: int | None = None) -> Table:
    """One row for each type or queue, one column for each status that occurs."""
    used = [status for status in Status if any(counts.get(status) for counts in lanes.values())]
    rows = table(title, *used, right=[*used])
    for status, column in zip(used, rows.columns[1:], strict=True):
        column.header_style = STYLES[status]
    busiest = sorted(lanes, key=lambda name: (-sum(lanes[name].values()), name))
    for name in busiest[:max_rows]:
        rows.add_row(data(name), *(_number(lanes[name].get(status, 0)) for status in used))
    if max_rows is not None and len(busiest) > max_rows:
        rows.add_row(Text(f"and {len(busiest) - max_rows} more", style="dim"))
    return rows


def _number(number: int) -> Text:
    return Text(f"{number:,}" if number else "·", style="" if number else "dim")


# --- `qo stats --since`


def _show_activity(call: Invocation, since: float) -> None:
    async def work(client: Client) -> list[Interval]:
        return await client.activity(since)

    intervals = call.run(work)
    by_type = _by_type(add_up(intervals))
    if call.json:
        total = StatsRow()
        for row in by_type.values():
            total.merge(row)
        first = min((interval.start for interval in intervals), default=None)
        answer: dict[str, Any] = {"since": iso(system_clock() - since), "first_interval": iso(first), **_view(total)}
        call.print_json(answer | {"by_type": {name: _view(row) for name, row in by_type.items()}})
    elif by_type:
        call.console.print(_table(by_type))
    else:
        call.console.print(Text("no attempts finished in this period", style="dim"))


def _by_type(rows: Rows) -> dict[str, StatsRow]:
    """The types, sorted by their number of attempts."""
    types: dict[str, StatsRow] = {}
    for key, row in rows.items():
        types.setdefault(key.type, StatsRow()).merge(row)
    return dict(sorted(types.items(), key=lambda item: (-item[1].run.number, item[0])))


def _view(row: StatsRow) -> dict[str, Any]:
    return {
        "completed": row.completed,
        "retried": sum(row.retried.values()),
        "failed": sum(row.failed.values()),
        "dead_lettered": row.dead_lettered,
        "lost": row.lost,
        "cancelled": row.cancelled,
        "wait": _durations(row.wait),
        "run": _durations(row.run),
    }


def _durations(durations: Durations) -> dict[str, Any]:
    """In seconds; percentiles are estimates."""
    shares = {name: _rounded(durations.percentile(share)) for name, share in _PERCENTILES.items()}
    return {"number": durations.number, "mean": _rounded(durations.mean), **shares}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _table(by_type: dict[str, StatsRow]) -> Table:
    """One row for each type, one column for each outcome that occurs."""
    views = {name: _view(row) for name, row in by_type.items()}
    used = [name for name in _NUMBERS if any(view[name] for view in views.values())]
    numbers = [name.replace("_", " ") for name in used]
    times = ["wait p50", "wait p95", "run p50", "run p95"]
    rows = table("type", *numbers, *times, right=[*numbers, *times])
    for name, row in by_type.items():
        view = views[name]
        spans = [durations.percentile(share) for durations in (row.wait, row.run) for share in (0.50, 0.95)]
        rows.add_row(
            data(name),
            *(Text(f"{view[each]:,}" if view[each] else "·", style="" if view[each] else "dim") for each in used),
            *(
                Text("·" if span is None else shown_duration(span), style="dim" if span is None else "")
                for span in spans
            ),
        )
    return rows
