"""The test mode of an app: tasks in memory, inline runs, time on request."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import qo

app = qo.App("sqlite:////nowhere/at/all/qo.db")  # a test that reaches it fails
sent: list[str] = []


@app.task(max_retries=2, queue="mail")
async def send_email(to: str, subject: str = "Hi") -> dict[str, str]:
    sent.append(to)
    return {"sent": to, "subject": subject}


@app.task
def sign_up(name: str) -> None:
    send_email.enqueue(f"{name}@example.com")
    send_email.using(delay=3600).enqueue(f"{name}@example.com", subject="Still there?")


@app.task(max_retries=2, retry=qo.RetryPolicy(initial=10.0, jitter=0.5))
def fetch(url: str) -> int:
    if qo.current_task().attempt < 3:
        raise ConnectionError(f"{url} is not there yet")
    return qo.current_task().attempt


@app.task(needs={"gpu"}, executor="process")
def render(when: datetime) -> int:
    assert qo.current_task().worker_id == "test"
    return when.year


@app.task
def repeat() -> None:
    repeat.enqueue()


@app.task
def refuse() -> None:
    raise qo.Fail("there is no such thing")


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


def test_submitted_tasks_wait_in_memory_until_they_are_drained() -> None:
    with app.test_mode() as t:
        handle = sign_up.enqueue("ada")
        t.assert_enqueued(sign_up, name="ada")
        t.refute_enqueued(send_email)
        assert handle.status() is qo.Status.PENDING
        attempts = t.drain()
        assert [(each.task.type, each.status) for each in attempts] == [
            ("sign_up", qo.Status.COMPLETED),
            ("send_email", qo.Status.COMPLETED),
        ]
        assert attempts[1].result == {"sent": "ada@example.com", "subject": "Hi"}
        assert handle.status() is qo.Status.COMPLETED
        assert sent == ["ada@example.com"]


def test_time_passes_only_when_the_test_advances_it() -> None:
    with app.test_mode(now=datetime(2030, 1, 31, 8, tzinfo=UTC)) as t:
        send_email.using(delay=timedelta(hours=1)).enqueue("ada")
        send_email.using(run_at=datetime(2030, 2, 1, 8, tzinfo=UTC)).enqueue("bob")
        assert t.drain() == []
        t.advance(3599)
        assert t.drain() == []
        t.advance(timedelta(seconds=1))
        assert [each.result["sent"] for each in t.drain()] == ["ada"]
        assert [each.result["sent"] for each in t.drain(advance=True)] == ["bob"]
        assert t.now == datetime(2030, 2, 1, 8, tzinfo=UTC).timestamp()


def test_a_failed_task_is_retried_after_its_back_off_without_jitter() -> None:
    with app.test_mode() as t:
        handle = fetch.enqueue("http://example.com")
        (failed,) = t.drain()
        assert failed.status is qo.Status.PENDING and isinstance(failed.exception, ConnectionError)
        assert failed.error is not None and "is not there yet" in failed.error
        t.advance(9.9)
        assert t.drain() == []
        t.advance(0.1)
        assert len(t.drain()) == 1
        (last,) = t.drain(advance=True)
        assert (last.status, last.result, handle.result(0)) == (qo.Status.COMPLETED, 3, 3)


def test_errors_can_end_the_test() -> None:
    with app.test_mode() as t:
        handle = refuse.enqueue()
        with pytest.raises(qo.Fail, match="no such thing"):
            t.drain(raise_errors=True)
        assert handle.status() is qo.Status.FAILED  # the attempt is settled all the same


def test_one_attempt_runs_without_being_stored() -> None:
    with app.test_mode() as t:
        assert t.run(send_email, "ada") == {"sent": "ada", "subject": "Hi"}
        assert t.run(render, when=datetime(2030, 1, 31, tzinfo=UTC)) == 2030
        with pytest.raises(ConnectionError):
            t.run(fetch, "http://example.com")
        assert t.run_attempt(3, fetch, "http://example.com") == 3
        assert t.tasks() == []
        with pytest.raises(qo.InvalidTask, match="payload"):
            t.run(send_email, to=5)  # type: ignore[arg-type]
        with pytest.raises(qo.InvalidSetting, match="the first attempt is 1"):
            t.run_attempt(0, fetch, "x")


def test_tasks_are_found_by_arguments_and_options() -> None:
    with app.test_mode() as t:
        send_email.using(queue="news", priority="low", delay=60).enqueue("ada")
        send_email.enqueue("bob", subject="Bye")
        assert t.assert_enqueued(send_email.using(queue="news", priority="low"), to="ada").queue == "news"
        t.assert_enqueued(send_email.using(delay=60))
        t.refute_enqueued(send_email.using(delay=61))
        t.refute_enqueued(send_email.using(queue="news"), to="bob")
        assert [task.queue for task in t.enqueued("send_email")] == ["news", "mail"]
        assert len(t.enqueued("send_email", subject="Bye")) == 1
        with pytest.raises(qo.InvalidSetting, match=r"send_email\(\) got an unexpected keyword argument 'too'"):
            t.enqueued(send_email, too="ada")


def test_a_failed_assertion_lists_what_was_submitted() -> None:
    with app.test_mode() as t:
        with pytest.raises(AssertionError, match="no task was submitted"):
            t.assert_enqueued(send_email)
        send_email.enqueue("bob")
        with pytest.raises(AssertionError) as missing:
            t.assert_enqueued(send_email.using(queue="news"), to="ada")
        assert "send_email(to='ada') with queue='news' was not submitted" in str(missing.value)
        assert "send_email {'to': 'bob'} (pending, queue mail)" in str(missing.value)
        with pytest.raises(AssertionError, match=r"send_email\(to='bob'\) was submitted once, expected none"):
            t.refute_enqueued(send_email, to="bob")


def test_tasks_without_a_handler_stay_pending() -> None:
    with app.test_mode() as t:
        app.enqueue("unknown", {"a": 1})
        assert t.drain(advance=True) == []
        assert t.assert_enqueued("unknown", a=1).status is qo.Status.PENDING


def test_a_task_that_submits_itself_ends_the_drain() -> None:
    with app.test_mode() as t:
        repeat.enqueue()
        with pytest.raises(qo.QoError, match="10 attempts ran"):
            t.drain(limit=10)


async def test_async_handlers_run_on_the_event_loop_of_an_async_test() -> None:
    loops: list[object] = []
    own = qo.App("sqlite:////nowhere/at/all/qo.db")

    @own.task
    async def where() -> int:
        loops.append(asyncio.get_running_loop())
        return qo.current_task().attempt

    with own.test_mode() as t:
        await where.aenqueue()
        assert await t.arun(where) == 1
        assert await t.arun_attempt(2, where) == 2
        (attempt,) = await t.adrain()
        assert attempt.result == 1
        assert loops == [asyncio.get_running_loop()] * 3
        with pytest.raises(qo.InvalidSetting, match=r"use `await t.adrain\(\)`"):
            t.drain()


def test_async_handlers_of_a_plain_test_share_one_event_loop() -> None:
    loops: set[object] = set()
    own = qo.App("sqlite:////nowhere/at/all/qo.db")

    @own.task
    async def where() -> None:
        loops.add(asyncio.get_running_loop())

    with own.test_mode() as t:
        where.enqueue()
        where.enqueue()
        t.run(where)
        assert len(t.drain()) == 2 and len(loops) == 1


def test_after_the_block_the_app_uses_its_own_store_again(tmp_path: Path) -> None:
    own = qo.App(f"sqlite:///{tmp_path}/qo.db")
    before = own.enqueue("real").id
    with own.test_mode() as t:
        assert own.get(before) is None
        own.enqueue("tested")
        with pytest.raises(qo.InvalidSetting, match="already in test mode"), own.test_mode():
            pass
        t.assert_enqueued("tested")
    assert [task.type for task in own.tasks()] == ["real"]
    with own.test_mode() as again:
        assert again.tasks() == []
    own.close()


def test_two_apps_can_be_tested_at_once_and_from_threads() -> None:
    other = qo.App("sqlite:////nowhere/at/all/qo.db")
    with app.test_mode() as t, other.test_mode() as u:
        threads = [threading.Thread(target=send_email.enqueue, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(t.tasks()) == 8 and u.tasks() == []
        t.drain()
        assert sorted(sent) == sorted(map(str, range(8)))


def test_a_result_that_cannot_be_stored_fails_as_in_a_worker() -> None:
    own = qo.App("sqlite:////nowhere/at/all/qo.db")

    @own.task
    def wrong() -> object:
        return object()

    with own.test_mode() as t:
        wrong.enqueue()
        (attempt,) = t.drain()
        assert attempt.status is qo.Status.FAILED
        with pytest.raises(qo.InvalidTask, match="result"):
            t.run(wrong)


def test_time_does_not_go_back() -> None:
    with app.test_mode() as t, pytest.raises(qo.InvalidSetting, match="cannot go back"):
        t.advance(-1)


def test_a_key_is_unique_within_its_window() -> None:
    with app.test_mode() as t:
        first = send_email.using(idempotency_key="welcome").enqueue("ada")
        assert send_email.using(idempotency_key="welcome").enqueue("ada").id == first.id
        t.drain()
        t.advance(timedelta(days=1, seconds=1))
        assert send_email.using(idempotency_key="welcome").enqueue("ada").id != first.id


def test_middleware_callbacks_and_the_state_of_the_worker_are_part_of_a_test() -> None:
    own, seen = qo.App("sqlite:////nowhere/at/all/qo.db"), list[str]()

    @own.lifespan
    async def connections() -> AsyncIterator[str]:
        seen.append("entered")
        yield "real connections"

    @own.middleware
    async def traced(task: qo.Task, call_next: Callable[[], Awaitable[object]]) -> object:
        seen.append(f"before {task.type}")
        return f"<{await call_next()}>"

    @own.on("task_started")
    @own.on("task_succeeded")
    @own.on("task_retrying")
    def record(event: qo.TaskEvent) -> None:
        seen.append(f"{event.name} {event.task.type} {event.delay}")

    @own.task
    def plain() -> str:
        return str(qo.current_worker().state)

    @own.task(retry=qo.RetryPolicy(initial=7))
    async def broken() -> str:
        raise ValueError(qo.current_worker().id)

    with own.test_mode(state="fake") as t:
        plain.enqueue()
        assert t.drain()[0].result == "<fake>"
        assert seen == ["task_started plain None", "before plain", "task_succeeded plain None"]
        seen.clear()
        broken.enqueue()
        t.drain()
        assert seen == ["task_started broken None", "before broken", "task_retrying broken 7.0"]
        assert t.run(plain) == "<fake>"


@pytest.mark.parametrize("has_middleware", [True, False])
async def test_a_plain_handler_may_call_asyncio_run_as_in_a_worker(has_middleware: bool) -> None:
    own = qo.App("sqlite:////nowhere/at/all/qo.db")

    async def passes(_task: qo.Task, call_next: Callable[[], Awaitable[object]]) -> object:
        return await call_next()

    if has_middleware:
        own.middleware(passes)

    @own.task
    def plain() -> str:
        return asyncio.run(asyncio.sleep(0, "slept"))

    with own.test_mode() as t:
        assert await t.arun(plain) == "slept"


def test_a_failed_assertion_shows_the_options_that_it_requires() -> None:
    with app.test_mode() as t:
        send_email.using(delay=10, priority=2).enqueue("ada")
        with pytest.raises(AssertionError, match=r"\(pending, queue mail, priority=2, delay=10\.0\)"):
            t.assert_enqueued(send_email.using(delay=3600, priority=1))


def test_wrong_arguments_of_the_tester_are_refused() -> None:
    with app.test_mode() as t:
        for wrong in ("1h", None, float("nan")):
            with pytest.raises(qo.InvalidSetting, match="pass seconds"):
                t.advance(wrong)  # type: ignore[arg-type]
        with pytest.raises(qo.InvalidSetting, match="decorated with"):
            t.run("send_email", to="ada")  # type: ignore[arg-type]
