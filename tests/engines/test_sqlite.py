import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.address import path_of
from qo.engines.sqlite.watch import FileWatch, slower
from qo.errors import InvalidSetting, StorageError
from qo.model import ANY, Filter, Position, Status, after_error, archive, cancel, complete, release
from qo.sqlite_tables.reader import SqliteReader
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.conditions import delay, until
from tests.engines.damage import damage_sqlite


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "qo.db", clock)
    await engine.open()
    yield engine
    await engine.close()


class TestSqlite(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteEngine]:
        engine = SqliteEngine(tmp_path / "qo.db", clock)
        await engine.open()
        yield engine
        await engine.close()

    async def damage(self, engine: Engine, task_id: str) -> None:
        await damage_sqlite(engine, task_id, "retry = '{\"half'")


def connection(engine: SqliteEngine, which: int = 0) -> apsw.Connection:
    """The connection of the writer (0), the reader (1) or the watch (2)."""
    return engine.connections[which]


# --- the address


def test_a_url_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of("sqlite:///a/b.db") == tmp_path / "a/b.db"
    assert path_of("sqlite:////var/lib/my%20queue.db") == Path("/var/lib/my queue.db")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "sqlite:///queue.db"),
        ("sqlite:///", "does not name a file"),
        ("sqlite://queue.db", "does not name a file"),
        ("sqlite:///queue.db?mode=rw", "no options"),
        ("sqlite:///:memory:", "memory://"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        open_engine(url)


# --- the cost of a claim does not depend on what waits


@contextmanager
def statements(db: apsw.Connection) -> Iterator[list[tuple[str, int]]]:
    """The statements that run meanwhile, with the number of virtual machine steps."""
    seen: list[tuple[str, int]] = []

    def note(event: dict[str, Any]) -> None:
        seen.append((event["sql"], event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]))

    db.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    yield seen
    db.trace_v2(0, None)


async def claim_steps(engine: SqliteEngine) -> int:
    with statements(connection(engine)) as seen:
        assert len(await claim(engine, types=("t",), limit=10)) == 10
    return sum(steps for _, steps in seen)


async def test_a_claim_costs_the_same_at_any_depth(engine: SqliteEngine) -> None:
    await engine.add([new(n) for n in range(100)])
    await claim_steps(engine)
    shallow = await claim_steps(engine)
    await engine.add([new(1_000 + n) for n in range(20_000)])
    assert await claim_steps(engine) < 1.5 * shallow
    await engine.add([new(100_000 + n, delay=3600.0, priority=0) for n in range(20_000)])
    assert await claim_steps(engine) < 1.5 * shallow
    await engine.add([new(200_000 + n, type="foreign", priority=0) for n in range(20_000)])
    assert await claim_steps(engine) < 1.5 * shallow
    with statements(connection(engine, 2)) as seen:
        await engine.wait(claim_request(types=("t",)), 0)
    assert sum(steps for _, steps in seen) < shallow


def plan(db: apsw.Connection, sql: str, values: tuple[Any, ...]) -> str:
    return "\n".join(row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, values))


@pytest.mark.parametrize(
    ("where", "indexes"),
    [
        (Filter(), ["tasks_listed"]),
        (Filter(queues=("q",)), ["tasks_listed"]),
        (Filter(statuses=(Status.FAILED,)), ["tasks_finished (status=?"]),
        (Filter(statuses=(Status.RUNNING,)), ["tasks_leased"]),
        (Filter(statuses=(Status.PENDING,)), ["tasks_ready", "tasks_coming"]),
        (Filter(statuses=(Status.RUNNING, Status.ARCHIVED)), ["tasks_leased", "tasks_finished (status=?"]),
        (Filter(expired_for=5.0), ["tasks_leased (lease_expires_at<?)"]),
        (Filter(finished_for=5.0), ["tasks_finished (status=? AND created_at<?)"]),
    ],
)
async def test_a_search_uses_the_index_made_for_it(engine: SqliteEngine, where: Filter, indexes: list[str]) -> None:
    reading = SqliteReader(connection(engine, 1))
    sql, values = reading.query(where, 10, None, 1e9)
    used = plan(connection(engine, 1), sql, values)
    assert all(index in used for index in indexes), used
    assert "SCAN tasks\n" not in used + "\n", used
    later, values = reading.query(where, 10, Position(1.5, task_id(0)), 1e9)
    assert all(index.partition(" ")[0] in plan(connection(engine, 1), later, values) for index in indexes)


async def test_a_page_of_finished_tasks_costs_the_same_at_any_depth(engine: SqliteEngine, clock: ManualClock) -> None:
    async def finish(start: int, size: int) -> None:
        await engine.add([new(start + n) for n in range(size)])
        await engine.apply([complete(task) for task in await claim(engine, limit=size)])
        clock.advance(10)

    async def steps(where: Filter) -> int:
        with statements(connection(engine, 1)) as seen:
            assert len(await engine.find(where, limit=10)) == 10
        return sum(steps for _, steps in seen)

    await finish(0, 50)
    questions = [Filter(finished_for=5.0), Filter(statuses=(Status.COMPLETED,)), Filter()]
    shallow = [await steps(where) for where in questions]
    await finish(1_000, 5_000)
    for where, before in zip(questions, shallow, strict=True):
        assert await steps(where) < 1.5 * before


async def test_searches_find_the_same_with_few_and_many_pending_tasks(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.add([new(n, delay=float(n % 2)) for n in range(9)])
    await engine.apply([complete(await claim_one(engine)), after_error(await claim_one(engine), "e", random=0.5)])
    where = Filter(statuses=(Status.PENDING, Status.COMPLETED))
    few = await engine.find(where, limit=6)
    monkeypatch.setattr("qo.sqlite_tables.reader._MANY_PENDING", 0)
    assert few == await engine.find(where, limit=6)
    assert len(few) == 6


# --- the cost of a submit


async def test_a_submit_writes_few_pages_and_runs_few_statements(engine: SqliteEngine, tmp_path: Path) -> None:
    """The task, its three index entries, its first event and the count. Its lane changes only if it comes first."""
    await engine.add([new("first")])
    before = (tmp_path / "qo.db-wal").stat().st_size
    with statements(connection(engine)) as seen:
        for n in range(50):
            await engine.add([new(n)])
    assert len(seen) == 6 * 50
    assert (tmp_path / "qo.db-wal").stat().st_size - before < 6.5 * 50 * 4120


async def test_another_process_sees_which_lane_comes_first(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    await engine.add([new(0, type="a"), new(1, type="b"), new(2, type="a"), new(3, type="b")])
    assert [task.id for task in await claim(other, limit=1)] == [task_id(0)]
    await engine.add([new(4, type="b", delay=60.0)])  # not ready
    await engine.add([new(5, type="b")])  # after the first one
    await engine.add([new(6, type="a", ageing=0.0)])  # before the first one
    assert [task.id for task in await claim(other, limit=1)] == [task_id(6)]
    assert [task.id for task in await claim(other, limit=1)] == [task_id(1)]
    await engine.add([new(7, type="c")])  # a new lane
    assert [task.id for task in await claim(other, limit=9)] == [task_id(n) for n in (2, 3, 5, 7)]
    await other.close()


async def test_numbers_and_lanes_of_another_process_are_read(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    """A process uses cached rows only while no other process writes."""
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    for n in range(6):
        one, another = (engine, other) if n % 2 else (other, engine)
        assert await one.add([new(2 * n, type=f"type{n}")]) == [(task_id(2 * n), True)]
        assert await another.add([new(2 * n + 1, type=f"type{n}")]) == [(task_id(2 * n + 1), True)]
        assert await another.add([new(2 * n)]) == [(task_id(2 * n), False)]
    assert len(await engine.count()) == 6
    assert len(await claim(other, limit=20)) == 12
    await other.close()


# --- what is kept


async def test_any_text_and_bytes_are_stored_unchanged(engine: SqliteEngine) -> None:
    odd = 'quote " back \\ line\n\u2028 é 😀'
    await engine.add([new(0, payload=bytes(range(256)), trace_id=odd), new(1, payload=b"")])
    tasks = sorted(await claim(engine), key=lambda task: task.id)
    assert [task.payload for task in tasks] == [bytes(range(256)), b""]
    retry = replace(after_error(tasks[0], "", random=0.1), error=odd)
    await engine.apply([retry, complete(tasks[1], bytes(range(255, -1, -1)))])
    first, second = await stored(engine, 0), await stored(engine, 1)
    assert (first.error, first.trace_id, second.result) == (odd, odd, bytes(range(255, -1, -1)))


async def test_a_batch_of_several_statements_is_complete(engine: SqliteEngine) -> None:
    assert all(added.new for added in await engine.add([new(n, payload=b"%d" % n) for n in range(1_333)]))
    tasks = await claim(engine, limit=1_000)
    assert all(task.payload == b"%d" % int(task.id[:8], 16) for task in tasks)
    assert all(await engine.apply([complete(task, task.payload) for task in tasks]))
    found = await engine.find(Filter(), limit=2_000)
    assert [task.id for task in found] == [task_id(n) for n in reversed(range(1_333))]
    assert sum(task.result == task.payload for task in found) == 1_000


async def test_an_engine_reads_what_another_wrote(engine: SqliteEngine, clock: ManualClock, tmp_path: Path) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    await engine.add([new(0, type="seen")])
    await other.add([new(1, type="unseen by the first")])
    assert {task.type for task in await engine.find(Filter(), limit=9)} == {"seen", "unseen by the first"}
    assert len(await engine.claim(claim_request())) == 2
    await other.close()
    with pytest.raises(StorageError, match="not open"):
        await other.count()


async def test_an_engine_can_be_opened_again_after_closing(engine: SqliteEngine) -> None:
    await engine.add([new()])
    await engine.close()
    await engine.close()
    await engine.open()
    assert (await stored(engine)).status is Status.PENDING


# --- one bad call, and callers who leave


async def test_a_failing_call_does_not_affect_others_in_its_transaction(engine: SqliteEngine, tmp_path: Path) -> None:
    hold = threading.Event()
    connection(engine).set_progress_handler(
        lambda: hold.wait(5) and False, 1
    )  # so that all calls wait for one transaction
    first = asyncio.create_task(engine.add([new("first")]))
    await asyncio.sleep(0)
    bad: Any = object()
    calls = [
        engine.add([new(0, type="u"), new(1, payload=bad)]),
        engine.add([new(2, type="v")]),
        engine.write_note("n", b"x", expected="never was"),
        engine.write_note("n", b"y", expected=ANY),
        engine.add([new(3, trace_id="\ud800")]),
        engine.claim(claim_request(worker_id=bad)),
    ]
    together = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    hold.set()
    wrong, right, conflict, version, unwritable, nobody = await together
    await first
    connection(engine).set_progress_handler(None)
    assert isinstance(wrong, TypeError) and isinstance(unwritable, UnicodeEncodeError) and isinstance(nobody, TypeError)
    assert right == [(task_id(2), True)]
    assert type(conflict).__name__ == "Conflict" and isinstance(version, str)
    found = await engine.find(Filter(), limit=9)
    assert {task.id for task in found} == {task_id("first"), task_id(2)}
    assert sum((await engine.count()).values()) == 2
    assert [finding for finding in await examine(f"sqlite:///{tmp_path}/qo.db") if finding.ok is False] == []


async def test_a_call_cancelled_before_its_transaction_does_nothing(engine: SqliteEngine) -> None:
    await engine.add([new()])
    hold = threading.Event()
    connection(engine).set_progress_handler(lambda: hold.wait(5) and False, 1)
    busy = asyncio.create_task(engine.write_note("n", b"", expected=ANY))
    await delay(0.01)
    leaving = asyncio.create_task(engine.claim(claim_request()))
    await asyncio.sleep(0)
    leaving.cancel()
    hold.set()
    await busy
    await asyncio.gather(leaving, return_exceptions=True)
    connection(engine).set_progress_handler(None)
    assert (await stored(engine)).attempt == 0


async def leave_during_claim(engine: SqliteEngine, then: Callable[[], Any] = lambda: None, **fields: Any) -> Any:
    """Cancel a claim during its transaction."""
    begun, hold = threading.Event(), threading.Event()

    def progress() -> bool:
        begun.set()
        return hold.wait(5) and False

    connection(engine).set_progress_handler(progress, 1)
    leaving = asyncio.create_task(engine.claim(claim_request(**fields)))
    await asyncio.to_thread(begun.wait, 10)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    following = then()
    await asyncio.sleep(0)
    hold.set()
    return following


async def test_a_claim_cancelled_during_its_transaction_releases_its_tasks(engine: SqliteEngine) -> None:
    await engine.add([new()])
    await leave_during_claim(engine)
    await engine.close()
    await engine.open()
    task = await stored(engine)
    assert (task.status, task.attempt, task.failures) == (Status.PENDING, 1, 0)
    assert len(await claim(engine)) == 1


async def test_a_cancelled_claim_that_is_repeated_keeps_its_tasks(engine: SqliteEngine) -> None:
    await engine.add([new()])
    again = await leave_during_claim(
        engine,
        lambda: asyncio.create_task(engine.claim(claim_request(lease_id="mine", is_repeat=True))),
        lease_id="mine",
    )
    (task,) = await again
    await engine.write_note("n", b"", expected=ANY)
    assert await stored(engine) == task
    assert await engine.apply([complete(task)]) == [True]


# --- waiting


async def waited(engine: SqliteEngine, timeout: float = 20, **fields: Any) -> float:
    start = time.perf_counter()
    await engine.wait(claim_request(**fields), timeout)
    return time.perf_counter() - start


async def test_waiting_ends_at_once_when_something_can_be_claimed(engine: SqliteEngine) -> None:
    await engine.add([new()])
    assert await waited(engine) < 5
    await engine.apply([release(await claim_one(engine))])
    assert await waited(engine) < 5


async def test_waiting_does_not_end_for_tasks_that_do_not_match(engine: SqliteEngine) -> None:
    waiting = asyncio.create_task(waited(engine, 0.2, types=("t",), per_type_limits={"full": 0}))
    await delay(0.01)
    await engine.add([new(0, type="u"), new(1, type="full"), new(2, type="t", needs=("gpu",))])
    assert await waiting >= 0.2


async def test_waiting_ends_when_another_engine_adds(engine: SqliteEngine, clock: ManualClock, tmp_path: Path) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    waiting = asyncio.create_task(waited(engine))
    await delay(0.05)
    await other.add([new()])
    assert await waiting < 5
    await other.close()


async def test_waiting_ends_for_a_task_of_this_engine_without_a_poll(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileWatch, "_version", lambda _: 0)
    waiting = asyncio.create_task(waited(engine))
    await delay(0.05)
    await engine.add([new()])
    assert await waiting < 5


async def test_waiting_ends_when_a_task_becomes_due(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    await engine.add([new(0, delay=0.1), new(1, type="u")])
    assert await waited(engine, types=("t",)) < 5
    assert [task.id for task in await claim(engine, types=("t",))] == [task_id(0)]
    await engine.close()


async def test_waiting_at_a_closed_engine_is_refused(engine: SqliteEngine) -> None:
    waiting = asyncio.create_task(engine.wait(claim_request(), 30))
    await delay(0.01)
    await engine.close()
    with pytest.raises(StorageError):
        await waiting


async def test_an_idle_wait_polls_rarely(engine: SqliteEngine) -> None:
    await engine.add([new(0, type="u"), new(1, delay=3600)])
    await waited(engine, 0.3, types=("t",))  # until the polls have slowed down
    with statements(connection(engine, 2)) as seen:
        await waited(engine, 1.0, types=("t",))
    assert 0 < len(seen) < 60  # each takes about 10 µs


def test_polls_are_frequent_while_a_queue_is_in_use_and_slow_down_to_ten_per_second() -> None:
    polls, interval = [0.0], 0.001
    while polls[-1] < 20:
        polls.append(polls[-1] + interval)
        interval = slower(interval)
    assert sum(look < 1 for look in polls) > 30
    assert sum(10 <= look < 20 for look in polls) <= 101


# --- forks and exits


async def test_a_forked_child_must_open_its_own_engine(engine: SqliteEngine) -> None:
    await engine.add([new()])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        answers = []
        for call in (engine.count(), engine.claim(claim_request()), engine.wait(claim_request(), 1)):
            try:
                call.send(None)
                answers.append("no error")
            except StorageError as error:
                answers.append(str(error))
            except BaseException as error:  # noqa: BLE001 - goes to the parent
                answers.append(repr(error))
        os.write(write, "\n".join(answers).encode())
        os._exit(0)
    os.close(write)
    answers = (await asyncio.to_thread(os.read, read, 10_000)).decode().splitlines()
    os.close(read)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert len(answers) == 3 and all("before a fork" in answer for answer in answers), answers
    assert len(await claim(engine)) == 1


async def test_an_unreferenced_engine_ends_its_threads(tmp_path: Path) -> None:
    await asyncio.to_thread(int)  # starts a thread of the event loop's own executor
    before = threading.enumerate()
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    await engine.add([new()])
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in threads] == ["qo sqlite writer", "qo sqlite reader"]
    assert all(thread.daemon for thread in threads)
    del engine
    gc.collect()
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in threads)


async def test_an_unreferenced_engine_closes_its_file(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    await engine.add([new()])
    del engine
    gc.collect()
    await until(lambda: not _open_files(tmp_path))
    assert _names(tmp_path) == ["qo.db"], "the last to close tidies the log away"


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def _open_files(folder: Path) -> list[str]:
    """The open files of this process."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(f"{folder}/")]


async def test_several_event_loops_may_share_an_engine(engine: SqliteEngine) -> None:
    def elsewhere() -> int:
        return len(asyncio.run(engine.add([new(n) for n in range(5)])))

    waiting = asyncio.create_task(waited(engine))
    assert await asyncio.to_thread(elsewhere) == 5
    assert await waiting < 5
    assert await engine.apply([cancel(task_id(0))]) == [True]
    assert await engine.apply([archive(task_id(0))]) == [True]


async def test_a_call_that_fails_after_a_write_is_rolled_back(engine: SqliteEngine) -> None:
    connection(engine).execute(
        """
        CREATE TEMP TRIGGER refuse AFTER INSERT ON tasks WHEN NEW.trace_id = 'late'
        BEGIN SELECT RAISE(FAIL, 'too late'); END
        """
    )  # FAIL keeps the row, so that only the writer can remove it
    answers = await asyncio.gather(
        engine.add([new(0)]), engine.add([new(1, trace_id="late")]), engine.add([new(2)]), return_exceptions=True
    )
    assert isinstance(answers[1], StorageError) and "too late" in str(answers[1])
    assert [task and task.id for task in await engine.get([task_id(n) for n in range(3)])] == [
        task_id(0),
        None,
        task_id(2),
    ]
    assert sum((await engine.count()).values()) == 2


async def test_a_lane_without_tasks_is_removed_and_can_be_added_again(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    try:
        for _ in range(2):
            await engine.add([new(n, type=f"t{n}") for n in range(3)])
            tasks = await claim(other, limit=3)
            assert [task.type for task in tasks] == ["t0", "t1", "t2"]
            await other.apply([complete(task) for task in tasks])
            assert await other.delete([task.id for task in tasks]) == [True] * 3
            assert not any((await engine.count()).values())
    finally:
        await other.close()
    assert len(connection(engine, 1).execute("SELECT n FROM lanes").fetchall()) == 1  # no number is used twice


async def test_a_lane_removed_between_two_claims_does_no_harm(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    try:
        await engine.add([new(0, type="gone"), new(1, type="gone"), new(2, type="kept"), new(3, type="kept")])
        assert (await claim_one(other)).id == task_id(0)  # its cache has another first task in that lane
        (task,) = await claim(engine, limit=1)
        (first,) = await engine.get([task_id(0)])
        assert first is not None
        await engine.apply([complete(task), complete(first)])
        assert await engine.delete([task_id(0), task_id(1)]) == [True, True]
        assert (await claim_one(other)).id == task_id(2)
    finally:
        await other.close()


async def test_a_lane_removed_while_its_last_task_is_read_does_no_harm(engine: SqliteEngine) -> None:
    await engine.add([new(0, type="gone"), new(1, type="kept")])
    task = await claim_one(engine, types=("gone",))
    await engine.apply([complete(task)])
    loop, deleted = asyncio.get_running_loop(), list[bool]()

    def delete(event: dict[str, Any]) -> None:
        if "FROM lanes" in event["sql"] and not deleted:
            deleted.extend(asyncio.run_coroutine_threadsafe(engine.delete([task.id]), loop).result(20))

    connection(engine, 1).trace_v2(apsw.SQLITE_TRACE_STMT, delete)
    (found,) = await engine.get([task.id])
    connection(engine, 1).trace_v2(0, None)
    assert deleted == [True]
    assert found is not None and found.type == "gone"
    assert await engine.get([task.id]) == [None]
