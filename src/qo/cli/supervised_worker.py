"""The worker process that `qo worker` runs under its supervisor: a worker with its monitor."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError

import click
from msgspec.structs import replace
from rich.table import Table
from rich.text import Text

from qo.app import App, background_of
from qo.cli.app_loader import load_app
from qo.cli.exit_codes import Exit
from qo.cli.output import clean
from qo.cli.rich_output import console
from qo.cli.run_worker import Plan
from qo.cli.shutdown import Ending
from qo.client import Client
from qo.errors import InvalidSetting, NewerFormat
from qo.monitor import Monitor
from qo.url_secrets import hide_password
from qo.worker import Watchdog, Worker, WorkerCancelled
from qo.worker.heartbeat import WorkerHeartbeat
from qo.worker.process_exit import DRAINED, FINISHED, OUTDATED
from qo.worker.run_table import RunTable
from qo.worker.store_calls import abandon, ended

log = logging.getLogger("qo.worker")
_LAST_ANSWER = 1.0  # seconds a store has to take a monitor's resignation, and to let go


def work(plan: Plan, table: RunTable) -> int:
    """Signals are heeded in this thread; everything else happens on the app's own loop."""
    ending = Ending(plan.settings.grace, table)
    ending.listen()
    app = load_app(plan.target, plan.url, plan.bucket)
    table.set_url(app.url)
    if plan.processes == 1:
        banner(plan, app)

    background = background_of(app)

    async def both() -> bool:
        client = measured(await background.client(), plan.metrics)
        worker = Worker(client, app.registry, plan.settings, table=table)
        ending.attach(worker)
        heartbeat = WorkerHeartbeat(worker, table)
        log.info("worker %s started", worker.id, extra={"worker_id": worker.id})
        watchdog = Watchdog(worker, after=plan.settings.stuck_after)
        try:
            async with _watched(client, plan):
                await worker.run()
        finally:
            watchdog.stop()
            heartbeat.stop()
        log.info("worker %s stopped", worker.id, extra={"worker_id": worker.id})
        return worker.drain_requested

    try:
        drain_requested = background.run(both())
    except CancelledError:
        raise WorkerCancelled("something cancelled the worker; restart it") from None
    except NewerFormat:
        ending.worked(OUTDATED)  # a handler may still run in a thread, and must not keep the process
        raise
    app.close(timeout=_LAST_ANSWER)
    if ending.signals > 1:
        return ending.worked(Exit.INTERRUPTED)
    return ending.worked(DRAINED if drain_requested else FINISHED)


def measured(client: Client, place: tuple[str, int] | None) -> Client:
    """The queue with meters on it, shown at a port; as it is if nobody asked."""
    if place is None:
        return client
    try:
        from qo.metrics import Meters  # noqa: PLC0415 - prometheus-client is an extra
    except ImportError as error:
        raise InvalidSetting("--metrics-port needs its package: pip install 'qo-queue[web]'") from error
    meters = Meters()
    host, port = place
    try:
        meters.serve(port, host)
    except OSError as error:
        raise InvalidSetting(f"cannot show metrics at {host}:{port}: {error.strerror}") from error
    return meters.measured(client)


@contextlib.asynccontextmanager
async def _watched(client: Client, plan: Plan) -> AsyncIterator[None]:
    """A monitor beside the block."""
    if plan.monitor is None:
        yield
        return
    # Whoever asks for a short lease wants lost tasks back soon.
    interval = min(plan.monitor.check_interval, plan.settings.lease / 2)
    monitor = Monitor(client, replace(plan.monitor, check_interval=interval), id=plan.id)
    watching = asyncio.create_task(monitor.run())
    watching.add_done_callback(_tell_broken)
    try:
        yield
    finally:
        monitor.stop()
        await ended([watching], _LAST_ANSWER)
        abandon([watching])


def _tell_broken(watching: asyncio.Task[None]) -> None:
    if watching.cancelled() or (error := watching.exception()) is None:
        return
    if not isinstance(error, NewerFormat):  # the worker gets the same error, and ends
        log.error("the monitor failed; the worker continues without it: %s", error, exc_info=error)


# --- for people


def banner(plan: Plan, app: App) -> None:
    settings = plan.settings
    if "--log-json" in plan.log or not log.isEnabledFor(logging.INFO):
        return
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right")
    rows.add_column(overflow="fold")
    types = settings.types or tuple(sorted(handler.type for handler in app.registry))
    for name, value in (
        ("worker", plan.id),
        ("queue", hide_password(app.url)),
        ("queues", ", ".join(settings.queues) or "all"),
        ("types", ", ".join(types)),
        ("capabilities", ", ".join(settings.capabilities)),
        ("at once", str(settings.concurrency)),
        ("monitor", "beside it" if plan.monitor else "none"),
    ):
        if value:
            rows.add_row(name, Text(clean(value), style="bold" if name == "worker" else ""))
    console(sys.stderr).print(Text("qo worker", style="bold cyan"), rows, Text("Ctrl-C ends it", style="dim"), sep="\n")
    click.echo(err=True)
