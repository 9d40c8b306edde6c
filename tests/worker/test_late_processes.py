"""Child processes that take long to start, and tasks that a rate limit allows to start only until then."""

import importlib
from pathlib import Path

import pytest

from qo.engines.memory import MemoryEngine
from qo.executors.process_executor import ProcessExecutor
from qo.executors.run import Run, RunOutcome
from qo.executors.start_queue import StartQueue
from qo.hooks import Hooks, WorkerContext
from qo.tasks import make_handler, make_options
from qo.testing.samples import claim_one, new
from tests.conditions import until

_PROGRAM = """
from pathlib import Path

from qo.executors.child_process import in_child

FOLDER = Path(__file__).parent
if in_child():
    (FOLDER / "imported").touch()


def work() -> None:
    (FOLDER / "ran").touch()
"""


async def test_a_task_does_not_start_if_its_process_is_ready_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_program.py").write_text(_PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("slow_program").work

    def clock() -> float:  # the import takes 100 seconds
        return 100.0 if (tmp_path / "imported").exists() else 0.0

    queue, done = StartQueue(1, clock=clock), list[RunOutcome]()
    executor = ProcessExecutor(
        queue,
        result_limit=lambda: 1000,
        hooks=Hooks(),
        worker=lambda: WorkerContext("w"),
        captures_logs=False,
        tasks_per_process=1,
        clock=clock,
    )
    engine = MemoryEngine()
    await engine.add([new()])
    handler = make_handler(work, type="t", options=make_options(work, executor="process"))
    run = Run(await claim_one(engine), handler, lambda _, outcome: done.append(outcome))
    run.executor, run.start_by = executor, 50.0
    queue.put([run])
    ended = await until(lambda: queue.refused() or done)
    executor.close()
    executor.join(30.0)
    assert ended == [run]
    assert not (tmp_path / "ran").exists()
