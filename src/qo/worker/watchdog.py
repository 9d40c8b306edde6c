"""Threads that observe a worker: one reports to the supervisor, one ends the process when the worker hangs."""

import faulthandler
import logging
import os
import sys
import threading

from qo.clock import Clock, boot_clock
from qo.worker.process_exit import BROKEN, EXIT_STUCK, end_process
from qo.worker.run_table import RunTable
from qo.worker.worker import Worker

log = logging.getLogger("qo.worker")
_HEARTBEAT_INTERVAL = 0.25  # seconds


class WorkerHeartbeat:
    """Records in the run table when this thread and the worker's event loop last ran."""

    def __init__(self, worker: Worker, table: RunTable, *, clock: Clock = boot_clock) -> None:
        self._worker, self._table, self._clock = worker, table, clock
        self._over = threading.Event()
        self._pipe = os.pipe()  # detects a handler that closes all file descriptors
        self._inode = os.fstat(self._pipe[0]).st_ino
        table.begin(clock())
        threading.Thread(target=self._beat, name="qo-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(_HEARTBEAT_INTERVAL):
            if not self._has_descriptors():
                end_process(BROKEN)  # the store's connections are closed too, or their descriptors are reused
            self._table.beat(self._clock(), self._worker.alive_at)

    def _has_descriptors(self) -> bool:
        try:
            return os.fstat(self._pipe[0]).st_ino == self._inode
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the heartbeat, because the worker has ended and the process has not."""
        self._over.set()


class Watchdog:
    """Ends the process when the worker's event loop is blocked. A process that hangs would not be restarted."""

    def __init__(self, worker: Worker, *, after: float, clock: Clock = boot_clock) -> None:
        self._worker, self._after, self._clock = worker, after, clock
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="qo-watchdog", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._after / 4)):
            silent = self._clock() - self._worker.alive_at
            if silent > self._after:
                log.critical("the worker's event loop has been blocked for %.0f s: exit code %d", silent, EXIT_STUCK)
                faulthandler.dump_traceback(sys.__stderr__ or 2)
                os._exit(EXIT_STUCK)

    def stop(self) -> None:
        self._over.set()
