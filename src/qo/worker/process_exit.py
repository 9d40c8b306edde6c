"""How a worker process ends: its exit codes, and the threads that end the process.

The supervisor imports this module, so it imports no worker.
"""

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from qo.clock import Clock, boot_clock
from qo.executors.exit_guard import end_process

if TYPE_CHECKING:
    from qo.executors.run_table import RunTable
    from qo.worker.worker import Worker

log = logging.getLogger("qo.worker")
PIPE = "QO_SUPERVISOR_PIPE"  # environment variable with the descriptor of the child's end of the pipe
KILL_DELAY = 7.0  # seconds after the grace period; a child whose interpreter is not blocked exits earlier
_PR_SET_PDEATHSIG = 1
_HEARTBEAT_INTERVAL = 0.25  # seconds

# Exit codes, which report the reason to the supervisor.
FINISHED = 99  # drained or stopped; not 0, because a handler could call `os._exit(0)`
DRAINED = 98  # drained on request: the supervisor starts no replacement
BROKEN = 97  # a handler closed the process's file descriptors
CANCELLED = 96  # a handler cancelled the worker's own work
REFUSED = 94  # the store rejects this process: wrong credentials, no permission, no such bucket
OUTDATED = 95  # a newer version of qo has upgraded the store, which refuses this version from now on
INTERRUPTED = 130  # a second signal
INVALID = 2  # a target or option is wrong, so a restart would not help
EXIT_STUCK = 6  # the worker's event loop is blocked
EXIT_STORAGE = 5  # the store cannot be used


def is_supervised() -> bool:
    return PIPE in os.environ


def follow_parent(grace: float) -> None:
    """Stop this child when the supervisor dies: as on SIGHUP, and by force after the grace period. Call it early.

    It uses SIGHUP because kernel and pipe both report the death, and repeated SIGTERMs escalate to a forced end.
    """
    pipe = int(os.environ.pop(PIPE))  # subprocesses of handlers must not inherit it
    os.set_inheritable(pipe, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)

    def watch() -> None:
        os.read(pipe, 1)  # returns when the only writer, the supervisor, is gone
        os.kill(os.getpid(), signal.SIGHUP)
        threading.Event().wait(grace + KILL_DELAY)
        os._exit(1)

    threading.Thread(target=watch, name="qo-parent", daemon=True).start()


class WorkerHeartbeat:
    """Records in the run table when this thread and the worker's event loop last ran."""

    def __init__(self, worker: "Worker", table: "RunTable", *, clock: Clock = boot_clock) -> None:
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

    def __init__(self, worker: "Worker", *, after: float, clock: Clock = boot_clock) -> None:
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
