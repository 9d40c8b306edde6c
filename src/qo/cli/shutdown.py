"""How a worker process ends: by its signals, and by force if an orderly end takes too long."""

import asyncio
import logging
import signal
import threading
from queue import Empty, SimpleQueue
from types import FrameType

from qo.cli.exit_codes import Exit
from qo.clock import boot_clock
from qo.worker import Worker
from qo.worker.process_exit import FINISHED, end_process
from qo.worker.run_table import RunTable

log = logging.getLogger("qo.worker")
AFTER_GRACE = 4.5  # seconds beyond the grace period; the supervisor kills half a second later
_AFTER_ABORT = 2.5  # seconds after the second signal
_AFTER_WORK = 5.0  # seconds for what programs register with atexit


class LastResort:
    """A thread that ends the process when the time is up. No call that blocks elsewhere can stop it.

    It writes no log: another thread may hang while it holds the lock of the log's stream.
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


class Ending:
    """Signals, counted: the first ends the work gently, the second at once, the third by force."""

    def __init__(self, grace: float, table: RunTable) -> None:
        self._grace, self.signals, self._table = grace, 0, table
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_resort = LastResort()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the last one tells of the supervisor's death
            signal.signal(number, self._heed)

    def attach(self, worker: Worker) -> None:
        """Called on the worker's loop; a signal may have come before there was a worker."""
        self._loop, self._worker = asyncio.get_running_loop(), worker
        if self.signals:
            worker.stop()
        if self.signals > 1:
            worker.abort()

    def worked(self, code: int) -> int:
        """The worker has ended; what the program still does at its exit has a few seconds."""
        self._table.end(code)
        self._last_resort.after(_AFTER_WORK, code)
        return code

    def _heed(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # the supervisor is gone: kernel and pipe both say so
            if self.signals:
                return
            self.signals = 1  # and there is nobody left who would watch this process: end at once
        self.signals += 1
        if self.signals > 2:  # noqa: PLR2004 - the third
            end_process(Exit.INTERRUPTED)
        if self.signals == 1:
            grace = self._grace if self._worker is not None else 0.0
            self._last_resort.after(grace + AFTER_GRACE, FINISHED)
            log.info("stopping: running tasks have %g s to finish; again to hand them back at once", self._grace)
        else:
            self._last_resort.after(_AFTER_ABORT, Exit.INTERRUPTED)
        if self._worker is None:  # the program is being imported, or the store opened: nothing is held
            raise SystemExit(FINISHED if self.signals == 1 else Exit.INTERRUPTED)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._worker.stop if self.signals == 1 else self._worker.abort)
