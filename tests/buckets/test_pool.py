"""The thread pool of a bucket: every call runs once, and its result goes to the event loop of the caller."""

import asyncio
import threading
from functools import partial

import pytest

from qo.buckets.thread_pool import ThreadPool
from tests.conditions import until

TIMEOUT = 10.0  # seconds until a test gives up


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("qo-bucket")}


async def test_more_calls_than_threads_are_all_answered() -> None:
    pool, before = ThreadPool(3), running()
    async with asyncio.timeout(TIMEOUT):
        for _ in range(20):  # uses both idle threads and new ones
            assert await asyncio.gather(*(pool.run(divmod, n, 7) for n in range(50))) == [
                divmod(n, 7) for n in range(50)
            ]
    assert len(running() - before) <= 3


async def test_an_error_goes_to_its_caller_alone() -> None:
    pool = ThreadPool(2)
    answers = await asyncio.gather(pool.run(int, "x"), pool.run(int, "ff", base=16), return_exceptions=True)
    assert isinstance(answers[0], ValueError)
    assert answers[1] == 255


async def test_a_call_that_is_cancelled_while_it_waits_does_not_run() -> None:
    pool, gate, made = ThreadPool(1), threading.Event(), list[int]()
    first = asyncio.create_task(pool.run(gate.wait, TIMEOUT))
    second = asyncio.create_task(pool.run(made.append, 2))
    await asyncio.sleep(0)
    second.cancel()
    third = asyncio.create_task(pool.run(made.append, 3))
    await asyncio.sleep(0)
    gate.set()
    assert await first
    await third
    assert made == [3]
    with pytest.raises(asyncio.CancelledError):
        await second


def test_successive_event_loops_may_share_a_pool() -> None:
    pool = ThreadPool(2)
    assert [asyncio.run(pool.run(partial(pow, n), 2)) for n in range(4)] == [0, 1, 4, 9]


async def test_an_idle_thread_ends() -> None:
    pool, gate, before = ThreadPool(4), threading.Barrier(4), running()
    await asyncio.gather(*(pool.run(gate.wait, TIMEOUT) for _ in range(4)))
    assert len(running() - before) == 4
    await ended(pool)
    del pool
    await until(lambda: not running() - before)  # the interpreter's exit would wait for a thread that does not end


async def ended(pool: ThreadPool) -> None:
    await until(lambda: not pool.threads)


async def test_more_work_than_threads_leaves_nothing_behind() -> None:
    """Calls that arrive while all threads are busy start no threads beyond the limit, and all threads end."""
    pool, before = ThreadPool(2), running()
    for _ in range(20):
        async with asyncio.timeout(TIMEOUT):
            counts = await asyncio.gather(*(pool.run(getattr, pool, "threads") for _ in range(50)))
        assert max(counts) <= 2
    await ended(pool)
    del pool
    await until(lambda: not running() - before)


@pytest.mark.parametrize("idle_timeout", [0.0, 0.0005])
async def test_a_thread_that_is_about_to_end_still_runs_the_call_it_was_given(
    idle_timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.buckets.thread_pool._IDLE_TIMEOUT", idle_timeout)
    pool, before = ThreadPool(3), running()
    async with asyncio.timeout(TIMEOUT):
        for n in range(300):
            assert await asyncio.gather(*(pool.run(divmod, n, k) for k in (1, 2, 3, 4))) == [
                divmod(n, k) for k in (1, 2, 3, 4)
            ]
            await pool.run(int)
    await ended(pool)
    del pool
    await until(lambda: not running() - before)
