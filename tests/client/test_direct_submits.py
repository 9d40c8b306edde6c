"""A single task from plain code is written without an event loop, with the same guarantees as on one."""

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from qo.app import App
from qo.client import Client
from qo.engines.sqlite.connection_thread import ConnectionThread
from qo.engines.sqlite.engine import SqliteEngine
from qo.errors import KeyReused, OutcomeUnknown, StorageError, TaskNotFound, WrongStatus
from qo.model import Added, NewTask, Status
from qo.sync import SyncClient
from tests.alarms import on_alarm
from tests.client.scripts import run_script
from tests.conditions import wait_until


class Recorded(SqliteEngine):
    """Remembers which threads wrote directly."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writers: list[threading.Thread] = []

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        self.writers.append(threading.current_thread())
        return super().add_directly(tasks)


@pytest.fixture
def engine(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "qo.db")


def test_a_task_bypasses_the_event_loop_once_its_type_is_known(engine: Recorded) -> None:
    with SyncClient(Client(engine)) as client:
        client.enqueue("t", 0)  # the first of its type goes through the loop, which may look at the limit of types
        handles = [client.enqueue("t", n) for n in range(1, 4)]
        assert engine.writers == [threading.current_thread()] * 3
        assert [handle.new for handle in handles] == [True] * 3
        assert client.stats()["pending"] == 4


def test_idempotency_keys_hold(engine: Recorded) -> None:
    with SyncClient(Client(engine)) as client:
        first = client.enqueue("t", 1, idempotency_key="k")
        again = client.enqueue("t", 1, idempotency_key="k")
        assert (again.id, again.new) == (first.id, False)
        with pytest.raises(KeyReused, match="another payload"):
            client.enqueue("t", 2, idempotency_key="k")
        assert len(engine.writers) == 2


async def test_a_thread_submits_while_a_loop_runs(engine: Recorded) -> None:
    with SyncClient(Client(engine)) as client:
        client.enqueue("t")
        await asyncio.gather(*(asyncio.to_thread(client.enqueue, "t", n) for n in range(20)))
        client.enqueue("t")  # blocks this loop, as it says, and not the client's own
        assert client.stats()["pending"] == 22


def test_two_clients_of_one_process_write_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with SyncClient(Client(SqliteEngine(path))) as one, SyncClient(Client(SqliteEngine(path))) as other:
        for n in range(5):
            one.enqueue("t", n)
            other.enqueue("t", n)
        assert one.stats()["pending"] == other.stats()["pending"] == 10


def test_a_closed_client_refuses(engine: Recorded) -> None:
    client = SyncClient(Client(engine))
    with client:
        client.enqueue("t")
        client.enqueue("t")
    with pytest.raises(StorageError, match="not open"):
        engine.add_directly([client.new_task("t", b"1")])


FORKING = """
import os
import qo

app = qo.App()

@app.task
def work(n: int) -> None: ...

work.enqueue(0)
work.enqueue(1)
child = os.fork()
work.enqueue(2)
work.enqueue(3)
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(len(app.tasks()))
app.close()
if not child:
    os._exit(0)
"""


def test_a_forked_child_opens_its_own_store(tmp_path: Path) -> None:
    assert run_script(FORKING, tmp_path, QO_URL=f"sqlite:///{tmp_path / 'qo.db'}").split() == ["6"]


FORKING_WITH_THREADS = """
import os, threading, qo

app = qo.App(os.environ["QO_URL"])
app.enqueue("t")


def submit_from_threads() -> int:
    barrier, errors = threading.Barrier(8), []

    def submit():
        barrier.wait()
        try:
            app.enqueue("t")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(errors)


failed = 0
for _ in range(25):
    child = os.fork()
    if not child:
        os._exit(submit_from_threads())
    failed += os.waitpid(child, 0)[1] != 0
print(failed, len(app.tasks(limit=1000)))
"""


def test_threads_of_a_forked_child_share_one_client_of_its_own(tmp_path: Path) -> None:
    """Without a lock that survives the fork, threads that start together open several."""
    script = run_script(FORKING_WITH_THREADS, tmp_path, QO_URL=f"sqlite:///{tmp_path / 'qo.db'}")
    assert script.split() == ["0", str(1 + 25 * 8)]


# --- the connection's owner


class Stubborn:
    """Serves calls of the form `lambda held: ...`; an interrupt is raised while it serves the first batch."""

    def __init__(self) -> None:
        self.entered, self.gate, self.batches = threading.Event(), threading.Event(), list[int]()
        self.interrupt: type[BaseException] | None = None

    def serve(self, calls: Sequence[object]) -> None:
        if not calls:
            return
        self.batches.append(len(calls))
        self.entered.set()
        self.gate.wait(30)
        if self.interrupt is not None:
            error, self.interrupt = self.interrupt, None
            raise error
        for call in calls:
            call.answer = call.work(None)  # type: ignore[attr-defined]


def _in_threads(owner: ConnectionThread, number: int, answers: list[object]) -> list[threading.Thread]:
    def call(n: int) -> None:
        try:
            answers.append(owner.call(lambda _: n))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            answers.append(type(error))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    return threads


def test_calls_that_wait_together_are_served_together() -> None:
    stub = Stubborn()
    owner, answers = ConnectionThread("test", stub.serve), list[object]()
    first = _in_threads(owner, 1, answers)
    assert stub.entered.wait(30)
    rest = _in_threads(owner, 8, answers)
    wait_until(lambda: owner.waiting == 8)
    stub.gate.set()
    for thread in (*first, *rest):
        thread.join()
    assert stub.batches == [1, 8]
    assert sorted(map(str, answers)) == sorted(map(str, [0, *range(8)]))
    owner.stop()
    owner.join()


def test_a_writer_that_breaks_leaves_no_caller_waiting() -> None:
    stub = Stubborn()
    stub.interrupt = MemoryError
    stub.gate.set()
    owner = ConnectionThread("test", stub.serve)
    with pytest.raises(OutcomeUnknown, match="MemoryError"):
        owner.call(lambda _: 1)
    assert owner.call(lambda _: 2) == 2
    owner.stop()
    owner.join()
    with pytest.raises(StorageError, match="is closed"):
        owner.call(lambda _: 3)


def test_an_interrupt_ends_the_wait_of_its_own_caller_only() -> None:
    stub = Stubborn()
    owner, answers = ConnectionThread("test", stub.serve), list[object]()
    others = _in_threads(owner, 1, answers)
    assert stub.entered.wait(30)  # the thread of the connection is at work
    with on_alarm(signal.default_int_handler, 0.05), pytest.raises(KeyboardInterrupt):
        owner.call(lambda _: "interrupted")
    stub.gate.set()
    others[0].join()
    assert answers == [0] and owner.call(lambda _: 2) == 2
    owner.stop()
    owner.join()


@pytest.fixture
def no_task_log() -> Iterator[None]:
    """A handler of a log has a lock. A signal that interrupts a thread in a log call must not wait for another thread
    that logs, whatever it calls.
    """
    log = logging.getLogger("qo.tasks")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


@pytest.mark.usefixtures("no_task_log")
def test_a_signal_handler_may_use_the_client_whose_write_it_interrupts(engine: Recorded) -> None:
    """It submits, directly and through the loop, while a write of the same thread waits."""
    with SyncClient(Client(engine)) as client:
        client.enqueue("t")
        handled = list[int]()

        def handle(*_: object) -> None:
            client.enqueue("t")
            client.enqueue(f"new{len(handled)}")
            handled.append(1)
            signal.setitimer(signal.ITIMER_REAL, 0.02)  # a fixed interval would interrupt a slow handler by itself

        with on_alarm(handle, 0.001):
            while len(handled) < 10:
                client.enqueue("t")
        assert client.stats()["pending"] >= 1 + 2 * 10


# --- by id, through an app


def test_an_app_submits_reads_cancels_and_replays_by_id(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'qo.db'}")

    @app.task(queue="mail", max_retries=7)
    def send(to: str) -> None: ...

    handle = app.enqueue("send", {"to": "a"}, priority="high")
    task = app.get(handle.id)
    assert task is not None and (task.queue, task.max_retries, task.priority) == ("mail", 7, 0)
    assert app.enqueue("declared.elsewhere", [1]).status() is Status.PENDING
    app.cancel(handle.id)
    assert handle.status() is Status.CANCELLED
    with pytest.raises(WrongStatus):
        handle.cancel()
    app.replay(handle.id)
    assert handle.refresh().status is Status.PENDING
    assert app.get("00000000-0000-7000-8000-000000000000") is None
    with pytest.raises(TaskNotFound):
        app.cancel("00000000-0000-7000-8000-000000000000")
    app.close()


async def test_the_same_is_awaited(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'qo.db'}")
    handle = await app.aenqueue("t", 1)
    assert await handle.astatus() is Status.PENDING
    await handle.acancel()
    await app.areplay(handle.id)
    await app.acancel(handle.id)
    found = await app.aget(handle.id)
    assert found is not None and found.status is (await handle.arefresh()).status is Status.CANCELLED
    assert [task.id for task in await app.atasks()] == [handle.id]
    await asyncio.to_thread(app.close)


async def test_a_handle_of_a_client_is_awaited(tmp_path: Path) -> None:
    async with Client(SqliteEngine(tmp_path / "qo.db")) as client:
        handle = await client.enqueue("t", 1)
        assert await handle.status() is Status.PENDING
        await handle.cancel()
        assert (await handle.refresh()).status is Status.CANCELLED
        await client.delete(handle.id)
        with pytest.raises(TaskNotFound):
            await handle.refresh()
