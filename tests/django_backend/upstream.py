"""Runs the tests that Django has for its own task backends against QoBackend.

    python -m tests.django_backend.upstream DJANGO_SOURCE

DJANGO_SOURCE is the unpacked source package of the installed version of Django, 6 or later. docs/django.md has the
results. The tests are for two backends: one that only stores tasks, and one that runs them at once. Here both are
QoBackend with a SQLite file. The first gets the two members that only those tests use; the second runs a worker after
each submission.
"""

import asyncio
import os
import sys
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.test.utils import get_runner

from qo.client import connect
from qo.django import backend
from qo.django.backend import QoBackend
from qo.django.worker_app import worker_app
from qo.ids import new_token
from qo.worker import Worker, WorkerSettings

# Tests of what the dummy or the immediate backend cannot do, or of their internals.
EXPECTED_FAILURES = {
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result": "it edits the dummy backend's list of results",
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": "the same",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": "qo reads results",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": "qo reads results",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": "qo supports run_after",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "a KeyboardInterrupt that a task raises fails the task and does not end the worker"
    ),
}


class StoringBackend(QoBackend):
    """QoBackend with what the tests of the dummy backend look at."""

    @property
    def results(self) -> list[Any]:
        return [self.get_result(task.id) for task in reversed(self.app.tasks())]

    def clear(self) -> None:
        self.app.close()
        _use_new_store()


def _use_new_store() -> None:
    os.environ["QO_URL"] = f"sqlite:///{os.environ['QO_FOLDER']}/{new_token()}.db"


class RunningBackend(QoBackend):
    """QoBackend with a worker that runs each task before `enqueue` returns."""

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.app.close()  # the store may be a new one
        result = super().enqueue(task, args, kwargs)
        asyncio.run(_work(self.alias))
        return self.get_result(result.id)


async def _work(alias: str) -> None:
    async with connect(os.environ["QO_URL"]) as client:
        await Worker(client, worker_app(alias).registry, WorkerSettings(drain=True)).run()


def main(source: Path) -> int:
    from django.tasks.backends import dummy, immediate  # noqa: PLC0415 - Django 6

    dummy.DummyBackend, immediate.ImmediateBackend = StoringBackend, RunningBackend
    vars(backend)["MAX_RETRIES"] = 0  # the tests expect one attempt
    sys.path.insert(0, str(source / "tests"))
    settings.configure(
        SECRET_KEY="not a secret",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["QO_FOLDER"] = folder
        _use_new_store()
        django.setup()
        runner = get_runner(settings)()
        suite = runner.build_suite(["tasks"])
        runner.setup_test_environment()
        result = unittest.TextTestRunner().run(suite)
    failed = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    sys.stdout.write(f"{result.testsRun} tests, {len(failed)} failed:\n")
    for name in sorted(failed | EXPECTED_FAILURES.keys()):
        reason = EXPECTED_FAILURES.get(name, "NOT EXPECTED")
        sys.stdout.write(f"  {name}: {reason}{'' if name in failed else ': PASSED'}\n")
    return 0 if failed == EXPECTED_FAILURES.keys() else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
