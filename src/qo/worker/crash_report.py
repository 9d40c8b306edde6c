"""What the supervisor knows about a worker process that died: the tasks it held, and which of them may be the cause.

The supervisor imports this module. `crash.py`, which opens the store, runs in a separate process.
"""

from collections.abc import Iterable

from msgspec import Struct

from qo.tasks import Executor
from qo.worker.run_table import RunEntry


class CrashReport(Struct, frozen=True, kw_only=True):
    url: str
    worker_id: str
    leases: list[str]  # ids of the leases the dead process claimed
    cause: str  # as the end of a sentence: "was killed by SIGSEGV"
    suspects: list[str]  # tasks one of which caused the death, including settled ones whose handlers still ran
    is_uncertain: bool = False  # possibly none of the suspects is the cause
    unreachable: list[str] = []  # suspects that no child process can run
    timed_out: dict[str, float] = {}  # suspects that exceeded their time limit, and that limit
    timeout: float = 60.0  # seconds for the store to answer


class CrashSettlement(Struct, frozen=True, kw_only=True):
    """How many tasks were charged with the failure, set apart to run alone, and released."""

    charged: int = 0
    set_apart: int = 0
    released: int = 0


def suspects_of(runs: Iterable[RunEntry], holder: int | None) -> list[RunEntry]:
    """The runs one of which caused the death. `holder` is the thread that held the GIL, if known.

    A handler in a child process can hardly kill the worker, so it is a suspect only if there is no other.
    """
    runs = list(runs)
    inside = [run for run in runs if run.executor is not Executor.PROCESS]
    holding = [run for run in inside if run.thread == holder]
    return holding or inside or runs
