"""The same queue for plain code: it waits instead of awaiting, and it survives a fork."""

import asyncio
import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

import pytest

from qo import sync
from qo.app import App, background_of
from qo.background import LoopThread
from qo.codec import encode_value
from qo.errors import InvalidSetting, InvalidTask, OutcomeUnknown, ResultTimeout, StorageError, TaskNotFound
from qo.model import Filter, Status
from tests.alarms import on_alarm
from tests.client.scripts import run_script
from tests.conditions import TIMEOUT, forever, wait_until


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'qo.db'}"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "qo-sync"]


def test_plain_code_submits_runs_and_reads_tasks(url: str) -> None:
    with sync.connect(url) as client:
        submitted = client.enqueue("t", {"n": 1})
        (task,) = client.dequeue("t")
        assert task.id == submitted.id
        client.heartbeat(task)
        client.ack(task, "done")
        assert client.result(submitted.id) == submitted.result(timeout=1) == "done"
        assert (submitted.new, submitted.status()) == (True, Status.COMPLETED)
        assert client.stats()["completed"] == 1
        assert [event.status.value for event in client.history(task.id)] == ["pending", "running", "completed"]
    assert threads() == []


def test_what_a_queue_hands_out_waits_too(url: str) -> None:
    with sync.connect(url) as client:
        producer, consumer = client.producer("mail"), client.consumer("mail")
        sent = producer.enqueue(1)
        assert sent.id in repr(sent)
        assert (producer.name, [task.id for task in consumer.dequeue()]) == ("mail", [sent.id])
        consumer.ack(sent.id, 2)
        assert sent.result() == 2
        assert client.controls.pause(queues=["mail"]).paused_queues == {"mail"}
        assert client.controls.read().paused_queues == {"mail"}


def test_a_bulk_and_every_page_of_it_come_as_plain_lists(url: str) -> None:
    with sync.connect(url) as client:
        sent = client.submit_many([client.new_task("t", encode_value(n)) for n in range(700)])
        assert [task.id for task in client.all()] == [each.id for each in reversed(sent)]
        for task in client.all(Filter(types=("t",))):
            assert task.id == sent[-1].id
            break
        with pytest.raises(ResultTimeout):
            sent[0].result(timeout=0)


def test_errors_come_to_the_caller(url: str) -> None:
    with sync.connect(url) as client:
        with pytest.raises(InvalidTask, match=r"^payload: "):
            client.enqueue("t", float("nan"))
        with pytest.raises(TaskNotFound):
            client.ack("unknown")
        with pytest.raises(AttributeError):
            client.no_such_method()  # type: ignore[attr-defined]


def test_a_store_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    (tmp_path / "foreign.db").write_bytes(b"not a database " * 100)
    with pytest.raises(StorageError), sync.connect(f"sqlite:///{tmp_path / 'foreign.db'}"):
        raise AssertionError
    assert threads() == []


def test_many_threads_share_one_queue(url: str) -> None:
    with sync.connect(url) as client:
        workers = [threading.Thread(target=client.enqueue, args=("t", n)) for n in range(16)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert client.stats()["pending"] == 16


# --- the thread


async def _name() -> str:
    return threading.current_thread().name


def test_a_loop_thread_starts_when_first_needed_and_again_after_a_stop() -> None:
    thread = LoopThread("mine")
    thread.stop()
    assert thread.run(_name()) == "mine"
    thread.stop()
    thread.stop()
    assert thread.run(_name()) == "mine"
    thread.stop()


async def test_coroutines_run_there_and_are_awaited_here() -> None:
    thread = LoopThread("mine")
    assert await thread.arun(_name()) == "mine"
    assert await asyncio.wrap_future(thread.submit(_name())) == "mine"
    await asyncio.to_thread(thread.stop)


def test_waiting_for_oneself_is_refused_instead_of_hanging() -> None:
    thread = LoopThread("mine")

    async def inside() -> str:
        return thread.run(_name())

    with pytest.raises(InvalidSetting, match="would wait forever; await the async method"):
        thread.run(inside())
    thread.stop()


def test_a_stop_ends_the_calls_that_wait() -> None:
    """Also one that does not end when it is cancelled, as a call of a store that does not answer."""
    thread, entered = LoopThread("mine"), [threading.Event(), threading.Event()]

    async def wait() -> None:
        entered[0].set()
        await forever()

    async def stay() -> None:
        entered[1].set()
        while True:
            with suppress(asyncio.CancelledError):
                await forever()

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(thread.run, wait()), pool.submit(thread.run, stay())]
        assert all(event.wait(TIMEOUT) for event in entered)
        thread.stop()
        for call in calls:
            with pytest.raises(OutcomeUnknown, match="was closed during this call"):
                call.result(TIMEOUT)
    assert thread.run(_name()) == "mine"
    thread.stop()


async def test_a_stop_does_not_look_like_a_cancellation_of_the_awaiting_code() -> None:
    thread, entered = LoopThread("mine"), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def wait() -> None:
        loop.call_soon_threadsafe(entered.set)
        await forever()

    call = asyncio.create_task(thread.arun(wait()))
    await entered.wait()
    await asyncio.to_thread(thread.stop)
    with pytest.raises(OutcomeUnknown):
        await call


async def test_the_error_of_a_call_whose_caller_was_cancelled_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    thread, entered = LoopThread("mine"), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def fails() -> None:
        loop.call_soon_threadsafe(entered.set)
        try:
            await forever()
        except asyncio.CancelledError:
            raise StorageError("the store is away") from None

    caller = asyncio.create_task(thread.arun(fails()))
    await entered.wait()
    caller.cancel()
    await asyncio.wait([caller])
    await thread.arun(_name())  # after the call has failed
    gc.collect()
    await asyncio.to_thread(thread.stop)
    assert caplog.text == ""


def interrupt_wait(_number: int, frame: FrameType | None) -> None:
    """Ctrl-C, if the main thread waits for a call."""
    while frame is not None:
        if frame.f_code is Future.result.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back


def test_an_interrupted_wait_ends_its_call(url: str) -> None:
    async def calls() -> int:
        return len(asyncio.all_tasks()) - 1

    app = App(url)
    background, handle = background_of(app), app.enqueue("t")
    with closing(app):
        for _ in range(3):
            with on_alarm(interrupt_wait, 0.02, 0.02), pytest.raises(KeyboardInterrupt):
                handle.result()
        wait_until(lambda: background.run(calls()) == 0)


def test_an_interrupted_dequeue_takes_no_task(url: str) -> None:
    with sync.connect(url) as client:
        with on_alarm(interrupt_wait, 0.02, 0.02), pytest.raises(KeyboardInterrupt):
            client.dequeue("t", wait=600)
        handle = client.enqueue("t")
        (task,) = client.dequeue("t", wait=60)
        assert (task.id, task.attempt) == (handle.id, 1)


def test_a_forked_child_starts_its_own_loop(tmp_path: Path) -> None:
    said = run_script(
        """
        import os
        from qo.background import LoopThread

        thread = LoopThread("mine")

        async def where():
            return os.getpid()

        assert thread.run(where()) == os.getpid()
        child = os.fork()
        if child == 0:
            ok = thread.run(where()) == os.getpid() and thread.run(where()) == os.getpid()
            thread.stop()
            os._exit(0 if ok else 1)
        _, status = os.waitpid(child, 0)
        assert thread.run(where()) == os.getpid()
        thread.stop()
        print(os.waitstatus_to_exitcode(status))
        """,
        tmp_path,
    )
    assert said == "0\n"
