"""`qo stats --since`: what was done with tasks in the last hours."""

from typing import Any

from rich.table import Table
from rich.text import Text

from qo.cli.context import Invocation
from qo.cli.rich_output import data, table
from qo.client import Client
from qo.clock import iso, system_clock
from qo.stats import Durations, Interval, Rows, StatsRow, add_up
from qo.transitions import shown_duration

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_NUMBERS = ("completed", "retried", "failed", "dead_lettered", "lost", "cancelled")


def show_activity(call: Invocation, since: float) -> None:
    async def work(client: Client) -> list[Interval]:
        return await client.activity(since)

    intervals = call.ask(work)
    by_type = _by_type(add_up(intervals))
    if call.json:
        total = StatsRow()
        for row in by_type.values():
            total.merge(row)
        began = min((interval.start for interval in intervals), default=None)
        answer: dict[str, Any] = {"since": iso(system_clock() - since), "first_interval": iso(began), **_view(total)}
        call.answer(answer | {"by_type": {name: _view(row) for name, row in by_type.items()}})
    elif by_type:
        call.out.print(_table(by_type))
    else:
        call.out.print(Text("nothing ended in this time", style="dim"))


def _by_type(rows: Rows) -> dict[str, StatsRow]:
    """The busiest first."""
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
    shares = {name: _rounded(durations.percentile(share)) for name, share in PERCENTILES.items()}
    return {"number": durations.number, "mean": _rounded(durations.mean), **shares}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _table(by_type: dict[str, StatsRow]) -> Table:
    numbers = [name.replace("_", " ") for name in _NUMBERS]
    times = ["wait p50", "wait p95", "run p50", "run p95"]
    rows = table("type", *numbers, *times, right=[*numbers, *times])
    for name, row in by_type.items():
        view = _view(row)
        spans = [durations.percentile(share) for durations in (row.wait, row.run) for share in (0.50, 0.95)]
        rows.add_row(
            data(name),
            *(Text(f"{view[each]:,}" if view[each] else "·", style="" if view[each] else "dim") for each in _NUMBERS),
            *(
                Text("·" if span is None else shown_duration(span), style="dim" if span is None else "")
                for span in spans
            ),
        )
    return rows
