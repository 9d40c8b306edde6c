"""A worker in the process of a program, on the event loop of its client."""

import asyncio
import logging
import os
from concurrent.futures import Future
from contextlib import suppress

from qo.background import BackgroundClient
from qo.backoff import Backoff
from qo.client import Client
from qo.errors import InvalidSetting
from qo.monitor import Monitor, MonitorSettings
from qo.tasks import Registry
from qo.worker import Worker, WorkerSettings, WorkerStuck
from qo.worker.waits import abandon, ended

log = logging.getLogger("qo.worker")
_MIN_RESTART_PAUSE, _MAX_RESTART_PAUSE = 0.2, 30.0  # seconds until a worker that is stuck is replaced
_MONITOR_TIMEOUT = 2.0  # seconds for the monitor to end; its store may not answer


class InProcessWorker:
    """A worker and a monitor, from now on. A worker that is stuck is replaced, as by the supervisor of `qo worker`."""

    def __init__(self, background: BackgroundClient, registry: Registry, settings: WorkerSettings) -> None:
        """Raises what prevents the store from being opened."""
        self._background, self._registry, self._settings = background, registry, settings
        self._pid = os.getpid()  # a forked child has no thread that runs the worker
        self._started: Future[Worker] = Future()
        self._stopping = asyncio.Event()
        self._run = background.spawn(self._work())
        self._run.add_done_callback(self._report_end)
        self._worker = self._started.result()

    @property
    def is_running(self) -> bool:
        return not self._run.done() and self._pid == os.getpid()

    def refresh(self) -> None:
        """Apply changes of the registry."""
        self._background.call(self._worker.refresh)

    def stop(self) -> None:
        """Let running tasks finish, and release the rest. Raises what ended the worker before."""
        if self.is_running:
            self._background.call(self._stop)
        if self._pid == os.getpid():
            self._run.result()

    def _stop(self) -> None:
        self._stopping.set()
        self._worker.stop()

    async def _work(self) -> None:
        client = await self._background.client()
        backoff = Backoff(_MIN_RESTART_PAUSE, _MAX_RESTART_PAUSE)
        while not self._stopping.is_set():
            self._worker = Worker(client, self._registry, self._settings)
            if not self._started.done():
                self._started.set_result(self._worker)
            try:
                await _run_with_monitor(client, self._worker)
            except WorkerStuck as error:
                pause = backoff.next()
                log.error("the worker stops: %s; another one starts in %.1f s", error, pause)  # noqa: TRY400
            else:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    def _report_end(self, run: "Future[None]") -> None:
        error = run.exception()
        if not self._started.done():
            self._started.set_exception(error or InvalidSetting("the worker did not start"))
        elif error is not None:
            log.error("the worker has ended, and its tasks wait for another one: %s", error)


async def _run_with_monitor(client: Client, worker: Worker) -> None:
    monitor = Monitor(client, MonitorSettings(), id=worker.id)
    monitoring = asyncio.create_task(monitor.run())
    try:
        await worker.run()
    finally:
        monitor.stop()
        await ended([monitoring], _MONITOR_TIMEOUT)
        abandon([monitoring])
