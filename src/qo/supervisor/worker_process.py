"""The supervisor's side of one worker process: start, watch, kill if it hangs, settle its tasks if it died.

The supervisor runs no handler and does not import the program, so no handler can affect it.
"""

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from qo.clock import Clock, boot_clock
from qo.executors.run_table import Phase, RunEntry, RunTable
from qo.supervisor.crash import CrashReport, suspects_of
from qo.tasks import Executor
from qo.worker.process_exit import BROKEN, CANCELLED

log = logging.getLogger("qo.supervisor")
RUNS = "QO_SUPERVISOR_RUNS"  # environment variable with the descriptor of the shared run table

# In seconds, unless stated otherwise.
_CHECK_INTERVAL = 0.25
_MAX_CHECK_GAP = 1.0  # a longer gap between checks means that the supervisor was stopped or the machine slept
_MAX_SILENCE, _MAX_SILENCE_LEASES = 10.0, 1 / 3  # a silent process is killed after the longer; the second in leases
_MAX_OVERDUE_SILENCE, _MAX_OVERDUE = 4.0, 3.0  # or after the first, if a run exceeds its timeout by the second
_SAMPLE_DELAY = 1.0  # of silence before the CPU time of the threads is read
_MIN_HOLDER_CPU = 0.3  # part of a CPU that a thread must have used to count as the holder of the GIL
_EXIT_TIMEOUT = 8.0  # for the process to exit once its worker has ended


class WorkerProcess:
    def __init__(self, name: str, process: Process, table: RunTable, *, lease: float, clock: Clock) -> None:
        self.name, self.process, self._table = name, process, table
        self._max_silence = max(_MAX_SILENCE, lease * _MAX_SILENCE_LEASES)
        self._lease, self._clock = lease, clock
        self._handle = _handle_of(process)
        self._kill_reason: tuple[str, int | None] | None = None  # why it was killed, and the thread that held the GIL
        self._samples: tuple[float, dict[int, int]] | None = None
        self._resumed_at = self._checked_at = clock()
        self._ended_at: float | None = None
        self._is_shut_down = False  # killed because the supervisor shuts down
        self._was_stopped = False  # it was stopped by SIGSTOP when it was killed

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
        """Start the process. It inherits the descriptor `keep`."""
        table, descriptor = RunTable.create()
        try:
            # In a new session, so that Ctrl-C reaches only the supervisor, which forwards it once.
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
        """Whether the process got as far as claiming tasks."""
        return self._table.phase is not Phase.STARTING

    def silence(self) -> float:
        """Seconds since the last heartbeat of the interpreter and of the worker's event loop, the older of both."""
        if self._table.phase is not Phase.WORKING:
            return 0.0
        return self._clock() - max(min(self._table.beats), self._resumed_at)

    def kill(self) -> None:
        """Kill the process because its time to exit is over or the user requested it.

        No handler counts as the cause.
        """
        if self.process.returncode is None and self._kill_reason is None:
            self._is_shut_down = True
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif self.process.returncode is None:
                self.process.send_signal(number)

    async def wait(self) -> int:
        """Watch the process until it ends. Returns its exit code."""
        watching = asyncio.create_task(self._watch())
        try:
            code = await self.process.wait()
        finally:
            watching.cancel()
        return self._table.exit_code if code < 0 and self._table.phase is Phase.ENDED else code

    # --- watch

    async def _watch(self) -> None:
        while not self.check():  # noqa: ASYNC110 - it polls another process
            await asyncio.sleep(_CHECK_INTERVAL)

    def check(self) -> bool:
        """Kill the process if it does not respond. Returns True if it was killed."""
        if self._kill_reason is not None:
            return True
        now = self._clock()
        if now - self._checked_at > _MAX_CHECK_GAP:
            self._resumed_at = now  # the process was probably stopped too, so its silence is counted from now
        self._checked_at = now
        if self._table.phase is Phase.ENDED:
            self._ended_at = self._ended_at or now
            if now - max(self._ended_at, self._resumed_at) <= _EXIT_TIMEOUT:
                return False
            log.warning("worker %s has ended but its process does not exit; killing it", self.name)
        elif reason := self._reason_to_kill(now):
            self._kill_reason = reason, self._busiest_thread(now)
            self._was_stopped = state_of(self.process.pid) == "T"
            log.error("worker %s %s; killing and restarting it", self.name, reason)
        else:
            return False
        self.send_signal(signal.SIGKILL)
        return True

    def _reason_to_kill(self, now: float) -> str | None:
        silence = self.silence()
        if silence < _SAMPLE_DELAY:
            self._samples = None
            return None
        if self._samples is None:
            self._samples = now, _cpu_times(self.process.pid)
        overdue = silence > _MAX_OVERDUE_SILENCE and any(now > run.ends_at + _MAX_OVERDUE for run in self._inside())
        if not overdue and silence <= self._max_silence:
            return None
        if state_of(self.process.pid) == "t":  # stopped by a debugger
            return None
        return f"did not respond for {silence:.1f} s"

    def _inside(self) -> list[RunEntry]:
        return [run for run in self._table.runs() if run.executor is not Executor.PROCESS and not run.abandoned]

    def _busiest_thread(self, now: float) -> int | None:
        """The thread that probably held the GIL, by the CPU time of the threads; None if unknown."""
        if self._samples is None:
            return None
        since, before = self._samples
        used = {thread: ticks - before.get(thread, ticks) for thread, ticks in _cpu_times(self.process.pid).items()}
        busiest = max(used, key=lambda thread: used[thread], default=None)
        if busiest is None or used[busiest] < _MIN_HOLDER_CPU * (now - since) * os.sysconf("SC_CLK_TCK"):
            return None
        return busiest

    # --- report

    def crash_report(self, code: int, *, blameless: Sequence[int], timeout: float) -> CrashReport | None:
        """The report from which the tasks of this process are settled; None if it has claimed none.

        After an exit code in `blameless` no handler counts as the cause.
        """
        if not self._table.url:
            return None
        now, runs = self._clock(), self._table.runs()
        reason, holder = self._kill_reason or (_cause(code), None)
        suspects = [] if code in blameless or self._is_shut_down else suspects_of(runs, holder)
        killed = " and was killed" if self._kill_reason else ""
        return CrashReport(
            url=self._table.url,
            worker_id=self.name,
            leases=sorted(self._table.leases()),
            cause=f"{reason}{killed}",
            suspects=list(dict.fromkeys(run.task_id for run in suspects)),
            is_uncertain=self._was_stopped,
            unreachable=[run.task_id for run in suspects if not run.reachable],
            timed_out={run.task_id: run.time_limit for run in suspects if self._kill_reason and now > run.ends_at},
            timeout=timeout,
        )

    def close(self) -> None:
        self._table.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def attach_table() -> RunTable:
    """The run table that the supervisor reads. Called in the worker process."""
    return RunTable.attach(int(os.environ.pop(RUNS)))


def _handle_of(process: Process) -> int | None:
    """A pidfd of the process; None where the system has none.

    Signals are sent through it, because `Process.send_signal` may reap a process that has just died. Then asyncio,
    which waits for it in a thread, may never get its exit code.
    """
    try:
        return os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def _cause(code: int) -> str:
    if code == BROKEN:
        return "ended because a handler closed its file descriptors"
    if code == CANCELLED:
        return "ended because a handler cancelled the worker's background tasks"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _cpu_times(pid: int) -> dict[int, int]:
    """CPU time of each thread in clock ticks; empty where there is no /proc."""
    used = {}
    with contextlib.suppress(OSError):
        for folder in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                used[int(folder.name)] = int(fields[11]) + int(fields[12])
    return used


def state_of(pid: int) -> str:
    """The kernel's letter for the state of the process; empty where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
