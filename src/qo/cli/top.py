"""`qo top`: the queue, live."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator

import click
from rich.live import Live

from qo.cli.context import Invocation, common, examples, option
from qo.cli.monitor_options import DEFAULTS
from qo.cli.params import DURATION
from qo.cli.top_view import Pulse, QueueSnapshot, frame, look, look_view
from qo.client import Client
from qo.clock import boot_clock
from qo.errors import StorageError

SHORTEST = 0.1  # seconds: a look is work for the store too


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
    """Watch counts, throughput, types, workers and recent failures. Press q to quit."""
    if call.json:
        call.answer(look_view(call.ask(look), threshold))
    elif once or not call.out.is_terminal:
        call.out.print(frame(call.ask(look), Pulse(), call.shown_url, threshold, height=None))
    else:
        call.ask(lambda queue: _watch(call, queue, max(SHORTEST, interval), threshold))


async def _watch(call: Invocation, client: Client, interval: float, threshold: float) -> None:
    ended, pulse, out = asyncio.Event(), Pulse(), call.out
    seen = await look(client)
    with _keys(ended.set), Live(console=out, screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            pulse.feel(seen.stats, boot_clock())
            live.update(frame(seen, pulse, call.shown_url, threshold, height=out.height), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await ended.wait()
            seen = await _again(client, seen)


async def _again(client: Client, before: QueueSnapshot) -> QueueSnapshot:
    """A fresh look; while the store is unreachable, the last one with the reason."""
    try:
        return await look(client)
    except StorageError as error:
        return before.with_trouble(str(error))


@contextlib.contextmanager
def _keys(end: Callable[[], object]) -> Iterator[None]:
    """q, Escape or Ctrl-C call `end`; keys are not echoed meanwhile."""
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
