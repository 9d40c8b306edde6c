"""Worker processes under one parent, which starts, watches, restarts, stops and, if it must, kills them.

The parent runs no task, imports nothing of the program and opens no store, so nothing a handler does can hurt it. When
a child died, the store is told at once what becomes of its tasks (`worker_process.py`). A child learns from a pipe that
its parent is gone, and on Linux from the kernel too, and hands its tasks back then.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from msgspec import Struct

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.worker.exit_codes import (
    BROKEN,
    CANCELLED,
    DISMISSED,
    EXIT_STORAGE,
    EXIT_STUCK,
    FINISHED,
    HOPELESS,
    INTERRUPTED,
    OUTDATED,
)
from qo.worker.worker_process import WorkerProcess, send

log = logging.getLogger("qo.fleet")

PIPE = "QO_FLEET_PIPE"  # the variable that names the child's end of the pipe
KILLED_AFTER = 5.0  # seconds beyond the grace period
_ABORTED_AFTER = 3.0  # seconds after the second signal
_NOT_ANSWERING = 1.0  # seconds of silence after which the second signal kills at once
_LAST_REPORT = 3.0  # seconds the store has for reports once all children have ended

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds between a death and the next start
_HEALTHY = 10.0  # seconds a child must live for its death to be a first one again
_ORDERLY = (0, FINISHED, DISMISSED, -signal.SIGTERM)  # the last: told to stop before it had begun to listen
_PR_SET_PDEATHSIG = 1
_OURS = ("QO_PROCESSES", "QO_RELOAD", "QO_WORKER_ID")  # settings of the parent that a child must not inherit


class FleetSettings(Struct, frozen=True, kw_only=True):
    size: int
    id: str
    grace: float
    lease: float
    drain: bool = False

    def names(self) -> list[str]:
        """A lone child has the fleet's own name."""
        return [self.id] if self.size == 1 else [f"{self.id}-{number}" for number in range(1, self.size + 1)]


class Fleet:
    """`command(id)` is the command line of the child with that id; a file from `changes` asks for new children."""

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        settings: FleetSettings,
        *,
        changes: Callable[[], AsyncIterator[str]] | None = None,
    ) -> None:
        self._command, self._settings, self._changes = command, settings, changes
        self._children: dict[str, WorkerProcess] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._outdated = asyncio.Event()  # set when the code changed; who starts afterwards gets a new one
        self._stops = 0
        self._read_end, self._write_end = os.pipe()

    async def run(self) -> int:
        """Until every child ended as it should; the fleet's exit code."""
        watching = asyncio.create_task(self._watch())
        try:
            with self._heeding_signals():
                codes = await asyncio.gather(*(self._keep(name) for name in self._settings.names()))
                if self._reports:
                    await asyncio.wait(self._reports, timeout=_LAST_REPORT if self._stops else None)
        finally:
            watching.cancel()
            os.close(self._write_end)
            os.close(self._read_end)
        return max(codes) if self._stops <= 1 else 128 + signal.SIGINT

    @contextlib.contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        heeded = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            heeded.append(signal.SIGHUP)
        for number in heeded:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """First: let children finish. Again: they hand their tasks back at once. A third time: they are killed."""
        self._stops += 1
        self._stopping.set()
        if self._stops == 1:
            self._end_children(self._settings.grace + KILLED_AFTER)
        else:
            answering = self._stops == 2  # noqa: PLR2004 - the second
            silent = [child for child in self._children.values() if child.silence() > _NOT_ANSWERING or not answering]
            _kill(silent)
            self._end_children(_ABORTED_AFTER)

    def _end_children(self, killed_after: float) -> None:
        children = list(self._children.values())
        _tell(children, signal.SIGTERM)
        asyncio.get_running_loop().call_later(killed_after, _kill, children)

    # --- one child

    async def _keep(self, name: str) -> int:
        """Start a child, and another in its place whenever it ends without having been told to."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self._stopping.is_set():
            outdated, started = self._outdated, boot_clock()
            code, has_worked = await self._live(name)
            drained = code == DISMISSED or (self._settings.drain and code == FINISHED and not outdated.is_set())
            if self._stopping.is_set() or drained:
                return 0 if code in _ORDERLY else _shell_code(code)
            if code == HOPELESS and self._changes is None:
                self.stop()
                return HOPELESS
            if code == OUTDATED or self._is_refused(code, has_worked=has_worked):
                self.stop()
                return _shell_code(code)
            # A child that died of a task is replaced at once: the pause is for those that cannot even start.
            if outdated.is_set() or has_worked or boot_clock() - started > _HEALTHY:
                backoff.reset()
            if not outdated.is_set():
                await self._after_death(name, code, backoff.next(), outdated)
        return 0

    def _is_refused(self, code: int, *, has_worked: bool) -> bool:
        """A lone child that said why it cannot start is not started again, as if there were no supervisor."""
        return self._settings.size == 1 and self._changes is None and not has_worked and 0 < code < FINISHED

    async def _live(self, name: str) -> tuple[int, bool]:
        """The exit code of one child, and whether it ever took tasks."""
        environment = {key: value for key, value in os.environ.items() if key not in _OURS}
        child = await WorkerProcess.start(
            name,
            self._command(name),
            environment=environment | {PIPE: str(self._read_end)},
            keep=self._read_end,
            lease=self._settings.lease,
        )
        self._children[name] = child
        if self._stopping.is_set():  # told while it was being started
            _tell([child], signal.SIGTERM)
        try:
            code = await child.wait()
            self._report(child, code)
            return code, child.has_worked
        finally:
            del self._children[name]
            child.close()

    def _report(self, child: WorkerProcess, code: int) -> None:
        """Tell the store what became of the tasks of a child that did not end as it should."""
        if code in (FINISHED, DISMISSED, INTERRUPTED, HOPELESS, OUTDATED):
            return
        patience = _LAST_REPORT if self._stopping.is_set() else max(_LAST_REPORT, self._settings.lease)
        blameless = (EXIT_STUCK, -signal.SIGTERM)
        report = child.crash(code, blameless=blameless, patience=patience)
        if report is not None:
            reporting = asyncio.create_task(send(report))
            self._reports.add(reporting)
            reporting.add_done_callback(self._reports.discard)

    async def _after_death(self, name: str, code: int, pause: float, outdated: asyncio.Event) -> None:
        """Wait before the next start; a broken target is only worth a try once its files changed."""
        if code == HOPELESS:
            log.error("worker %s cannot start; it is tried again when a file changes", name)
            await _either(self._stopping, outdated, None)
            return
        about = {"worker_id": name, "exit_code": code}
        log.warning("worker %s %s; another starts in %.1f s", name, _ending(code), pause, extra=about)
        await _either(self._stopping, outdated, pause)

    # --- reload

    async def _watch(self) -> None:
        if self._changes is None:
            return
        async for path in self._changes():
            log.info("%s changed; workers are restarted", path)
            outdated, self._outdated = self._outdated, asyncio.Event()
            outdated.set()
            self._end_children(self._settings.grace + KILLED_AFTER)


def _tell(children: list[WorkerProcess], number: signal.Signals) -> None:
    for child in children:
        child.tell(number)


def _kill(children: list[WorkerProcess]) -> None:
    for child in children:
        child.kill()


async def _either(one: asyncio.Event, other: asyncio.Event, timeout: float | None) -> None:
    waits = [asyncio.ensure_future(one.wait()), asyncio.ensure_future(other.wait())]
    await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "was stopped" if code == FINISHED else f"exited with code {code}"


def _shell_code(code: int) -> int:
    if code in (BROKEN, CANCELLED):
        return EXIT_STUCK
    if code == OUTDATED:
        return EXIT_STORAGE
    return 128 - code if code < 0 else code


# --- in the child


def in_fleet() -> bool:
    return PIPE in os.environ


def follow_parent(grace: float) -> None:
    """Called early in a child: when the parent is gone, end at once as on SIGHUP, and in the end by force.

    SIGHUP, not SIGTERM: a third SIGTERM means "by force", and here kernel and pipe both report one death.
    """
    pipe = int(os.environ.pop(PIPE))  # not for the handlers' own subprocesses
    os.set_inheritable(pipe, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)

    def watch() -> None:
        os.read(pipe, 1)  # returns when the last writer, our parent, is gone
        os.kill(os.getpid(), signal.SIGHUP)
        threading.Event().wait(grace + KILLED_AFTER)
        os._exit(1)

    threading.Thread(target=watch, name="qo-parent", daemon=True).start()
