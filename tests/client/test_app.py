"""The front door: functions that are tasks, called from plain code and from anybody's event loop."""

import asyncio
import inspect
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from qo.app import App, background_of
from qo.client import Client
from qo.errors import InvalidTask, ResultTimeout, TaskFailed
from qo.model import Filter, RetryPolicy, Status, Task, derived_id


@dataclass
class Receipt:
    to: str
    at: datetime


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


def test_options_of_the_decorator_reach_the_task(app: App) -> None:
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
