"""The worker process that `qo worker` runs under its supervisor: its app, a worker, its monitor, and its signals."""

import asyncio
import contextlib
import importlib
import logging
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType, ModuleType
from typing import Any

import click
from msgspec.structs import replace
from rich.table import Table
from rich.text import Text

import qo
from qo import destinations
from qo.app import App, background_of
from qo.cli.exit_codes import Exit
from qo.cli.rich_output import console
from qo.cli.worker import Plan
from qo.client import Client
from qo.clock import boot_clock
from qo.engines import with_options
from qo.errors import InvalidSetting, NewerFormat, QoError
from qo.executors.exit_guard import end_process
from qo.executors.run_table import RunTable
from qo.monitor import Monitor
from qo.safe_text import clean, hide_password
from qo.tasks import Registry
from qo.worker import Watchdog, Worker, WorkerCancelled
from qo.worker.process_exit import DRAINED, FINISHED, OUTDATED, WorkerHeartbeat
from qo.worker.waits import abandon, ended

log = logging.getLogger("qo.worker")
_DEFAULT_ATTRIBUTE = "app"
_CLOSE_TIMEOUT = 1.0  # seconds for a monitor to give up its leadership, and for the store to close
_AFTER_GRACE = 4.5  # seconds after the grace period; the supervisor kills the process 2.5 s later
_AFTER_ABORT = 2.5  # seconds after the second signal
_AFTER_WORK = 5.0  # seconds for the program's atexit functions


class _StopSignal(SystemExit):
    """A signal arrived while the program was imported, which is not a `sys.exit` of the program."""


def load_app(target: str, url: str | None, options: Mapping[str, str] | None = None) -> App:
    """The app that `target` names. With `url`, it and all apps of the same store use that store instead."""
    destinations.pin()
    name, _, attribute = target.partition(":")
    module = _import(name)
    app = _as_app(_find(module, attribute or _DEFAULT_ATTRIBUTE, target), target)
    if not len(app.registry):
        raise InvalidSetting(f"{target} has no tasks; import the module that declares them")
    if options:
        url = with_options(url or app.url, options)
    if url is not None:
        destinations.serve(app.url, url)
        app.url = url  # raises if the program has used the app already
    return app


def _import(name: str) -> ModuleType:
    if name.endswith(".py") or not name or not all(part.isidentifier() for part in name.split(".")):
        module = name.removeprefix("./").removesuffix(".py").replace("/", ".")
        is_path = name.endswith(".py") and all(part.isidentifier() for part in module.split("."))
        hint = f"; did you mean {module}:{_DEFAULT_ATTRIBUTE}?" if is_path else ""
        raise InvalidSetting(f"{name!r:.80} is not a module; use module:attribute, such as myproject.tasks:app{hint}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidSetting(f"there is no module {error.name!r} in {here} or in the installed packages") from error
        raise InvalidSetting(_import_error(name, error)) from error
    except _StopSignal:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidSetting(_import_error(name, error)) from error


def _import_error(name: str, error: BaseException) -> str:
    """The error of an import, and its place in the user's code."""
    ours, python = str(Path(qo.__file__).parent), str(Path(traceback.__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<"))
        and ("site-packages" in frame.filename or not frame.filename.startswith(python))
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    is_exit = isinstance(error, SystemExit)
    problem = f"it calls sys.exit({error})" if is_exit else f"{type(error).__name__}: {error}"
    return f"{name} cannot be imported: {problem}{where}"


def _find(module: ModuleType, attribute: str, target: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
            hint = f"; did you mean {module.__name__}:{apps[0]}?" if apps else ""
            raise InvalidSetting(f"{target}: the module {module.__name__} has no attribute {part!r}{hint}")
        found = getattr(found, part)
    return found


def _as_app(found: Any, target: str) -> App:
    if isinstance(found, App):
        return found
    registry = getattr(found, "registry", None)
    if not isinstance(registry, Registry):
        raise InvalidSetting(f"{target} is not a qo.App but of type {type(found).__name__}")
    inner = getattr(found, "app", None)
    app = inner if isinstance(inner, App) else App()
    app.registry = registry
    return app


def work(plan: Plan, table: RunTable) -> int:
    """Run the worker on the app's event loop. This thread handles the signals."""
    signals = SignalHandler(plan.settings.grace, table)
    signals.install_handlers()
    app = load_app(plan.target, plan.url, plan.bucket)
    table.set_url(app.url)
    if plan.processes == 1:
        with contextlib.suppress(OSError):  # a worker runs its tasks even if nothing can be written to its log
            _print_banner(plan, app)

    background = background_of(app)

    async def run() -> bool:
        client = measured(await background.client(), plan.metrics)
        worker = Worker(client, app.registry, plan.settings, table=table)
        signals.attach(worker)
        await worker.open()  # before the heartbeat: a worker whose lifespan fails has not worked
        heartbeat = WorkerHeartbeat(worker, table)
        log.info("worker %s started", worker.id, extra={"worker_id": worker.id})
        watchdog = Watchdog(worker, after=plan.settings.stuck_after)
        try:
            async with _monitored(client, plan):
                await worker.run()
        finally:
            watchdog.stop()
            heartbeat.stop()
        log.info("worker %s stopped", worker.id, extra={"worker_id": worker.id})
        return worker.drain_requested

    try:
        drain_requested = background.run(run())
    except CancelledError:
        raise WorkerCancelled("the worker was cancelled; restart it") from None
    except NewerFormat:
        signals.worker_ended(OUTDATED)  # a handler that is still running in a thread must not keep the process alive
        raise
    app.close(timeout=_CLOSE_TIMEOUT)
    if signals.received > 1:
        return signals.worker_ended(Exit.INTERRUPTED)
    return signals.worker_ended(DRAINED if drain_requested else FINISHED)


def measured(client: Client, address: tuple[str, int] | None) -> Client:
    """The client, with metrics served at an address if --metrics-port was given."""
    if address is None:
        return client
    try:
        from qo.metrics import Meters  # noqa: PLC0415 - prometheus-client is an extra
    except ImportError as error:
        raise InvalidSetting("--metrics-port needs another package: pip install 'qo-queue[web]'") from error
    meters = Meters()
    host, port = address
    try:
        meters.serve(port, host)
    except OSError as error:
        raise InvalidSetting(f"cannot serve metrics at {host}:{port}: {error.strerror}") from error
    return meters.measured(client)


@contextlib.asynccontextmanager
async def _monitored(client: Client, plan: Plan) -> AsyncIterator[None]:
    """Run a monitor during the block."""
    if plan.monitor is None:
        yield
        return
    # Users who set a short lease expect lost tasks to be retried soon.
    interval = min(plan.monitor.check_interval, plan.settings.lease / 2)
    monitor = Monitor(client, replace(plan.monitor, check_interval=interval), id=plan.id)
    monitoring = asyncio.create_task(monitor.run())
    monitoring.add_done_callback(_log_failure)
    try:
        yield
    finally:
        monitor.stop()
        await ended([monitoring], _CLOSE_TIMEOUT)
        abandon([monitoring])


def _log_failure(monitoring: asyncio.Task[None]) -> None:
    if monitoring.cancelled() or (error := monitoring.exception()) is None:
        return
    if not isinstance(error, NewerFormat):  # the worker gets the same error and stops
        trace = None if isinstance(error, QoError) else error  # the errors of qo say what to do
        log.error("the monitor failed; the worker continues without it: %s", error, exc_info=trace)


def _print_banner(plan: Plan, app: App) -> None:
    settings = plan.settings
    if "--log-json" in plan.log or not log.isEnabledFor(logging.INFO):
        return
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right")
    rows.add_column(overflow="fold")
    types = settings.types or tuple(sorted(handler.type for handler in app.registry))
    for name, value in (
        ("worker", plan.id),
        ("store", hide_password(app.url)),
        ("queues", ", ".join(settings.queues) or "all"),
        ("types", ", ".join(types)),
        ("capabilities", ", ".join(settings.capabilities)),
        ("concurrency", str(settings.concurrency)),
        ("monitor", "in this process" if plan.monitor else "none"),
    ):
        if value:
            rows.add_row(name, Text(clean(value), style="bold" if name == "worker" else ""))
    console(sys.stderr).print(
        Text("qo worker", style="bold cyan"), rows, Text("Press Ctrl-C to stop", style="dim"), sep="\n"
    )
    click.echo(err=True)


class LastResort:
    """A thread that ends the process at a deadline, even if other threads are blocked.

    It logs nothing, because a blocked thread may hold the lock of the log's stream.
    """

    def __init__(self) -> None:
        self._deadlines: SimpleQueue[tuple[float, int]] = SimpleQueue()  # safe to use in a signal handler
        threading.Thread(target=self._watch, name="qo-last-resort", daemon=True).start()

    def after(self, seconds: float, code: int) -> None:
        """End the process with this code after `seconds`, or at an earlier deadline if there is one."""
        self._deadlines.put((boot_clock() + seconds, code))

    def _watch(self) -> None:
        until, code = self._deadlines.get()
        while True:
            try:
                earlier, code = self._deadlines.get(timeout=max(0.0, until - boot_clock()))
            except Empty:
                end_process(code)
            until = min(until, earlier)


class SignalHandler:
    """Handles signals: the first stops the worker, the second aborts it, the third ends the process."""

    def __init__(self, grace: float, table: RunTable) -> None:
        self._grace, self.received, self._table = grace, 0, table
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_resort = LastResort()

    def install_handlers(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # SIGHUP means that the supervisor died
            signal.signal(number, self._on_signal)

    def attach(self, worker: Worker) -> None:
        """Call on the worker's event loop. Passes on the signals that arrived before the worker existed."""
        self._loop, self._worker = asyncio.get_running_loop(), worker
        if self.received:
            worker.stop()
        if self.received > 1:
            worker.abort()

    def worker_ended(self, code: int) -> int:
        """Call when the worker has stopped. The program then has a few seconds to exit."""
        self._table.end(code)
        self._last_resort.after(_AFTER_WORK, code)
        return code

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # the supervisor is gone; the kernel and the pipe may both report it
            if self.received:
                return
            self.received = 1  # abort: no supervisor is left to watch this process
        self.received += 1
        if self.received > 2:  # noqa: PLR2004 - the third
            end_process(Exit.INTERRUPTED)
        if self.received == 1:
            grace = self._grace if self._worker is not None else 0.0
            self._last_resort.after(grace + _AFTER_GRACE, FINISHED)
            log.info(
                "stopping: running tasks have %g s to finish; send the signal again to release them immediately",
                self._grace,
            )
        else:
            self._last_resort.after(_AFTER_ABORT, Exit.INTERRUPTED)
        if self._worker is None:  # the program is being imported or the store opened, so no task is leased
            raise _StopSignal(FINISHED if self.received == 1 else Exit.INTERRUPTED)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._worker.stop if self.received == 1 else self._worker.abort)
