"""Handlers report their progress, which is stored with the next renewal."""

from pathlib import Path
from typing import Any

import pytest

import qo
from qo.errors import InvalidSetting
from qo.model import Status
from qo.running_task import ProgressReport, running, running_attempt
from tests.conditions import until
from tests.model import samples
from tests.worker import reporters
from tests.worker.bench import Bench

HANDLERS = {"async": reporters.areport, "thread": reporters.report, "process": reporters.report}


@pytest.mark.parametrize("executor", HANDLERS)
async def test_progress_is_stored_while_the_handler_runs(bench: Bench, executor: Any, tmp_path: Path) -> None:
    bench.handle(HANDLERS[executor], "work", executor=executor)
    seen = tmp_path / "seen"
    task_id = await bench.submit("work", {"path": str(seen)})

    async def progress() -> tuple[float | None, str | None] | None:
        task = await bench.stored(task_id)
        return None if task.progress is None else (task.progress, task.progress_text)

    async with bench.working():
        assert await until(progress) == (0.25, "resizing images")
        seen.touch()
        await until(lambda: bench.client.result(task_id))
    task = await bench.stored(task_id)
    assert (task.status, task.progress) == (Status.COMPLETED, 0.25), "the last stored report is kept"


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None, True])
def test_a_share_outside_0_to_1_is_refused(share: Any) -> None:
    token = running.set(samples.running())
    try:
        with pytest.raises(InvalidSetting, match="a number from 0 to 1"):
            qo.current_task().progress(share)
        with pytest.raises(InvalidSetting, match="the second argument is text"):
            qo.current_task().progress(0.5, 5)  # type: ignore[arg-type]
    finally:
        running.reset(token)


def test_the_last_report_counts() -> None:
    reports: list[ProgressReport] = []

    class Attempt:
        def report_progress(self, report: ProgressReport) -> None:
            reports.append(report)

        def add_log_line(self, line: str) -> None: ...

    tokens = running.set(samples.running()), running_attempt.set(Attempt())
    try:
        qo.current_task().progress(0)
        qo.current_task().progress(0.5, "half")
    finally:
        running.reset(tokens[0])
        running_attempt.reset(tokens[1])
    assert reports == [(0.0, None), (0.5, "half")]


def test_a_test_sees_the_progress_of_a_task() -> None:
    app = qo.App("sqlite:////nowhere/at/all/qo.db")

    @app.task
    def resize() -> None:
        qo.current_task().progress(0.5, "half")
        qo.current_task().progress(0.75, "almost")

    with app.test_mode() as t:
        resize.enqueue()
        (attempt,) = t.drain()
        assert (attempt.task.progress, attempt.task.progress_text) == (0.75, "almost")
