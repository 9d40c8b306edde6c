"""Lost connections: a call reports truthfully whether it was applied, or raises OutcomeUnknown."""

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import count

import pytest
from redis import Redis

from qo.clock import Clock, system_clock
from qo.engines.redis import RedisEngine, scripts
from qo.engines.redis.scripts import script
from qo.errors import OutcomeUnknown, StorageError
from qo.model import NEW, Filter, Status, archive, cancel, complete, release, replay
from qo.testing import ManualClock, random_history
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.conditions import TIMEOUT, until
from tests.engines.redis_engines import opened
from tests.servers.redis import Server
from tests.servers.redis_proxy import Loss, Proxy

names = count()
LOSSES: list[Loss] = ["request", "answer"]


@asynccontextmanager
async def behind(proxy: Proxy, clock: Clock = system_clock) -> AsyncIterator[RedisEngine]:
    load_scripts(proxy.target)
    async with opened(f"redis://127.0.0.1:{proxy.port}?prefix=f{next(names)}-{os.getpid()}", clock) as engine:
        yield engine


def load_scripts(port: int) -> None:
    """Load all scripts. Otherwise the lost response would be the refusal of an unknown script."""
    with contextlib.closing(Redis(port=port)) as client:
        for path in (files("qo.engines.redis") / "lua").iterdir():
            name = path.name.removesuffix(".lua")
            if name not in {"prelude", "heads", "merge", "single_add"}:
                client.script_load(script(name).text)


def call(name: str) -> bytes:
    return script(name).sha.encode()


@pytest.mark.parametrize("loss", LOSSES)
async def test_every_write_is_answered_truthfully(redis_server: Server, loss: Loss) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        proxy.lose(loss, call("add"))
        assert await engine.add([new(0), new(1)]) == [(task_id(0), True), (task_id(1), True)]
        await claim(engine, limit=0)
        proxy.lose(loss, call("claim"))
        tasks = await claim(engine, lease_id="mine")
        assert {(task.id, task.attempt, task.lease_id) for task in tasks} == {(task_id(n), 1, "mine") for n in (0, 1)}
        proxy.lose(loss, call("apply"))
        assert await engine.apply([complete(tasks[0], b"7"), release(tasks[1])]) == [True, True]
        proxy.lose(loss, call("apply"))
        assert await engine.apply([cancel(tasks[1].id), cancel(tasks[0].id)]) == [True, False]
        proxy.lose(loss, call("apply"))
        assert await engine.apply([replay(tasks[1].id), archive(tasks[0].id)]) == [True, True]
        proxy.lose(loss, call("delete"))
        assert await engine.delete([tasks[0].id, tasks[1].id]) == [True, False]
        proxy.lose(loss, call("write_note"))
        version = await engine.write_note("n", b"1", expected=NEW)
        assert await engine.read_note("n") == ("n", b"1", version)
        history = [event.status.value for event in await engine.history(tasks[1].id)]
        assert history == ["pending", "running", "pending", "cancelled", "pending"]


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_blocking_write_is_answered_truthfully(redis_server: Server, loss: Loss) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        assert await asyncio.to_thread(engine.add_directly, [new(0)]) == [(task_id(0), True)]
        proxy.lose(loss, call("add"))
        assert await asyncio.to_thread(engine.add_directly, [new(1)]) == [(task_id(1), True)]
        with contextlib.closing(Redis(port=proxy.target)) as client:
            client.script_flush()  # as a restart does
        assert await asyncio.to_thread(engine.add_directly, [new(2)]) == [(task_id(2), True)]
        assert sum((await engine.count()).values()) == 3


async def test_a_blocking_write_replaces_a_connection_that_the_server_has_closed(redis_server: Server) -> None:
    """Without asking what became of a call on the closed one, which would take seconds if the server were gone."""
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        assert await asyncio.to_thread(engine.add_directly, [new(0)]) == [(task_id(0), True)]
        with contextlib.closing(Redis(port=proxy.target)) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        assert await asyncio.to_thread(engine.add_directly, [new(1)]) == [(task_id(1), True)]
        assert (await stored(engine, 1)).id == task_id(1)


@pytest.mark.parametrize("loss", LOSSES)
async def test_every_read_is_repeated(redis_server: Server, loss: Loss) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new()])
        await engine.find(Filter(), limit=1)
        proxy.lose(loss, call("get"))
        assert (await stored(engine)).id == task_id(0)
        proxy.lose(loss, call("find"))
        assert len(await engine.find(Filter(), limit=9)) == 1
        proxy.lose(loss, call("count"))
        assert sum((await engine.count()).values()) == 1
        proxy.lose(loss, b"HGETALL")
        assert len(await engine.history(task_id(0))) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_random_histories_over_a_breaking_connection(redis_server: Server, seed: int) -> None:
    async with Proxy(redis_server.port) as proxy:
        clock = ManualClock()
        async with behind(proxy, clock) as engine:

            async def break_connections() -> None:
                for n in range(10_000):
                    proxy.lose(LOSSES[n % 2], b"EVALSHA", spare=n % 4)
                    await proxy.lost.wait()

            breaking = asyncio.create_task(break_connections())
            try:
                await random_history(engine, clock, seed, steps=40)
            finally:
                breaking.cancel()
                await asyncio.gather(breaking, return_exceptions=True)
        assert proxy.losses > 10


async def test_a_settlement_is_reported_as_applied_although_the_task_was_claimed_again(redis_server: Server) -> None:
    """The response is lost, and before the call is repeated another worker claims the task."""
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new()])
        task = await claim_one(engine)
        async with opened(f"{redis_server.url}?prefix={engine.address.prefix}") as other:
            proxy.lose("answer", call("apply"))
            releasing = asyncio.create_task(engine.apply([release(task)]))
            await proxy.lost.wait()
            assert len(await claim(other)) == 1
            assert await releasing == [True]


async def test_an_unreachable_server_is_a_storage_error(redis_server: Server) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new()])
        await engine.pool.close()
        await proxy.cut()
        for started in (engine.add([new(1)]), engine.claim(claim_request()), engine.get([task_id(0)]), engine.open()):
            with pytest.raises(StorageError, match="cannot be reached") as refused:
                await started
            assert not isinstance(refused.value, OutcomeUnknown)


async def test_an_outcome_that_cannot_be_determined_is_unknown(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_RETRY_DEADLINE", 0.2)
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new(1)])
        proxy.lose("answer", call("add"), for_good=True)
        with pytest.raises(OutcomeUnknown):
            await engine.add([new()])


async def test_a_claim_cancelled_during_its_response_releases_its_tasks(redis_server: Server) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new(0), new(1)])
        await claim(engine, limit=0)
        await engine.count()
        proxy.lose("answer", call("claim"))
        leaving = asyncio.create_task(claim(engine))
        await proxy.lost.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)

        async def are_pending() -> bool:
            tasks = await engine.get([task_id(0), task_id(1)])
            return [(task.status, task.failures) for task in tasks if task] == [(Status.PENDING, 0)] * 2

        await until(are_pending)


async def test_all_batches_of_a_cancelled_claim_are_released(redis_server: Server) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new(n) for n in range(250)])
        proxy.lose("answer", call("claim"), spare=1)
        leaving = asyncio.create_task(claim(engine, limit=250))
        await proxy.lost.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)

        async def are_pending() -> bool:
            counts = await engine.count()
            return {lane.status: number for lane, number in counts.items() if number} == {Status.PENDING: 250}

        await until(are_pending)


async def test_scripts_are_loaded_again_after_a_restart_of_the_server(redis_server: Server) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        await engine.add([new(0)])
        redis_server.command("SCRIPT", "FLUSH")
        assert await engine.add([new(n) for n in range(1, 450)]) == [(task_id(n), True) for n in range(1, 450)]


async def test_a_subscription_resumes_after_its_connection_was_lost(redis_server: Server) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        waiting = asyncio.create_task(engine.wait(claim_request(), 600))
        await until(lambda: engine.watch.waiters)
        proxy.drop()
        await asyncio.wait_for(waiting, TIMEOUT)  # the new subscription ends the wait
        waiting = asyncio.create_task(engine.wait(claim_request(), 600))
        await until(lambda: engine.watch.waiters)
        await engine.add([new()])
        await asyncio.wait_for(waiting, TIMEOUT)


async def test_a_call_that_is_cancelled_at_any_moment_leaves_nothing_open(redis_server: Server) -> None:
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        for steps in range(40):
            await engine.pool.close()  # so that the next call connects
            calls = [
                asyncio.create_task(started)
                for started in (engine.count(), claim(engine), engine.wait(claim_request(), 60))
            ]
            for _ in range(steps):
                await asyncio.sleep(0)
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        late = asyncio.create_task(engine.count())
        await asyncio.sleep(0)
        await engine.close()
        assert await late == {}
        await until(lambda: not proxy.wires)
    gc.collect()  # an unclosed connection warns when it is collected, and warnings are errors


async def test_a_forked_child_may_not_use_the_connections_of_its_parent(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid()
    async with Proxy(redis_server.port) as proxy, behind(proxy) as engine:
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        with pytest.raises(StorageError, match="fork"):
            await engine.count()
        monkeypatch.undo()  # so that the engine closes its connections
