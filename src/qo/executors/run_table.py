"""The runs of a worker, and a copy of them in memory that the process shares with its supervisor."""

import mmap
import os
import struct
import tempfile
import threading
from collections import Counter
from enum import IntEnum

from msgspec import Struct

from qo.executors.run import Run
from qo.hooks import Hooks, is_reachable
from qo.model import Task, group_key
from qo.tasks import Executor

_BEAT = struct.Struct("<dd")  # the last heartbeat, and when the worker's event loop last ran before it
_NUMBER = struct.Struct("<I")
_BEAT_AT, _PHASE_AT, _CODE_AT, _LENGTH_AT = 0, 16, 20, 24
_URL_AT, _URL_LIMIT = 64, 4096 - 64
_COUNT = struct.Struct("<Q")
_COUNT_AT, _LEASES_AT = 4096, 4096 + 64
_MAX_LEASES, _LEASE_SIZE = 1024, 32  # lease ids kept, newest last, and the bytes of one
_RUNS_AT = _LEASES_AT + _MAX_LEASES * _LEASE_SIZE
_RUN = struct.Struct("<BBBxIddd36s32s")  # state, executor, reachable, thread, start, deadline, timeout, id, lease
_MAX_RUNS, _RUN_SIZE = 4096, 128  # entries, and the bytes of one
SIZE = _RUNS_AT + _MAX_RUNS * _RUN_SIZE
_FREE, _RUNNING, _ABANDONED = range(3)  # states of an entry
_KINDS = list(Executor)


class Phase(IntEnum):
    STARTING = 0  # the program is being imported
    WORKING = 1
    ENDED = 2  # only atexit functions of the program are left to run


class RunEntry(Struct, frozen=True, kw_only=True):
    """A run that has started and is not settled, or whose handler was abandoned."""

    task_id: str
    lease_id: str
    executor: Executor
    reachable: bool  # a child process could run it
    thread: int  # the native id of the thread that runs it
    started_at: float  # by the boot clock, like the others
    ends_at: float
    time_limit: float
    abandoned: bool = False  # settled because it exceeded its timeout and did not stop; its handler may still run


class RunTable:
    """The started runs, in memory shared with the supervisor.

    The supervisor can read it at any time, also after the process has died. A pipe would not do: a handler could close
    it, and the last writes could be lost. An entry is written when a run starts and cleared when the run is settled.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.hooks = Hooks()  # of the worker's app
        self._free = list(range(_MAX_RUNS - 1, -1, -1))
        self._lock = threading.Lock()

    @classmethod
    def create(cls) -> tuple["RunTable", int]:
        """A new table, and the file descriptor by which a child process attaches to it."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("qo-runs")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, SIZE)
        return cls(mmap.mmap(descriptor, SIZE)), descriptor

    @classmethod
    def attach(cls, descriptor: int) -> "RunTable":
        memory = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)
        return cls(memory)

    # --- in the worker process

    def set_url(self, url: str) -> None:
        """Record the URL of the worker's store."""
        data = url.encode()
        if len(data) <= _URL_LIMIT:
            self._memory[_URL_AT : _URL_AT + len(data)] = data
            _NUMBER.pack_into(self._memory, _LENGTH_AT, len(data))

    def begin(self, now: float) -> None:
        """Record that the worker has started. From now on the supervisor checks its heartbeat."""
        self.beat(now, now)
        _NUMBER.pack_into(self._memory, _PHASE_AT, Phase.WORKING)

    def beat(self, now: float, loop_at: float) -> None:
        _BEAT.pack_into(self._memory, _BEAT_AT, now, loop_at)

    def end(self, code: int) -> None:
        _NUMBER.pack_into(self._memory, _CODE_AT, code)
        _NUMBER.pack_into(self._memory, _PHASE_AT, Phase.ENDED)

    def claim(self, lease_id: str) -> None:
        """Record a lease id. Called before the claim, so that its tasks can be found if the process dies."""
        (count,) = _COUNT.unpack_from(self._memory, _COUNT_AT)
        at = _LEASES_AT + count % _MAX_LEASES * _LEASE_SIZE
        self._memory[at : at + _LEASE_SIZE] = lease_id.encode()[:_LEASE_SIZE].ljust(_LEASE_SIZE, b"\0")
        _COUNT.pack_into(self._memory, _COUNT_AT, count + 1)

    def start(self, run: Run, now: float) -> None:
        """Record a run. Called in the thread that runs the handler or talks to its child process.

        A full table records nothing; those runs are found by their leases.
        """
        with self._lock:
            if run.settled or not self._free:
                return
            slot = run.slot = self._free.pop()
        task, time_limit = run.task, run.time_limit
        _RUN.pack_into(
            self._memory,
            _RUNS_AT + slot * _RUN_SIZE,
            _RUNNING,
            _KINDS.index(run.executor.kind),
            self.hooks.are_reachable and is_reachable(run.handler.function),
            threading.get_native_id(),
            now,
            now + time_limit,
            time_limit,
            task.id.encode()[:36],
            (task.lease_id or "").encode()[:_LEASE_SIZE],
        )

    def clear(self, run: Run) -> None:
        """Remove a settled run. An abandoned one stays until its handler ends, because it may crash the process."""
        with self._lock:
            if run.slot is not None and run.abandoned:
                self._memory[_RUNS_AT + run.slot * _RUN_SIZE] = _ABANDONED
            else:
                self._release(run)

    def abandoned_ended(self, run: Run) -> None:
        """Remove an abandoned run whose handler has ended."""
        with self._lock:
            self._release(run)

    def _release(self, run: Run) -> None:
        slot, run.slot = run.slot, None
        if slot is not None:
            self._memory[_RUNS_AT + slot * _RUN_SIZE] = _FREE
            self._free.append(slot)

    # --- in the supervisor

    @property
    def beats(self) -> tuple[float, float]:
        """The last heartbeat, and when the worker's event loop last ran before it."""
        beat_at, loop_at = _BEAT.unpack_from(self._memory, _BEAT_AT)
        return beat_at, loop_at

    @property
    def phase(self) -> Phase:
        return Phase(self._number(_PHASE_AT))

    @property
    def exit_code(self) -> int:
        """The exit code the process has announced; valid once its phase is ENDED."""
        return self._number(_CODE_AT)

    @property
    def url(self) -> str:
        return self._memory[_URL_AT : _URL_AT + self._number(_LENGTH_AT)].decode()

    def _number(self, at: int) -> int:
        number: int = _NUMBER.unpack_from(self._memory, at)[0]
        return number

    def leases(self) -> set[str]:
        (count,) = _COUNT.unpack_from(self._memory, _COUNT_AT)
        starts = (_LEASES_AT + number * _LEASE_SIZE for number in range(min(count, _MAX_LEASES)))
        recent = {_text(self._memory[at : at + _LEASE_SIZE]) for at in starts}
        return recent | {run.lease_id for run in self.runs()}

    def runs(self) -> list[RunEntry]:
        found = []
        for at in range(_RUNS_AT, SIZE, _RUN_SIZE):
            if self._memory[at]:
                state, kind, reachable, thread, start, end, limit, task_id, lease_id = _RUN.unpack_from(
                    self._memory, at
                )
                found.append(
                    RunEntry(
                        task_id=_text(task_id),
                        lease_id=_text(lease_id),
                        executor=_KINDS[kind],
                        reachable=bool(reachable),
                        thread=thread,
                        started_at=start,
                        ends_at=end,
                        time_limit=limit,
                        abandoned=state == _ABANDONED,
                    )
                )
        return found

    def close(self) -> None:
        self._memory.close()


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


class LeasedRuns:
    """The runs of a worker, from the claim until the outcome is stored and the handler has ended.

    Holds at most one run of a task, because two would renew, settle and remove each other.
    """

    def __init__(self, table: RunTable | None = None) -> None:
        self._table = table
        self._runs: dict[str, Run] = {}
        self.by_type: Counter[str] = Counter()
        self.by_group: Counter[str] = Counter()  # by `group_key`; only groups with runs

    def claim(self, lease_id: str) -> None:
        """Record the lease of a claim that is about to be sent, so that its tasks are found if the process dies."""
        if self._table is not None:
            self._table.claim(lease_id)

    def add(self, run: Run) -> None:
        if (before := self._runs.get(run.task.id)) is not None:
            self.remove(before)
        self._runs[run.task.id] = run
        self.by_type[run.task.type] += 1
        if run.task.stored_needs and (key := _group_key(run.task)):
            self.by_group[key] += 1

    def get(self, task_id: str) -> Run | None:
        return self._runs.get(task_id)

    def remove(self, run: Run) -> None:
        if self._runs.get(run.task.id) is run:
            del self._runs[run.task.id]
            self.by_type[run.task.type] -= 1
            if run.task.stored_needs and (key := _group_key(run.task)):
                self.by_group[key] -= 1
                if not self.by_group[key]:
                    del self.by_group[key]
        if self._table is not None:
            self._table.clear(run)

    def runs(self) -> list[Run]:
        return list(self._runs.values())

    def leased(self) -> list[Run]:
        """The runs whose leases this worker renews."""
        return [run for run in self._runs.values() if not run.settled]

    def __len__(self) -> int:
        return len(self._runs)


def _group_key(task: Task) -> str | None:
    return None if task.group is None else group_key(task.type, task.group)
