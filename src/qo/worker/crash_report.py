"""What the supervisor knows of a worker process that died: which tasks it held, and which of them are to blame.

The supervisor imports this module. `crash.py`, which opens the store, runs in a process of its own.
"""

from collections.abc import Iterable

from msgspec import Struct

from qo.tasks import Executor
from qo.worker.run_table import RunEntry


class CrashReport(Struct, frozen=True, kw_only=True):
    url: str
    worker_id: str
    leases: list[str]  # what the dead process claimed
    cause: str  # as the end of a sentence: "was killed by SIGSEGV"
    suspects: list[str]  # tasks one of which is to blame; also those that were settled and whose handlers still ran
    is_uncertain: bool = False  # perhaps none of them is to blame
    unreachable: list[str] = []  # those of them that no child process could run
    timed_out: dict[str, float] = {}  # suspects that were past their time limit, and that limit
    patience: float = 60.0  # seconds the store has to answer


class Told(Struct, frozen=True, kw_only=True):
    """What the store was told: how many tasks."""

    charged: int = 0
    set_apart: int = 0
    released: int = 0


def suspects_of(runs: Iterable[RunEntry], holder: int | None) -> list[RunEntry]:
    """The runs one of which is to blame. `holder` is the thread that held the interpreter, if that is known.

    A handler in a child process of the worker can hurt the worker only on purpose: it is a suspect if nothing else is.
    """
    runs = list(runs)
    inside = [run for run in runs if run.executor is not Executor.PROCESS]
    holding = [run for run in inside if run.thread == holder]
    return holding or inside or runs
