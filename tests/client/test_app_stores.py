"""Where the tasks of an app go: its URL, the default store, its event loop, and whole programs."""

import asyncio
import os
from pathlib import Path

import pytest

from qo.app import DEFAULT_URL, App, background_of
from qo.client import Settings
from qo.client.describe import describe
from qo.errors import InvalidSetting, InvalidTask, StorageError
from tests.client.scripts import run_script


def plain() -> None: ...


def test_the_url_given_goes_before_the_variable_and_that_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QO_URL", raising=False)
    assert App().url == DEFAULT_URL == "sqlite:///qo.db"
    monkeypatch.setenv("QO_URL", "sqlite:///elsewhere.db")
    assert App().url == "sqlite:///elsewhere.db"
    assert App("memory://").url == "memory://"


def test_the_variables_of_a_bucket_select_it_and_never_a_file_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QO_URL", raising=False)
    monkeypatch.setenv("S3_ENDPOINT", "http://localhost:3902")
    with pytest.raises(InvalidSetting, match="S3_ENDPOINT is set, but S3_BUCKET is not"):
        _ = App().url
    monkeypatch.setenv("S3_BUCKET", "task-queue")
    assert App().url == "s3://task-queue"
    assert App("memory://").url == "memory://"
    monkeypatch.setenv("QO_URL", "sqlite:///elsewhere.db")
    assert App().url == "sqlite:///elsewhere.db"


def test_the_url_may_be_set_before_the_first_use_and_not_after() -> None:
    app = App("sqlite:///nowhere/at/all.db")
    app.url = "memory://"
    assert app.tasks() == []
    with pytest.raises(InvalidSetting, match="the app is already in use; set its URL before"):
        app.url = "sqlite:///qo.db"
    app.close()
    app.url = "memory://"


def test_declaring_tasks_opens_nothing(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'qo.db'}")
    app.task(plain)
    assert list(tmp_path.iterdir()) == []


def test_an_app_that_was_closed_opens_again(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'qo.db'}")
    task = app.task(plain)
    for size in (1, 2):
        task.enqueue()
        assert len(app.tasks()) == size
        app.close()
        app.close()


def test_a_store_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    path.write_bytes(b"not a database " * 100)
    app = App(f"sqlite:///{path}")
    task = app.task(plain)
    with pytest.raises(StorageError):
        task.enqueue()
    path.unlink()
    assert task.enqueue().new
    app.close()


def test_settings_of_the_app_hold_for_its_tasks() -> None:
    app = App("memory://", Settings(payload_limit=10))

    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(InvalidTask, match=r"^payload: is .* the limit is 10"):
        send.enqueue("somebody")
    app.close()


def test_a_limit_shorter_than_null_still_accepts_what_fits() -> None:
    assert describe(Settings(payload_limit=2), "t", b"[]").payload == b"[]"
    with pytest.raises(InvalidTask, match="the limit is 2"):
        describe(Settings(payload_limit=2), "t", b"[1]")


async def test_waiting_on_the_apps_own_loop_is_refused_instead_of_hanging(app: App) -> None:
    task = app.task(plain)

    async def inside() -> None:
        task.enqueue()

    with pytest.raises(InvalidSetting, match="would wait forever"):
        await background_of(app).arun(inside())
    await asyncio.to_thread(app.close)


def test_functions_and_coroutines_run_on_the_apps_own_loop(app: App) -> None:
    seen: list[object] = []
    background_of(app).call(lambda: seen.append(asyncio.get_running_loop()))
    assert len(seen) == 1
    background = background_of(app)
    assert background.spawn(background.client()).result() is background.run(background.client())


PROGRAM = """
import os
import qo

app = qo.App()

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def test_a_program_that_submits_and_exits_logs_nothing_and_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    run_script(PROGRAM + "add.enqueue(1, 2)\n", tmp_path, QO_URL=url)
    assert not (tmp_path / "qo.db").exists()
    said = run_script(PROGRAM + "print(len(app.tasks()))\n", tmp_path, QO_URL=url)
    assert said == "1\n"


def test_a_forked_child_submits_too(tmp_path: Path) -> None:
    said = run_script(
        PROGRAM
        + """
add.enqueue(0, 0)
children = []
for n in range(3):
    child = os.fork()
    if child == 0:
        try:
            add.enqueue(n, n)
            add.enqueue(n, n + 1)
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        app.close()
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
add.enqueue(9, 9)
print(codes, len(app.tasks()))
""",
        tmp_path,
        QO_URL="sqlite:///qo.db",
    )
    assert said == "[0, 0, 0] 8\n"


def test_the_default_store_is_a_file_in_the_working_directory(tmp_path: Path) -> None:
    variables = {"QO_URL": ""}
    run_script(PROGRAM + "add.enqueue(1, 2)\n", tmp_path, **variables)
    assert (tmp_path / "qo.db").exists()
    assert os.environ.get("QO_URL", "") == ""
