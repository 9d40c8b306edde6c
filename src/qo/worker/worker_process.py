"""One worker process as its supervisor sees it: started, watched, killed if it must be, and reported when it died.

The supervisor runs no handler and imports nothing of the program, so nothing a handler does can stop it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from qo.clock import Clock, boot_clock
from qo.tasks import Executor
from qo.worker.crash_report import CrashReport, Told, suspects_of
from qo.worker.exit_codes import BROKEN, CANCELLED
from qo.worker.run_table import Phase, RunEntry, RunTable

log = logging.getLogger("qo.fleet")
RUNS = "QO_FLEET_RUNS"  # the variable that names the descriptor of the shared table

_TICK = 0.25  # seconds between two looks
_OWN_GAP = 1.0  # a look that comes this late means that the supervisor was stopped, or the machine slept
_SILENCE, _LEASES_LEFT = 10.0, 1 / 3  # a silent process is killed after this, or this part of a lease if that is longer
_OVERDUE_SILENCE, _OVERDUE = 4.0, 3.0  # or after this, if a run is so much past its time limit
_FIRST_SAMPLE = 1.0  # seconds of silence after which the threads' CPU time is read
_BUSY = 0.3  # the thread that held the interpreter used at least this part of a CPU
_EXIT = 8.0  # seconds a process has to exit once its work has ended
_REPORT_MARGIN = 10.0  # seconds beyond its patience after which a report is given up


class WorkerProcess:
    def __init__(self, name: str, process: Process, table: RunTable, *, lease: float, clock: Clock) -> None:
        self.name, self.process, self._table = name, process, table
        self._silence = max(_SILENCE, lease * _LEASES_LEFT)
        self._lease, self._clock = lease, clock
        self._handle = _handle_of(process)
        self._held: tuple[str, int | None] | None = None  # why it was killed, and which thread was to blame
        self._samples: tuple[float, dict[int, int]] | None = None
        self._resumed_at = self._looked_at = clock()
        self._ended_at: float | None = None
        self._is_dismissed = False  # killed because the supervisor itself was told to end it
        self._was_stopped = False  # by SIGSTOP, when it was killed

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        keep: int,
        lease: float,
        clock: Clock = boot_clock,
    ) -> "WorkerProcess":
        """`keep` is a descriptor the process inherits."""
        table, descriptor = RunTable.create()
        try:
            # A session of its own: Ctrl-C in the terminal reaches the supervisor alone, which passes it on once.
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**environment, RUNS: str(descriptor)},
                pass_fds=(keep, descriptor),
                start_new_session=True,
                stdin=DEVNULL,
            )
        finally:
            os.close(descriptor)
        return cls(name, process, table, lease=lease, clock=clock)

    @property
    def has_worked(self) -> bool:
        """It got as far as taking tasks."""
        return self._table.phase is not Phase.STARTING

    def silence(self) -> float:
        """Seconds since the interpreter answered and the worker's loop turned."""
        if self._table.phase is not Phase.WORKING:
            return 0.0
        return self._clock() - max(min(self._table.beats), self._resumed_at)

    def kill(self) -> None:
        """End it by force because its time to end is over, or its user does not wait: no handler is to blame."""
        if self.process.returncode is None and self._held is None:
            self._is_dismissed = True
        self.tell(signal.SIGKILL)

    def tell(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif self.process.returncode is None:
                self.process.send_signal(number)

    async def wait(self) -> int:
        """Watch the process until it ends; its exit code."""
        watching = asyncio.create_task(self._watch())
        try:
            code = await self.process.wait()
        finally:
            watching.cancel()
        return self._table.exit_code if code < 0 and self._table.phase is Phase.ENDED else code

    # --- watch

    async def _watch(self) -> None:
        while not self.look():  # noqa: ASYNC110 - what is looked at is another process
            await asyncio.sleep(_TICK)

    def look(self) -> bool:
        """Kill the process if it does not answer any more. True: it was killed."""
        if self._held is not None:
            return True
        now = self._clock()
        if now - self._looked_at > _OWN_GAP:
            self._resumed_at = now  # the process was probably stopped too: it gets its full time again
        self._looked_at = now
        if self._table.phase is Phase.ENDED:
            self._ended_at = self._ended_at or now
            if now - max(self._ended_at, self._resumed_at) <= _EXIT:
                return False
            log.warning("worker %s has ended its work and does not exit: it is killed", self.name)
        elif reason := self._reason_to_kill(now):
            self._held = reason, self._busiest_thread(now)
            self._was_stopped = state_of(self.process.pid) == "T"
            log.error("worker %s %s: it is killed, and another starts", self.name, reason)
        else:
            return False
        self.tell(signal.SIGKILL)
        return True

    def _reason_to_kill(self, now: float) -> str | None:
        silence = self.silence()
        if silence < _FIRST_SAMPLE:
            self._samples = None
            return None
        if self._samples is None:
            self._samples = now, _cpu_times(self.process.pid)
        overdue = silence > _OVERDUE_SILENCE and any(now > run.ends_at + _OVERDUE for run in self._inside())
        if not overdue and silence <= self._silence:
            return None
        if state_of(self.process.pid) == "t":  # a debugger holds it
            return None
        return f"did not answer for {silence:.1f} s"

    def _inside(self) -> list[RunEntry]:
        return [run for run in self._table.runs() if run.executor is not Executor.PROCESS and not run.left_behind]

    def _busiest_thread(self, now: float) -> int | None:
        """The thread that kept the interpreter to itself, as far as the kernel's accounts tell."""
        if self._samples is None:
            return None
        since, before = self._samples
        used = {thread: ticks - before.get(thread, ticks) for thread, ticks in _cpu_times(self.process.pid).items()}
        busiest = max(used, key=lambda thread: used[thread], default=None)
        if busiest is None or used[busiest] < _BUSY * (now - since) * os.sysconf("SC_CLK_TCK"):
            return None
        return busiest

    # --- report

    def crash(self, code: int, *, blameless: Sequence[int], patience: float) -> CrashReport | None:
        """What the store is to be told of the tasks this process held; None if it never worked.

        After an exit code in `blameless` no handler is to blame.
        """
        if not self._table.url:
            return None
        now, runs = self._clock(), self._table.runs()
        reason, holder = self._held or (_cause(code), None)
        suspects = [] if code in blameless or self._is_dismissed else suspects_of(runs, holder)
        killed = " and was killed" if self._held else ""
        return CrashReport(
            url=self._table.url,
            worker_id=self.name,
            leases=sorted(self._table.leases()),
            cause=f"{reason}{killed}",
            suspects=list(dict.fromkeys(run.task_id for run in suspects)),
            is_uncertain=self._was_stopped,
            unreachable=[run.task_id for run in suspects if not run.reachable],
            timed_out={run.task_id: run.time_limit for run in suspects if self._held and now > run.ends_at},
            patience=patience,
        )

    def close(self) -> None:
        self._table.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


async def send(report: CrashReport) -> None:
    """Have the store told by a process of its own, within the report's patience."""
    # -P: the program's own files are not to be imported.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, *safe, "-m", "qo.worker.crash", stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    try:
        async with asyncio.timeout(report.patience + _REPORT_MARGIN):
            out, complaint = await process.communicate(msgspec.msgpack.encode(report))
    except TimeoutError:
        out, complaint = b"", b"the store has not answered"
    finally:
        if process.returncode is None:
            process.kill()
    about = {"worker_id": report.worker_id}
    if process.returncode == 0:
        told = msgspec.msgpack.decode(out, type=Told)
        for line in complaint.decode(errors="replace").splitlines():  # what became of each task
            log.warning("%s", line, extra=about)
        log.warning(
            "worker %s %s: %d tasks failed with it, %d run alone next time, %d were handed back",
            report.worker_id, report.cause, told.charged, told.set_apart, told.released, extra=about,
        )  # fmt: skip
    else:
        lines = complaint.decode(errors="replace").strip().splitlines() or ["no reason given"]
        log.error(
            "the store could not be told of worker %s: %s; its tasks run again when their leases are over",
            report.worker_id, lines[-1], extra=about,
        )  # fmt: skip


def attach_table() -> RunTable:
    """In the worker process: the table the supervisor reads."""
    return RunTable.attach(int(os.environ.pop(RUNS)))


def _handle_of(process: Process) -> int | None:
    """A descriptor that stands for the process and no other; None where there is no such thing.

    Signals go there because `send_signal` reaps a process that has just died: asyncio, which waits for it in a thread,
    may then never learn its exit code.
    """
    try:
        return os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def _cause(code: int) -> str:
    if code == BROKEN:
        return "lost its open files"
    if code == CANCELLED:
        return "ended because a handler cancelled the worker's own work"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _cpu_times(pid: int) -> dict[int, int]:
    """Clock ticks used by each thread; empty where there is no /proc."""
    used = {}
    with contextlib.suppress(OSError):
        for folder in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                used[int(folder.name)] = int(fields[11]) + int(fields[12])
    return used


def state_of(pid: int) -> str:
    """The kernel's letter for what the process does; empty where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
