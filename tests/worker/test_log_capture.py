"""The log lines of handlers: they carry their task, and the last ones are stored with the attempt."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.client import Client
from qo.engines import open_engine
from qo.executors.log_capture import MAX_LINES, log_text
from qo.executors.run import Run
from qo.log_output import JsonFormatter, TextFormatter
from qo.model import RetryPolicy, Status, created
from qo.model.text import LOG_LIMIT, storable_log
from qo.tasks import HandlerOptions, make_handler
from qo.testing.samples import new
from qo.worker import WorkerSettings
from tests.worker.bench import Bench
from tests.worker.reporters import leaves_a_logger, waits_for_the_logger
from tests.worker.stoppable import alogs, dies, log, logs

QUICK = RetryPolicy(initial=0.01, max=0.02)


async def lines(client: Client, task_id: str) -> list[tuple[int, str]]:
    """The attempts with lines, and the lines without their times."""
    events = [event for event in await client.history(task_id) if event.log]
    return [(event.attempt, "\n".join(line[25:] for line in (event.log or "").split("\n"))) for event in events]


@pytest.mark.parametrize(("executor", "handler"), [("async", alogs), ("thread", logs), ("process", logs)])
async def test_each_attempt_keeps_its_lines_in_each_executor(bench: Bench, executor: str, handler: object) -> None:
    bench.handle(handler, "work", executor=executor)  # type: ignore[arg-type]
    task_id = await bench.submit("work", retry=QUICK)
    await bench.run_all([task_id], capture_logs=True)
    assert await lines(bench.client, task_id) == [(1, "warning shop: attempt 1"), (2, "warning shop: attempt 2")]


async def test_a_child_process_that_dies_leaves_its_lines(bench: Bench) -> None:
    bench.handle(dies, "work", executor="process")
    task_id = await bench.submit("work", max_retries=0)
    await bench.run_all([task_id], capture_logs=True)
    assert await lines(bench.client, task_id) == [(1, "warning shop: last words")]


async def test_a_thread_that_outlives_its_handler_in_a_child_process_logs_nothing_for_the_next_task(
    bench: Bench, tmp_path: Path
) -> None:
    bench.handle(leaves_a_logger, "first", executor="process")
    bench.handle(waits_for_the_logger, "second", executor="process")
    ids = [await bench.submit(name, {"folder": str(tmp_path)}) for name in ("first", "second")]
    tasks = await bench.run_all(ids, capture_logs=True, concurrency=1)
    assert [task.status for task in tasks] == [Status.COMPLETED] * 2
    assert await lines(bench.client, ids[0]) == []
    assert await lines(bench.client, ids[1]) == [(1, "warning shop: of the second task")]


async def test_an_attempt_that_times_out_keeps_its_lines(bench: Bench) -> None:
    def waits() -> None:
        log.warning("waiting")
        while True:
            threading.Event().wait(0.01)

    bench.handle(waits)
    task_id = await bench.submit("waits", max_retries=0, timeout=0.1)
    (task,) = await bench.run_all([task_id], capture_logs=True)
    assert task.status is Status.FAILED
    assert await lines(bench.client, task_id) == [(1, "warning shop: waiting")]


async def test_lines_of_concurrent_tasks_are_kept_apart_and_those_of_qo_are_left_out(bench: Bench) -> None:
    async def says(word: str) -> None:
        log.warning(word)
        logging.getLogger("qo.worker").warning("not of the handler")

    bench.handle(says)
    ids = [await bench.submit("says", {"word": f"word {n}"}) for n in range(20)]
    await bench.run_all(ids, capture_logs=True, concurrency=5)
    for n, task_id in enumerate(ids):
        assert await lines(bench.client, task_id) == [(1, f"warning shop: word {n}")]


async def test_only_the_last_lines_are_kept(bench: Bench) -> None:
    def many() -> None:
        for n in range(3 * MAX_LINES):
            log.warning("line %d", n)

    def long() -> None:
        for _ in range(10):
            log.warning("x" * 5000)

    bench.handle(many)
    bench.handle(long)
    ids = [await bench.submit(name) for name in ("many", "long")]
    await bench.run_all(ids, capture_logs=True)
    ((_, kept),) = await lines(bench.client, ids[0])
    assert kept.split("\n")[1] == f"warning shop: line {2 * MAX_LINES}"
    assert kept.split("\n")[-1] == f"warning shop: line {3 * MAX_LINES - 1}"
    (event,) = [event for event in await bench.client.history(ids[0]) if event.log]
    assert (event.log or "").startswith(f"({2 * MAX_LINES:,} earlier lines not kept)\n")
    (event,) = [event for event in await bench.client.history(ids[1]) if event.log]
    assert 10_000 < len(event.log or "") <= LOG_LIMIT


async def test_nothing_is_captured_by_default(bench: Bench) -> None:
    before = list(logging.getLogger().handlers)
    bench.handle(logs, "work")
    task_id = await bench.submit("work", retry=QUICK)
    await bench.run_all([task_id])
    assert await lines(bench.client, task_id) == []
    await bench.run_all([await bench.submit("work", retry=QUICK)], capture_logs=True)
    assert logging.getLogger().handlers == before
    assert not WorkerSettings().capture_logs


async def test_a_line_names_its_task_in_text_and_in_json(bench: Bench, records: list[str]) -> None:
    bench.handle(logs, "work")
    task_id = await bench.submit("work", retry=QUICK)
    await bench.run_all([task_id])
    text, machine = records[0], json.loads(records[1])
    assert text.endswith(f"warning work {task_id}: attempt 1")
    known = {name: machine[name] for name in ("task_id", "type", "attempt", "logger", "message")}
    assert known == {"task_id": task_id, "type": "work", "attempt": 1, "logger": "shop", "message": "attempt 1"}


@pytest.fixture
def records() -> Iterator[list[str]]:
    """What both formatters make of each record of `shop`."""
    made: list[str] = []

    class Both(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            made.extend([TextFormatter(colour=False).format(record), JsonFormatter().format(record)])

    handler = Both()
    log.addHandler(handler)
    yield made
    log.removeHandler(handler)


@pytest.mark.parametrize("letter", ["x", "é"])
def test_of_a_line_that_is_too_long_the_end_is_kept(letter: str) -> None:
    for earlier in ([], ["before"]):
        stored = storable_log(_kept([*earlier, f"{letter * LOG_LIMIT}end"])) or ""
        assert stored.endswith(f"{letter}end")
        assert LOG_LIMIT - 100 < len(stored.encode()) <= LOG_LIMIT
        assert stored.startswith("(1 earlier line not kept)\n" if earlier else letter)


@pytest.mark.parametrize("letter", ["x", "é"])
def test_the_store_keeps_the_number_of_dropped_lines(letter: str) -> None:
    stored = storable_log(_kept([letter * 1000] * MAX_LINES)) or ""
    notice, *kept = stored.split("\n")
    assert notice == f"({MAX_LINES - len(kept)} earlier lines not kept)"
    assert kept == [letter * 1000] * (LOG_LIMIT // (len(letter.encode()) * 1000 + 1))


def test_short_lines_after_long_ones_leave_no_more_than_the_limit() -> None:
    kept = _kept(["y" * (LOG_LIMIT // 2), *["z" * 150 for _ in range(MAX_LINES - 1)]])
    assert kept.startswith("(1 earlier line not kept)\n") and kept.count("z" * 150) == MAX_LINES - 1
    assert _kept(["z" * 150 for _ in range(MAX_LINES)]).count("\n") == MAX_LINES - 1


def _kept(lines: list[str]) -> str:
    attempt = _attempt()
    for line in lines:
        attempt.add_log_line(line)
    return log_text(attempt.log_lines, attempt.dropped_lines) or ""


def test_lines_of_several_threads_of_an_attempt_are_all_kept() -> None:
    attempt, together = _attempt(), threading.Barrier(MAX_LINES)

    def adds(number: int) -> None:
        together.wait()
        attempt.add_log_line(f"line {number}")

    threads = [threading.Thread(target=adds, args=(number,)) for number in range(MAX_LINES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(attempt.log_lines) == sorted(f"line {number}" for number in range(MAX_LINES))
    assert attempt.dropped_lines == 0


def _attempt() -> Run:
    handler = make_handler(lambda: None, type="work", options=HandlerOptions())
    return Run(created(new(0), 0.0), handler, lambda *_: None)


async def test_two_workers_of_a_process_store_each_line_once(bench: Bench) -> None:
    bench.handle(logs, "work")
    before = list(logging.getLogger().handlers)
    ids = [await bench.submit("work", retry=QUICK) for _ in range(20)]
    async with bench.working(capture_logs=True):
        await bench.run_all(ids, capture_logs=True)
    for task_id in ids:
        assert await lines(bench.client, task_id) == [(1, "warning shop: attempt 1"), (2, "warning shop: attempt 2")]
    assert logging.getLogger().handlers == before


async def test_lines_reach_each_store(store: str) -> None:
    async with Client(open_engine(store)) as client:
        bench = Bench(client)
        bench.handle(alogs, "work")
        task_id = await bench.submit("work", retry=QUICK)
        await bench.run_all([task_id], capture_logs=True)
        assert await lines(client, task_id) == [(1, "warning shop: attempt 1"), (2, "warning shop: attempt 2")]
