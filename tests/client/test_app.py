"""The front door: functions that are tasks, called from plain code and from anybody's event loop."""

import asyncio
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.app import DEFAULT_URL, App, background_of
from qo.client import Client, Settings
from qo.errors import InvalidSetting, InvalidTask, ResultTimeout, StorageError, TaskFailed
from qo.model import Filter, RetryPolicy, Status, Task, derived_id
from tests.client.scripts import run_script


@dataclass
class Receipt:
    to: str
    at: datetime


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'qo.db'}")
    yield app
    app.close()


async def _work(app: App) -> Task:
    """Run one task as a worker would, without one."""
    client = await background_of(app).client()
    (task,) = await client.dequeue(wait=20)
    handler = app.registry.get(task.type)
    assert handler is not None
    args, kwargs = handler.arguments.decode(task.payload)
    answer = handler.function(*args, **kwargs)
    await client.ack(task, await answer if inspect.isawaitable(answer) else answer)
    return task


def work(app: App) -> Task:
    return background_of(app).run(_work(app))


def test_calling_the_function_calls_the_function(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(4) == 8
    assert (double.__name__, double.__doc__, repr(double)) == ("double", "Twice as much.", "<task double>")
    assert app.tasks() == []


async def test_awaiting_an_async_function_awaits_the_function(app: App) -> None:
    @app.task(max_retries=2)
    async def double(n: int) -> int:
        return 2 * n

    assert await double(n=4) == 8
    await asyncio.to_thread(app.close)


def test_plain_code_submits_and_waits_for_the_result(app: App) -> None:
    @app.task
    def add(a: int, b: int = 10) -> int:
        return a + b

    submission = add.enqueue(1, b=2)
    assert submission.new
    assert submission.id in repr(submission)
    task = submission.refresh()
    assert (task.type, task.status, task.payload) == ("add", Status.PENDING, b'{"a":1,"b":2}')
    with pytest.raises(ResultTimeout):
        submission.result(timeout=0)
    work(app)
    assert submission.result(timeout=5) == 3
    defaulted = add.enqueue(a=5)
    work(app)
    assert defaulted.result() == 15


async def test_code_on_its_own_loop_submits_and_waits(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    submissions = await asyncio.gather(*(add.aenqueue(n, b=1) for n in range(10)))
    for _ in submissions:
        await background_of(app).arun(_work(app))
    assert [await each.aresult(timeout=5) for each in submissions] == list(range(1, 11))
    await asyncio.to_thread(app.close)


def test_a_typed_result_comes_back_as_its_type(app: App) -> None:
    @app.task
    def send(to: str, at: datetime) -> Receipt:
        return Receipt(to, at)

    @app.task
    def receipts(of: list[Receipt]) -> dict[str, Receipt]:
        return {each.to: each for each in of}

    at = datetime(2030, 1, 1, tzinfo=UTC)
    one = send.enqueue("a", at)
    work(app)
    assert one.result() == Receipt("a", at)
    many = receipts.enqueue([Receipt("b", at)])
    work(app)
    assert many.result() == {"b": Receipt("b", at)}


def test_results_without_a_type_and_raw_ones_come_back_as_they_are(app: App) -> None:
    @app.task
    def untyped(value):  # noqa: ANN001, ANN202
        return value

    @app.task
    def raw(n: int) -> bytes:
        return b"\xff" * n

    plain, data = untyped.enqueue({"a": [1]}), raw.enqueue(3)
    work(app), work(app)
    assert (plain.result(), data.result()) == ({"a": [1]}, b"\xff\xff\xff")


def test_a_result_of_another_type_than_promised_is_named(app: App) -> None:
    @app.task
    def count() -> int:
        return "three"  # type: ignore[return-value]

    submission = count.enqueue()
    work(app)
    with pytest.raises(
        InvalidTask, match=r"^result: does not match the return annotation of count: Expected `int`, got `str`"
    ):
        submission.result()


def test_a_failed_task_raises_where_its_result_is_awaited(app: App) -> None:
    @app.task(max_retries=0)
    def fragile() -> None: ...

    submission = fragile.enqueue()

    async def fail(client: Client) -> None:
        (task,) = await client.dequeue()
        await client.nack(task, "broken")

    background_of(app).call_client(fail)
    with pytest.raises(TaskFailed, match="is failed: broken") as caught:
        submission.result()
    assert (caught.value.task, caught.value.error, caught.value.kind) == (submission.refresh(), "broken", "error")
    assert caught.value.task_id == submission.id


# --- options


def test_what_the_decorator_says_reaches_the_task(app: App) -> None:
    policy = RetryPolicy(initial=9)

    @app.task(name="mail.send", queue="mail", priority="high", needs={"gpu", "arm"}, timeout=5, max_retries=7,
              retry=policy, rate_limit=10, concurrency=3)  # fmt: skip
    def send(to: str) -> None: ...

    new = send.describe("a")
    assert (new.type, new.queue, new.priority, new.needs) == ("mail.send", "mail", 0, ("arm", "gpu"))
    assert (new.timeout, new.max_retries, new.retry) == (5, 7, policy)
    assert (send.handler.options.rate_limit, send.handler.options.concurrency) == (10, 3)


def test_using_other_options_changes_this_submission_only(app: App) -> None:
    @app.task(priority="low", max_retries=1)
    def send(to: str) -> None: ...

    new = send.using(queue="q", priority=2, needs=["gpu"], timeout=3, max_retries=9, delay=60, trace_id="x",
                     idempotency_key="k", retry=RetryPolicy(max=5)).describe("a")  # fmt: skip
    assert (new.queue, new.priority, new.needs, new.timeout, new.max_retries) == ("q", 2, ("gpu",), 3, 9)
    assert (new.delay, new.trace_id, new.idempotency_key, new.id) == (60, "x", "k", derived_id("q", "send", "k"))
    assert new.retry.max == 5
    assert send.using(run_at=datetime(2030, 1, 1, tzinfo=UTC)).describe("a").run_at == 1_893_456_000
    assert (send.describe("a").priority, send.describe("a").max_retries) == (9, 1)


def test_zero_is_an_option_and_not_a_default(app: App) -> None:
    @app.task(max_retries=5, priority=9)
    def send() -> None: ...

    new = send.using(max_retries=0, priority=0, delay=0).describe()
    assert (new.max_retries, new.priority, new.delay) == (0, 0, 0)


def test_the_second_submission_of_a_key_is_the_first_task(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    first, second = (send.using(idempotency_key="k").enqueue(to) for to in "aa")
    assert (first.id, first.new) == (second.id, True)
    assert not second.new
    assert len(app.tasks(Filter(types=("send",)))) == 1


def test_many_described_tasks_are_submitted_at_once(app: App) -> None:
    @app.task
    def send(n: int) -> None: ...

    ids = app.submit(send.describe(n) for n in range(100))
    assert len(set(ids)) == 100
    assert len(app.tasks(limit=999)) == 100


# --- refusals


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((5, "hi"), {}, "Expected `str`, got `int` - at `$.to`"),
        (("a",), {"subject": None}, "Expected `str`, got `null` - at `$.subject`"),
        (("a", "hi"), {"copies": "two"}, "Expected `int`, got `str` - at `$.copies`"),
        (("a",), {}, "missing a required argument: 'subject'"),
        (("a", "hi"), {"cc": "b"}, "got an unexpected keyword argument 'cc'"),
        (("a", "b", 1, 2), {}, "too many positional arguments"),
        (("a", "\ud800"), {}, "lone surrogate"),
        (("a", object()), {}, "cannot be written as JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_the_function_does_not_take_are_refused_by_name(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    @app.task
    def send(to: str, subject: str, copies: int = 1) -> None: ...

    enqueue: Callable[..., object] = send.enqueue
    with pytest.raises(InvalidTask, match=r"^payload: ") as caught:
        enqueue(*args, **kwargs)
    assert says in str(caught.value)
    assert app.tasks() == []


def test_arguments_that_cannot_travel_by_name_are_refused_where_they_are_written(app: App) -> None:
    with pytest.raises(InvalidSetting, match=r"many: arguments are stored by name, so \*args"):

        @app.task
        def many(*args: int) -> None: ...

    with pytest.raises(InvalidSetting, match="positional-only"):

        @app.task
        def positional(a: int, /) -> None: ...


def test_two_functions_of_one_name_are_refused(app: App) -> None:
    def first() -> None: ...

    def second() -> None: ...

    app.task(name="same")(first)
    app.task(name="same")(first)
    with pytest.raises(InvalidSetting, match="two functions are declared for the type 'same'; rename one of them"):
        app.task(name="same")(second)
    assert len(app.registry) == 1


async def coroutine() -> None: ...


def plain() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (coroutine, {"executor": "thread"}, "coroutine is async: run it with executor='async' or 'process'"),
        (plain, {"executor": "async"}, "plain is not async: run it with executor='thread' or 'process'"),
        (plain, {"executor": "gpu"}, "executor='gpu' is not one of: async, thread, process"),
        (plain, {"timeout": 0}, "timeout: 0 must be greater than 0"),
        (plain, {"timeout": float("nan")}, "timeout: nan is not a finite number"),
        (plain, {"max_retries": -1}, "max_retries: -1 is not a whole number"),
        (plain, {"rate_limit": -1}, "rate_limit: -1 must be at least 0"),
        (plain, {"rate_limit": "10"}, "rate_limit: '10' is not a finite number"),
        (plain, {"concurrency": 1.5}, "concurrency: 1.5 is not a whole number"),
        (plain, {"priority": "urgent"}, "priority: 'urgent' is not high, medium, low"),
        (plain, {"queue": "a/b"}, "queue: 'a/b' is not a name"),
        (plain, {"needs": ["a b"]}, "needs: 'a b' is not a name"),
        (plain, {"needs": "gpu"}, "needs: 'gpu' is not a list of names"),
        (plain, {"name": "a b"}, "type: 'a b' is not a type"),
        (plain, {"retry": RetryPolicy(jitter=3)}, "retry.jitter: 3 must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_make_no_sense_are_refused_where_they_are_written(
    app: App, function: Callable[[], Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises((InvalidSetting, InvalidTask)) as caught:
        app.task(**options)(function)
    assert says in str(caught.value)
    assert len(app.registry) == 0


def test_current_task_outside_a_handler_is_a_clear_error() -> None:
    with pytest.raises(InvalidSetting, match=r"current_task\(\) can be called only inside a handler"):
        qo.current_task()


# --- where tasks go


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


# --- programs

PROGRAM = """
import os
import qo

app = qo.App()

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def test_a_program_that_submits_and_ends_says_nothing_and_loses_nothing(tmp_path: Path) -> None:
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
