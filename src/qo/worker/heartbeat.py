"""The heartbeat of a supervised worker process: a thread that records when it and the worker's event loop last ran."""

import os
import threading

from qo.clock import Clock, boot_clock
from qo.worker.exit_codes import BROKEN
from qo.worker.exit_guard import end_process
from qo.worker.run_table import RunTable
from qo.worker.worker import Worker

INTERVAL = 0.25  # seconds


class WorkerHeartbeat:
    def __init__(self, worker: Worker, table: RunTable, *, clock: Clock = boot_clock) -> None:
        self._worker, self._table, self._clock = worker, table, clock
        self._over = threading.Event()
        self._pipe = os.pipe()  # detects a handler that closes all file descriptors
        self._inode = os.fstat(self._pipe[0]).st_ino
        table.begin(clock())
        threading.Thread(target=self._beat, name="qo-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(INTERVAL):
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
