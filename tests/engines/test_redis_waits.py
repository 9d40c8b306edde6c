"""Waiting for a task in Redis."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from redis import Redis

from qo.engines.redis import RedisEngine
from qo.testing.samples import claim, claim_request, new
from tests.conditions import TIMEOUT, until
from tests.engines.redis_engines import fresh, opened
from tests.servers.redis import Server

ROOT = Path(__file__).parents[2]


async def test_waiting_ends_when_a_delayed_task_is_due(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.add([new(delay=0.15)])
        assert await claim(engine) == []
        await asyncio.wait_for(engine.wait(claim_request(), 600), TIMEOUT)
        assert len(await claim(engine)) == 1


async def test_waiting_ends_for_a_task_that_is_due_earlier_than_expected(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.add([new(0, delay=900.0)])
        waiting = asyncio.create_task(engine.wait(claim_request(), 600))
        await settled(engine)
        await engine.add([new(1, delay=0.1)])
        await asyncio.wait_for(waiting, TIMEOUT)


async def test_waiting_does_not_end_for_tasks_that_the_worker_cannot_run(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        waiting = asyncio.create_task(engine.wait(claim_request(types=("mine",)), 60))
        await settled(engine)
        told = engine.watch.notifications
        await engine.add([new(0, type="theirs"), new(1, type="mine", needs=("gpu",))])
        await until(lambda: engine.watch.notifications > told)
        assert not waiting.done()
        await engine.add([new(2, type="mine")])
        await asyncio.wait_for(waiting, TIMEOUT)


async def test_waiting_ends_when_another_process_adds(redis_server: Server) -> None:
    url = fresh(redis_server)
    code = "import asyncio, sys; from tests.engines.redis_worker import add_one; asyncio.run(add_one(sys.argv[1]))"
    async with opened(url) as engine:
        waiting = asyncio.create_task(engine.wait(claim_request(), 600))
        await settled(engine)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, url, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        )
        await asyncio.wait_for(waiting, TIMEOUT)
        assert await process.wait() == 0
        assert len(await claim(engine)) == 1


async def test_an_idle_wait_sends_no_commands(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.wait(claim_request(), 0.01)
        with contextlib.closing(Redis(port=redis_server.port)) as client:
            before = client.info("stats")["total_commands_processed"]
            for _ in range(5):
                assert await claim(engine) == []
                await engine.wait(claim_request(), 0.02)
            after = client.info("stats")["total_commands_processed"]
        inside = 7  # Redis counts the commands inside a script too
        assert after - before <= 5 * inside + 1


async def settled(engine: RedisEngine) -> None:
    """Wait until a waiter sleeps."""
    await until(lambda: engine.watch.waiters)
