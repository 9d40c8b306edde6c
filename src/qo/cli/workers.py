"""`qo workers`: list workers, or ask them to drain."""

from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from qo.cli.audit import audited, names_in_words
from qo.cli.completion import complete_workers
from qo.cli.context import DURATION, CommandGroup, Invocation, common, examples, option
from qo.cli.monitor_options import DEFAULTS
from qo.cli.output import age
from qo.cli.rich_output import data, table
from qo.client import Client
from qo.clock import iso, system_clock
from qo.errors import NameNotFound
from qo.notes import WorkerNote, is_dead

STYLES = {"active": "green", "draining": "yellow", "stale": "red", "dead": "red"}


@click.group(
    "workers",
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=examples("qo workers", "qo workers --json | jq '.[].worker_id'", "qo workers drain web-1"),
)
@common
@option(
    "--worker-health-threshold",
    "threshold",
    type=DURATION,
    default=DEFAULTS.worker_health_threshold,
    var="QO_MONITOR_WORKER_HEALTH_THRESHOLD",
    help="Time without a heartbeat after which a worker is shown as stale.",
)
def command(call: Invocation, threshold: float) -> None:
    """List workers: active, draining, stale (no recent heartbeat) or dead (marked by a monitor)."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.find_root().obj = call  # options given before `drain` apply to it
        return

    async def work(client: Client) -> list[WorkerNote]:
        return await client.workers()

    workers, now = call.run(work), system_clock()
    if call.json:
        call.print_json([worker_view(worker, now, threshold) for worker in workers])
    elif workers:
        call.console.print(worker_table(workers, now, threshold))
    else:
        call.console.print(Text("no workers; start one with: qo worker MODULE:APP", style="dim"))


@command.command("drain", epilog=examples("qo workers drain web-1", "qo workers drain web-1 web-2"))
@common
@click.argument(
    "workers",
    metavar="WORKER...",
    nargs=-1,
    required=True,
    shell_complete=lambda ctx, _, text: complete_workers(ctx, text),
)
def drain(call: Invocation, workers: tuple[str, ...]) -> None:
    """Ask workers to drain.

    They claim no more tasks, finish running ones within their grace period, and exit. They notice within a second or
    two. A worker that is started later with the same name is not drained.
    """

    async def work(client: Client) -> None:
        known = {worker.worker_id for worker in await client.workers()}
        unknown = [worker for worker in workers if worker not in known]
        if unknown:
            raise NameNotFound(f"there is no worker {', '.join(unknown)}; see qo workers")
        async with audited(client, "drain", names_in_words(worker=workers)):
            await client.controls.drain(workers)

    call.run(work)
    if call.json:
        call.print_json({"draining": list(workers)})
    else:
        call.console.print(Text(f"asked to drain: {', '.join(workers)}", style="yellow"))


def health(worker: WorkerNote, now: float, threshold: float) -> str:
    """The stored status, or "stale" if the worker sends no heartbeats and no monitor has marked it as dead."""
    return "stale" if worker.status != "dead" and is_dead(worker, now, threshold) else worker.status


def worker_view(worker: WorkerNote, now: float, threshold: float) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.to_builtins(worker)
    instants = {"started_at": iso(worker.started_at), "last_heartbeat": iso(worker.last_heartbeat)}
    return view | instants | {"status": health(worker, now, threshold)}


def worker_table(workers: list[WorkerNote], now: float, threshold: float) -> Table:
    numbers = ("load", "done", "failed", "seen", "up")
    rows = table("worker", "status", *numbers, "queues", right=numbers)
    for worker in sorted(workers, key=lambda worker: worker.worker_id):
        state = health(worker, now, threshold)
        rows.add_row(
            data(worker.worker_id),
            Text(state, style=STYLES.get(state, "")),
            Text.assemble(
                f"{worker.current_load}/{worker.capacity}", (f" +{worker.waiting}", "dim") if worker.waiting else ""
            ),
            Text(f"{worker.tasks_completed:,}"),
            Text(f"{worker.tasks_failed:,}", style="red" if worker.tasks_failed else ""),
            Text(f"{age(now - worker.last_heartbeat)} ago", style="dim"),
            Text(age(now - worker.started_at), style="dim"),
            data(", ".join(worker.queues) or "all"),
        )
    return rows
