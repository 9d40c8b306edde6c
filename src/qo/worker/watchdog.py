"""A thread that ends the process when the worker's event loop is blocked.

A process that lives and does nothing would not be restarted.
"""

import faulthandler
import logging
import os
import sys
import threading

from qo.clock import Clock, boot_clock
from qo.worker.exit_codes import EXIT_STUCK
from qo.worker.worker import Worker

log = logging.getLogger("qo.worker")


class Watchdog:
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
