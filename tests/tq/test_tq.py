"""tq: tasks by name, from plain code, workers in the same process."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

from qo import sync
from qo.app import background_of
from qo.background import BackgroundClient
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting, InvalidTask
from qo.executors.lifespan import LifespanFailed
from qo.forwarding_engine import ForwardingEngine
from qo.in_process_worker import InProcessWorker
from qo.model import SLOW_POLICY, ClaimRequest, RetryPolicy, Status, Task
from qo.task_queue import TaskQueue
from qo.tasks import Registry, make_handler, make_options
from qo.worker import WorkerSettings
from tests.client.scripts import run_script
from tests.conditions import TIMEOUT, forever, wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tq.db"


@pytest.fixture
def tq(url: str) -> Iterator[TaskQueue]:
    queue = TaskQueue()
    queue.init(url, poll_interval=0.05)
    yield queue
    queue.stop()


class Seen:
    """What handlers were given, waited for without sleeping."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        self._news = threading.Condition()

    def __call__(self, payload: Any) -> dict[str, Any]:
        with self._news:
            self.payloads.append(payload)
            self._news.notify_all()
        return {"got": payload}

    def wait(self, number: int) -> list[Any]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.payloads) >= number, TIMEOUT)
            return list(self.payloads)


def test_adding_chains_and_the_worker_gets_each_payload(tq: TaskQueue) -> None:
    seen = Seen()
    tq("crawl").set_worker(seen).set_worker_count(3).set_rate_limit(100).set_timeout(300)
    tq("crawl").add({"url": "https://example.com/1"}).add({"url": "https://example.com/2"})
    assert sorted(payload["url"][-1] for payload in seen.wait(2)) == ["1", "2"]


def test_a_worker_gets_bytes_as_they_were_added(tq: TaskQueue) -> None:
    seen = Seen()
    tq("raw").set_worker(seen).add(b"raw").add(b"\x00raw")
    assert seen.wait(2) == [b"raw", b"\x00raw"]


def test_async_handlers_and_several_types_work_side_by_side(tq: TaskQueue) -> None:
    crawled, mailed = Seen(), Seen()

    async def mail(payload: dict[str, str]) -> None:
        mailed(payload)

    tq("crawl").set_worker(crawled)
    tq("mail").set_worker(mail)
    tq("crawl").add(1)
    tq("mail").add({"to": "a"})
    assert (crawled.wait(1), mailed.wait(1)) == ([1], [{"to": "a"}])


def test_a_type_runs_one_task_at_a_time_by_default(tq: TaskQueue) -> None:
    running, most, lock, done = [0], [0], threading.Lock(), Seen()

    def work(payload: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.005)
        with lock:
            running[0] -= 1
        done(payload)

    tq("one").set_worker(work)
    for n in range(8):
        tq("one").add(n)
    done.wait(8)
    assert most[0] == 1


def test_max_attempts_and_run_after_are_kept(tq: TaskQueue, url: str) -> None:
    tq("later").add({"a": 1}, max_attempts=10, run_after="2099-12-31T00:00:00Z")
    row = (
        sqlite3.connect(url.removeprefix("sqlite:///"))
        .execute("SELECT max_retries, available_at, status FROM tasks")
        .fetchone()
    )
    assert row == (9, 4102358400.0, "pending")


def test_pausing_holds_tasks_back_and_stats_count_them(tq: TaskQueue) -> None:
    seen = Seen()
    tq.pause()
    tq("crawl").add(1)
    assert tq.stats()["pending"] == 1
    assert tq.stats()["by_type"] == {"crawl": {"pending": 1}}
    tq("crawl").set_worker(seen)
    tq.resume()
    assert seen.wait(1) == [1]


def test_what_was_added_before_a_stop_is_there_after_it(tq: TaskQueue, url: str) -> None:
    tq("crawl").add("before")
    tq.stop()
    seen = Seen()
    tq.init(url, poll_interval=0.05)
    tq("crawl").set_worker(seen)
    assert seen.wait(1) == ["before"]


def test_payloads_are_checked_against_the_handlers_annotation(tq: TaskQueue) -> None:
    @dataclass
    class Page:
        url: str
        depth: int = 0

    got: list[Page] = []
    done = Seen()

    def crawl(page: Page) -> None:
        got.append(page)
        done(1)

    tq("crawl").set_worker(crawl)
    with pytest.raises(InvalidTask, match="payload"):
        tq("crawl").add({"wrong": "field"})
    tq("crawl").add({"url": "x"})
    done.wait(1)
    assert got == [Page("x")]


class Link(TypedDict):
    url: str


def test_payloads_are_checked_against_the_type_that_was_named(tq: TaskQueue) -> None:
    tq("crawl", Link).add({"url": "x"})
    with pytest.raises(InvalidTask, match="payload"):
        tq("crawl", Link).add({"wrong": "field"})  # type: ignore[typeddict-unknown-key, typeddict-item]
    assert tq.stats()["pending"] == 1


def test_mistakes_are_named(tq: TaskQueue) -> None:
    with pytest.raises(InvalidTask, match="type"):
        tq("no spaces please")
    with pytest.raises(InvalidSetting, match="at least 1"):
        tq("a").set_worker_count(0)
    with pytest.raises(InvalidSetting, match="tasks per second"):
        tq("a").set_rate_limit(-1)
    with pytest.raises(InvalidSetting, match="greater than 0"):
        tq("a").set_timeout(0)
    with pytest.raises(InvalidSetting, match="at least 1"):
        tq("a").add(1, max_attempts=0)
    with pytest.raises(InvalidSetting, match="before any other call"):
        tq.init("memory://")
    with pytest.raises(InvalidTask, match="payload"):
        tq("a").add(float("nan"))


def test_the_default_is_three_attempts_with_a_slow_back_off(tq: TaskQueue) -> None:
    quick = RetryPolicy(initial=0.5)
    tq("a").add(1)
    tq("b").set_max_attempts(7).set_retry(quick).add(1).add(2, max_attempts=1)
    tasks = {(task.type, task.payload): (task.max_retries, task.retry) for task in tq.app.tasks()}
    assert tasks == {("a", b"1"): (2, SLOW_POLICY), ("b", b"1"): (6, quick), ("b", b"2"): (0, quick)}


def test_the_defaults_are_options_of_init(url: str) -> None:
    tq = TaskQueue()
    tq.init(url, max_attempts=9, retry=RetryPolicy(max=5.0))
    tq("a").add(1)
    (task,) = tq.app.tasks()
    assert (task.max_retries, task.retry) == (8, RetryPolicy(max=5.0))
    tq.stop()


def test_a_timeout_holds_for_tasks_from_anywhere(tq: TaskQueue) -> None:
    """This one comes with five minutes."""

    async def hang(_payload: int) -> None:
        await asyncio.Event().wait()

    task_id = tq.app.enqueue("hang", 1, timeout=300.0, max_retries=0).id
    tq("hang").set_timeout(0.05).set_worker(hang)
    ended = background_of(tq.app).call_client(lambda client: client.ended(task_id, timeout=30))
    assert ended.status == "failed" and ended.error == "timed out after 0.05 s"


def test_a_type_without_its_worker_waits(tq: TaskQueue) -> None:
    seen, other = Seen(), Seen()
    tq("crawl").set_worker(seen).add(1)
    tq("other").set_worker(other)
    assert seen.wait(1) == [1]
    tq("crawl").remove_worker().add(2)
    tq("other").add(3)
    assert other.wait(1) == [3]
    assert seen.payloads == [1]
    assert tq.stats()["by_type"]["crawl"]["pending"] == 1
    tq("other").remove_worker().remove_worker()
    assert tq.is_running()
    tq("crawl").set_worker(seen)
    assert seen.wait(2) == [1, 2]


def test_it_reports_whether_it_runs_and_whether_it_is_paused(tq: TaskQueue) -> None:
    assert (tq.is_running(), tq.is_paused()) == (False, False)
    tq("crawl").set_worker(Seen())
    tq.pause()
    assert (tq.is_running(), tq.is_paused()) == (True, True)
    tq.resume()
    assert (tq.is_running(), tq.is_paused()) == (True, False)
    tq.stop()
    assert not tq.is_running()


def test_a_worker_that_cannot_start_is_reported_and_can_be_replaced(
    tq: TaskQueue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tq.lifespan
    async def life() -> AsyncIterator[None]:
        raise ValueError("no credentials")
        yield

    tq("crawl").set_worker(Seen())
    wait_until(lambda: "the worker has ended" in caplog.text)
    assert not tq.is_running()
    with pytest.raises(LifespanFailed, match="no credentials"):
        tq.stop()
    seen = Seen()
    tq.init(url, poll_interval=0.05)
    tq("crawl").set_worker(seen).add(1)
    assert seen.wait(1) == [1]


class Stuck(ForwardingEngine):
    """A store whose first claims are never answered."""

    claims = 0

    async def claim(self, request: ClaimRequest) -> list[Task]:
        self.claims += 1
        if self.claims <= 2:
            await forever()
        return await super().claim(request)


def test_a_worker_whose_store_does_not_answer_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    registry, seen = Registry(), Seen()
    background = BackgroundClient(lambda: Client(Stuck(MemoryEngine())), "test")

    def see(n: int) -> None:
        seen(n)

    registry.add(make_handler(see, type="t", options=make_options(see)))
    worker = InProcessWorker(background, registry, WorkerSettings(poll=0.05, stuck_after=0.1))
    background.call_client(lambda client: client.enqueue("t", {"n": 1}))
    assert seen.wait(1) == [1]
    assert worker.is_running
    worker.stop()
    background.close()
    assert caplog.text.count("has not answered a claim") == 2


def test_a_forked_child_exits_beside_the_worker_of_its_parent(tmp_path: Path) -> None:
    said = run_script(
        """
        import os, sys
        from qo import tq

        tq.init("sqlite:///tq.db")
        tq("t").set_worker(print)
        child = os.fork()
        if child == 0:
            assert not tq.is_running()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), tq.is_running())
        """,
        tmp_path,
    )
    assert said == "7 True\n"


@pytest.mark.parametrize("scheme", ["sqlite:///", "file://"])
def test_a_task_that_runs_when_the_program_exits_completes(tmp_path: Path, scheme: str) -> None:
    store = f"{scheme}{tmp_path}/store"
    said = run_script(
        f"""
        import threading
        from qo import tq

        started, exits = threading.Event(), threading.Event()
        threading._register_atexit(exits.set)  # this early, so that the worker cannot end before

        def work(_):
            started.set()
            exits.wait(60)

        tq.init({store!r})
        tq("t").set_worker(work)
        tq("t").add(1)
        started.wait(60)
        """,
        tmp_path,
    )
    assert said == ""
    with sync.connect(store) as client:
        assert [(task.status, task.attempt) for task in client.list()] == [(Status.COMPLETED, 1)]
        assert client.workers() == []
