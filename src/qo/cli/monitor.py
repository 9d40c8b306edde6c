"""`qo monitor`: run a monitor without a worker."""

import asyncio
import logging
import signal
import socket
from typing import Any

import click
import msgspec
from rich.text import Text

from qo.cli.context import Invocation, common, examples, option
from qo.cli.monitor_options import monitor_options, monitor_settings
from qo.client import Client
from qo.errors import Refused, StorageError
from qo.ids import new_worker_id
from qo.log_output import LEVELS, start_logging
from qo.monitor import Checked, Monitor

log = logging.getLogger("qo.monitor")


@click.command("monitor", epilog=examples("qo monitor --retention 7d", "qo monitor --once --json"))
@common
@monitor_options
@option("--once", is_flag=True, help="Check once, print the result and exit.")
@option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    var="QO_LOG_LEVEL",
    help="Log level; the log goes to stderr.",
)
@option("--log-json", is_flag=True, var="QO_LOG_JSON", help="Log one JSON object per line.")
def command(call: Invocation, *, once: bool, log_level: str, log_json: bool, **given: Any) -> None:
    """Recover tasks of dead workers and apply retention, until stopped.

    Each worker process runs a monitor too, unless it has --no-monitor. Any number of monitors may run; one of them is
    elected and does the work.
    """
    start_logging(log_level, as_json=log_json or call.json)
    settings = monitor_settings(given)

    async def work(client: Client) -> Checked | None:
        monitor = Monitor(client, settings, id=new_worker_id(f"monitor-{socket.gethostname()}"))
        if once:
            return await monitor.check_once()
        await _until_stopped(monitor)
        return None

    checked = call.run(work)
    if call.json:
        call.print_json(msgspec.to_builtins(checked or {}))
    elif checked is not None:
        call.console.print(_summary(checked))


async def _until_stopped(monitor: Monitor) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, monitor.stop)
    log.info("monitor started; press Ctrl-C to stop it")
    try:
        await monitor.check()
    except Refused:
        raise
    except StorageError as error:
        log.debug("the store does not respond yet: %s", error)  # `run` retries
    await monitor.run()


def _summary(checked: Checked) -> Text:
    if not checked.led:
        return Text("another monitor is the leader; nothing was done", style="dim")
    return Text(
        f"expired {checked.expired}, dead workers {checked.dead_workers}, archived {checked.archived}, "
        f"deleted {checked.deleted}, repaired {checked.repaired}"
    )
