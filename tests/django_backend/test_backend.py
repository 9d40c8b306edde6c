"""The backend for the tasks of Django."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django
import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_project.settings")
django.setup()

from django.core.management import call_command  # noqa: E402 - after the set-up
from django.db import transaction  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

import qo  # noqa: E402
from qo.django import QoBackend  # noqa: E402
from qo.django.backend import level_of  # noqa: E402
from qo.django.framework import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, signals  # noqa: E402
from qo.django.worker_app import worker_app  # noqa: E402
from qo.testing.app_tester import AppTester  # noqa: E402
from tests.django_project.shop import tasks  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop() -> Iterator[AppTester]:
    """The app of the default backend in test mode, with its handlers."""
    with worker_app("default").test_mode() as tester:
        yield tester


def test_a_task_runs_and_its_result_can_be_read(shop: AppTester) -> None:
    result = tasks.add.enqueue(2, other=3)
    assert (result.status, result.attempts, result.args, result.kwargs) == ("READY", 0, [2], {"other": 3})
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert tasks.add.get_result(result.id) == result
    shop.drain()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 5, 1)
    assert result.started_at <= result.finished_at
    assert result.worker_ids == ["test"]
    assert tasks.add.get_result(result.id).return_value == 5
    assert tasks.add.get_result(result.id) == result


def test_async_tasks_queues_priorities_and_contexts(shop: AppTester) -> None:
    sent = tasks.send.enqueue("ada")
    tried = tasks.attempt.using(priority=-100).enqueue("ada")
    assert [(task.queue, task.priority) for task in shop.tasks()] == [("mail", 3), ("default", 9)]
    shop.drain()
    assert tasks.send.get_result(sent.id).return_value == "sent to ada"
    assert tasks.attempt.get_result(tried.id).return_value == ["ada", 1, tried.id]


def test_run_after_delays_a_task(shop: AppTester) -> None:
    later = datetime.fromtimestamp(shop.now, UTC) + timedelta(hours=1)
    result = tasks.add.using(run_after=later).enqueue(1)
    assert shop.drain() == []
    shop.advance(3600)
    shop.drain()
    assert tasks.add.get_result(result.id).return_value == 2


def test_errors_of_all_attempts_are_in_the_result(shop: AppTester) -> None:
    result = tasks.fail.enqueue()
    shop.drain()
    result.refresh()
    assert (result.status, len(result.errors)) == (TaskResultStatus.READY, 1), "it is retried"
    shop.drain(advance=True)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)
    assert result.errors[0].exception_class is KeyError
    assert "no such thing" in result.errors[0].traceback and "tasks.py" in result.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_signals_are_sent_once_for_each_step(shop: AppTester) -> None:
    seen: list[tuple[str, str]] = []
    traces: list[str] = []

    def record(name: str) -> Any:
        def receive(task_result: Any, **_: Any) -> None:
            seen.append((name, str(task_result.status)))
            traces[:] = [error.traceback for error in task_result.errors]

        return receive

    receivers = {name: record(name) for name in ("task_enqueued", "task_started", "task_finished")}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver)
    try:
        tasks.fail.enqueue()
        shop.drain(advance=True)
    finally:
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
    assert [name for name, _ in seen] == ["task_enqueued", "task_started", "task_started", "task_finished"]
    assert seen[-1][1] == "FAILED"
    assert len(traces) == 2 and all("tasks.py" in trace and "no such thing" in trace for trace in traces)


def test_a_task_that_exits_has_failed_with_its_exception(shop: AppTester) -> None:
    result = tasks.leave.enqueue()
    shop.drain(advance=True)
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", SystemExit)
    assert result.errors[0].traceback.endswith("SystemExit: 3\n")


def test_a_transaction_does_not_delay_a_task_unless_the_option_is_set(shop: AppTester) -> None:
    with transaction.atomic():
        tasks.add.enqueue(1)
        assert len(shop.tasks()) == 1


@pytest.fixture
def on_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = tasks.add.get_backend()
    monkeypatch.setitem(backend.options, "enqueue_on_commit", True)


@pytest.mark.usefixtures("on_commit")
def test_with_the_option_a_task_is_stored_when_the_transaction_commits(shop: AppTester) -> None:
    with transaction.atomic():
        result = tasks.add.enqueue(1)
        assert shop.tasks() == []
    assert [task.id for task in shop.tasks()] == [result.id]
    with transaction.atomic():
        tasks.add.enqueue(2)
        transaction.set_rollback(True)
    assert len(shop.tasks()) == 1


def test_unknown_results_and_wrong_tasks_are_reported(shop: AppTester) -> None:
    for unknown in ("nonsense", "00000000-0000-4000-8000-000000000000"):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(unknown)
    other = shop.app.enqueue("os.system", {"args": ["true"], "kwargs": {}})
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(other.id)
    assert shop.drain() == [], "a worker runs only declared tasks"
    with pytest.raises(InvalidTask, match=r"Queue 'news' is not valid"):
        tasks.add.using(queue_name="news")
    with pytest.raises(TypeError):
        tasks.add.enqueue(object())


def test_priorities_keep_their_order() -> None:
    levels = [level_of(priority) for priority in range(100, -101, -1)]
    assert levels == sorted(levels, key=int) and set(levels) == set(range(10))
    assert [level_of(priority) for priority in (100, 0, -100)] == [0, 6, 9]


def test_a_result_that_is_no_json_fails_the_task(shop: AppTester) -> None:
    result = tasks.unserialisable.enqueue()
    shop.drain(advance=True)
    result.refresh()
    assert result.status == "FAILED" and result.errors[-1].exception_class is TypeError


def test_an_enqueue_creates_no_app(shop: AppTester) -> None:
    """Each app would stay in memory until the program exits, because it closes its store then."""
    tasks.add.enqueue(1, other=1)
    before = number_of_apps()
    for _ in range(3):
        tasks.add.get_result(tasks.add.enqueue(1, other=1).id)
    assert number_of_apps() == before
    assert len(shop.tasks()) == 4


def number_of_apps() -> int:
    gc.collect()
    return sum(isinstance(each, qo.App) for each in gc.get_objects())


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(qo.InvalidSetting, match="unknown options: adress"):
        QoBackend("default", {"OPTIONS": {"adress": "x"}})


def test_the_check_reports_a_store_that_cannot_be_opened() -> None:
    backend = QoBackend("broken", {"OPTIONS": {"url": "sqlite:////nowhere/at/all/qo.db"}})
    assert [problem.id for problem in backend.check()] == ["qo.E001"]


def test_the_management_command_runs_tasks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/qo.db"
    options = {"default": {"BACKEND": "qo.django.QoBackend", "OPTIONS": {"url": url}}}
    with override_settings(TASKS=options):
        result = tasks.add.enqueue(40, 2)
        command = [sys.executable, "-m", "django", "qo_worker", "--drain", "--concurrency", "2"]
        environment = os.environ | {"SHOP_URL": url, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        result.refresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", 42)
    with pytest.raises(SystemExit) as refused:
        call_command("qo_worker", "--backend", "nothing", "--drain")
    assert refused.value.code != 0
