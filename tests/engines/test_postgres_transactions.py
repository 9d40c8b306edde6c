"""Tasks that are added in the caller's own transaction."""

import asyncio

import psycopg
import pytest

from qo import App, Unique
from qo.client import connect
from qo.engines.postgres import PostgresEngine
from qo.errors import InvalidSetting, InvalidTask
from qo.model import Status
from qo.testing.samples import claim, new, stored, task_id
from tests.engines.postgres_engines import clock, engine, until_claimed, url, wrong
from tests.servers.postgres import PostgresServer

__all__ = ["clock", "engine", "url"]  # fixtures


@pytest.mark.parametrize("commits", [True, False])
async def test_a_task_exists_if_and_only_if_the_caller_commits(
    engine: PostgresEngine, postgres: PostgresServer, url: str, *, commits: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        assert await engine.add_on(callers, [new(0), new(1)]) == [(task_id(0), True), (task_id(1), True)]
        assert await claim(engine) == []
        await engine.add([new(2)])  # an open transaction blocks no other writer
        assert [task.id for task in await claim(engine)] == [task_id(2)]
        await (callers.commit() if commits else callers.rollback())
    assert len(await claim(engine)) == (2 if commits else 0)
    assert sum((await engine.count()).values()) == (3 if commits else 1)
    assert await wrong(url) == []


async def test_a_blocking_connection_can_be_used(engine: PostgresEngine, postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url()) as callers:
        callers.execute("CREATE TEMPORARY TABLE mine (n int)")
        assert await engine.add_on(callers, [new(0)]) == [(task_id(0), True)]
        assert await engine.add_on(callers, [new(0)]) == [(task_id(0), False)]
        assert await engine.add_on(callers, []) == []
    assert (await stored(engine)).status is Status.PENDING


async def test_waiting_ends_when_the_callers_transaction_commits(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        await engine.add_on(callers, [new()])
        working = asyncio.create_task(until_claimed(engine))
        await callers.commit()
    assert len(await asyncio.wait_for(working, 30)) == 1


async def test_a_queue_enqueues_in_the_callers_transaction(postgres: PostgresServer, url: str) -> None:
    async with connect(url) as client, await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        kept = await client.enqueue("t", {"n": 1}, connection=callers)
        assert await client.get(kept.id) is None  # invisible before the commit
        await callers.commit()
        lost = await client.enqueue("t", {"n": 2}, connection=callers)
        await callers.rollback()
        assert await client.get(kept.id) is not None
        assert await client.get(lost.id) is None


async def test_a_waiting_task_is_not_replaced_in_the_callers_transaction(postgres: PostgresServer, url: str) -> None:
    """The change would be written on another connection, and wait for this transaction."""
    replace = Unique(on_duplicate="replace")
    async with connect(url) as client, await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        with pytest.raises(InvalidTask, match="cannot be part of your transaction"):
            await client.enqueue("t", {"n": 1}, unique=replace, connection=callers)
        keep = await client.enqueue("t", {"n": 1}, unique=Unique(), connection=callers)
        assert (await client.enqueue("t", {"n": 1}, unique=Unique(), connection=callers)).id == keep.id


def test_an_app_enqueues_in_the_callers_transaction(postgres: PostgresServer, url: str) -> None:
    app = App(url)

    @app.task
    def charge(amount: int) -> int:
        return amount

    with psycopg.connect(postgres.url()) as callers:
        kept = charge.using(connection=callers).enqueue(1)
        callers.commit()
        lost = charge.using(connection=callers).enqueue(2)
        callers.rollback()
    assert app.get(kept.id) is not None
    assert app.get(lost.id) is None
    app.close()


async def test_a_store_without_transactions_refuses_a_connection() -> None:
    async with connect("memory://") as client:
        with pytest.raises(InvalidSetting, match="requires a postgresql:// store"):
            await client.enqueue("t", connection=object())
