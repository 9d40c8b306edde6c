"""A supervisor of worker processes: it starts, watches, restarts and stops them, and kills those that do not respond.

The supervisor runs no task, does not import the program and opens no store, so no handler can affect it. When a child
dies, its tasks are settled immediately (`worker_process.py`). When the supervisor dies, its children are notified by a
pipe and, on Linux, by the kernel; they release their tasks and exit.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.supervisor.crash import send
from qo.supervisor.worker_process import WorkerProcess
from qo.worker.process_exit import (
    BROKEN,
    CANCELLED,
    DRAINED,
    EXIT_STORAGE,
    EXIT_STUCK,
    FINISHED,
    INTERRUPTED,
    INVALID,
    KILL_DELAY,
    OUTDATED,
    PIPE,
    REFUSED,
)
from qo.worker.waits import first

log = logging.getLogger("qo.supervisor")

_ABORT_KILL_DELAY = 3.0  # seconds after the second signal
_MAX_SILENCE = 1.0  # seconds without a heartbeat; the second signal kills a child that is silent for longer
_LAST_REPORT_TIMEOUT = 3.0  # seconds for crash reports once all children have ended

_MIN_RESTART_PAUSE, _MAX_RESTART_PAUSE = 0.2, 30.0  # seconds between a child's end and the next start
_HEALTHY_UPTIME = 10.0  # seconds after which the back-off of a child starts anew
_CLEAN_EXIT_CODES = (0, FINISHED, DRAINED, -signal.SIGTERM)  # SIGTERM: stopped before its handler was installed
_POLL_INTERVAL = 0.5  # seconds between two scans for changed files
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})
_PARENT_VARIABLES = ("QO_PROCESSES", "QO_RELOAD", "QO_WORKER_ID")  # settings that children must not inherit


class SupervisorSettings(Struct, frozen=True, kw_only=True):
    size: int
    id: str
    grace: float
    lease: float
    drain: bool = False

    def names(self) -> list[str]:
        """The ids of the children. A single child has the supervisor's own id."""
        return [self.id] if self.size == 1 else [f"{self.id}-{number}" for number in range(1, self.size + 1)]


class Supervisor:
    """`command(id)` is the command line of the child with that id. Each file from `changes` restarts the children."""

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        settings: SupervisorSettings,
        *,
        changes: Callable[[], AsyncIterator[str]] | None = None,
    ) -> None:
        self._command, self._settings, self._changes = command, settings, changes
        self._children: dict[str, WorkerProcess] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._outdated = asyncio.Event()  # set when the code changed; children started after that get a new event
        self._stops = 0
        self._has_worked = False  # whether any child got as far as claiming tasks
        self._read_end, self._write_end = os.pipe()

    async def run(self) -> int:
        """Supervise until every child has ended and none is to be replaced. Returns the exit code."""
        watching = asyncio.create_task(self._watch())
        try:
            with self._handling_signals():
                codes = await asyncio.gather(*(self._supervise(name) for name in self._settings.names()))
                if self._reports:
                    await asyncio.wait(self._reports, timeout=_LAST_REPORT_TIMEOUT if self._stops else None)
        finally:
            watching.cancel()
            os.close(self._write_end)
            os.close(self._read_end)
        return max(codes) if self._stops <= 1 else 128 + signal.SIGINT

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            handled.append(signal.SIGHUP)
        for number in handled:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """The first call lets children finish, the second makes them hand their tasks back, the third kills them."""
        self._stops += 1
        self._stopping.set()
        if self._stops == 1:
            self._end_children(self._settings.grace + KILL_DELAY)
        else:
            kills_all = self._stops > 2  # noqa: PLR2004 - the third call
            _kill([child for child in self._children.values() if kills_all or child.silence() > _MAX_SILENCE])
            self._end_children(_ABORT_KILL_DELAY)

    def _end_children(self, kill_delay: float) -> None:
        children = list(self._children.values())
        _send_signal(children, signal.SIGTERM)
        asyncio.get_running_loop().call_later(kill_delay, _kill, children)

    # --- one child

    async def _supervise(self, name: str) -> int:
        """Start a child, and a replacement whenever it ends without having been asked to. Returns the exit code."""
        backoff = Backoff(_MIN_RESTART_PAUSE, _MAX_RESTART_PAUSE)
        while not self._stopping.is_set():
            outdated, started = self._outdated, boot_clock()
            code, has_worked = await self._run_child(name)
            drained = code == DRAINED or (self._settings.drain and code == FINISHED and not outdated.is_set())
            if self._stopping.is_set() or drained:
                return 0 if code in _CLEAN_EXIT_CODES else _shell_code(code)
            if code == INVALID and self._changes is None:
                self.stop()
                return INVALID
            if code == OUTDATED or self._cannot_start(code, has_worked=has_worked):
                self.stop()
                return _shell_code(code)
            # The back-off is for children that cannot start. A child that died while working is replaced immediately.
            if outdated.is_set() or has_worked or boot_clock() - started > _HEALTHY_UPTIME:
                backoff.reset()
            if not outdated.is_set():
                await self._after_death(name, code, backoff.next(), outdated)
        return 0

    def _cannot_start(self, code: int, *, has_worked: bool) -> bool:
        """Whether the supervisor gives up, with the exit code of a child that has logged why it could not start.

        A single child is not replaced. Several are, because the store may only be away for a while, unless it rejected
        the first ones: a replacement would be rejected as well.
        """
        if self._changes is not None or has_worked or not 0 < code < FINISHED:
            return False
        return self._settings.size == 1 or (code == REFUSED and not self._has_worked)

    async def _run_child(self, name: str) -> tuple[int, bool]:
        """Run one child until it exits. Returns its exit code and whether it got as far as claiming tasks."""
        environment = {key: value for key, value in os.environ.items() if key not in _PARENT_VARIABLES}
        child = await WorkerProcess.start(
            name,
            self._command(name),
            environment=environment | {PIPE: str(self._read_end)},
            keep=self._read_end,
            lease=self._settings.lease,
        )
        self._children[name] = child
        if self._stopping.is_set():  # stopped while the child was being started
            _send_signal([child], signal.SIGTERM)
        try:
            code = await child.wait()
            self._has_worked = self._has_worked or child.has_worked
            self._report(child, code)
            return code, child.has_worked
        finally:
            del self._children[name]
            child.close()

    def _report(self, child: WorkerProcess, code: int) -> None:
        """Settle the tasks of a child that died."""
        if code in (FINISHED, DRAINED, INTERRUPTED, INVALID, OUTDATED) or not child.has_worked:
            return
        timeout = _LAST_REPORT_TIMEOUT if self._stopping.is_set() else max(_LAST_REPORT_TIMEOUT, self._settings.lease)
        blameless = (EXIT_STUCK, -signal.SIGTERM)
        report = child.crash_report(code, blameless=blameless, timeout=timeout)
        if report is not None:
            reporting = asyncio.create_task(send(report))
            self._reports.add(reporting)
            reporting.add_done_callback(self._reports.discard)

    async def _after_death(self, name: str, code: int, pause: float, outdated: asyncio.Event) -> None:
        """Wait before the next start. After a wrong target or option, wait until a file changes."""
        if code == INVALID:
            log.error("worker %s cannot start; retrying when a file changes", name)
            await first([self._stopping.wait(), outdated.wait()])
            return
        about = {"worker_id": name, "exit_code": code}
        log.warning("worker %s %s; restarting it in %.1f s", name, _ending(code), pause, extra=about)
        await first([self._stopping.wait(), outdated.wait()], pause)

    # --- reload

    async def _watch(self) -> None:
        if self._changes is None:
            return
        async for path in self._changes():
            log.info("%s changed; restarting workers", path)
            outdated, self._outdated = self._outdated, asyncio.Event()
            outdated.set()
            self._end_children(self._settings.grace + KILL_DELAY)


def _send_signal(children: list[WorkerProcess], number: signal.Signals) -> None:
    for child in children:
        child.send_signal(number)


def _kill(children: list[WorkerProcess]) -> None:
    for child in children:
        child.kill()


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "was stopped" if code == FINISHED else f"exited with code {code}"


def _shell_code(code: int) -> int:
    if code in (BROKEN, CANCELLED):
        return EXIT_STUCK
    if code in (OUTDATED, REFUSED):
        return EXIT_STORAGE
    return 128 - code if code < 0 else code


# --- changed files

Stamps = dict[str, tuple[int, int]]


async def changes(root: Path, *, interval: float = _POLL_INTERVAL) -> AsyncIterator[str]:
    """Yield the path of one changed, new or removed Python file for each poll of `root` that found any.

    Polling needs no further package.
    """
    before = await asyncio.to_thread(stamps, root)
    while True:
        await asyncio.sleep(interval)
        now = await asyncio.to_thread(stamps, root)
        if now != before:
            different = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
            before = now
            yield different[0].removeprefix(f"{root}{os.sep}")


def stamps(root: Path) -> Stamps:
    """The modification time and size of each file. The size matters because two writes may have the same time."""
    found: Stamps = {}
    for path in _files(root):
        try:
            stat = path.stat()
        except OSError:  # removed after it was listed
            continue
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))
