"""Failovers: acknowledged writes are on the new primary."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.client import Client, connect
from qo.engines.redis import scripts
from qo.errors import OutcomeUnknown, StorageError
from qo.model import Filter, Status, complete
from qo.testing.samples import claim_one, claim_request, new, stored, task_id
from tests.conditions import until
from tests.engines.redis_engines import opened
from tests.engines.redis_load import under_load
from tests.servers.redis import AT_ONCE, Sentinels, Server, program, running

FAILOVERS = int(os.environ.get("QO_FAILOVERS", "1"))


async def test_the_documented_rights_are_sufficient() -> None:
    with running(*AT_ONCE) as primary, running("--replicaof", "127.0.0.1", str(primary.port)):
        rights = ("~{mine}*", "&{mine}*", "+@all", "-@dangerous", "+role")
        primary.command("ACL", "SETUSER", "me", "on", ">sesame", *rights)
        await until_attached(primary)
        async with opened(primary.url.replace("//", "//me:sesame@") + "?prefix=mine&replicas=1") as engine:
            await engine.add([new(0)])
            await engine.apply([complete(await claim_one(engine))])
            await engine.wait(claim_request(), 0.01)
            assert len(await engine.history(task_id(0))) == 3
            assert sum((await engine.count()).values()) == len(await engine.find(Filter(), limit=9)) == 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Sentinels]:
    cluster = Sentinels(program(), tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def test_a_write_that_no_replica_has_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(*AT_ONCE) as primary, running("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        await until_attached(primary)
        async with opened(f"{primary.url}?replicas=1") as engine, opened(replica.url) as reader:
            await engine.add([new(0)])
            assert (await stored(reader, 0)).status is Status.PENDING
            replica.command("REPLICAOF", "NO", "ONE")
            with monkeypatch.context() as patch:
                patch.setattr(scripts, "_RETRY_DEADLINE", 0.1)
                with pytest.raises(OutcomeUnknown, match="0 of 1 replicas confirmed"):
                    await engine.add([new(1)])
            assert await reader.get([task_id(1)]) == [None]
            replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
            await until_attached(primary)
            assert await engine.add([new(1)]) == [
                (task_id(1), False)
            ]  # the primary had it, and now the replica has it too
            assert (await stored(reader, 1)).status is Status.PENDING
            await engine.apply([complete(await claim_one(engine))])
            assert {task.status for task in await reader.get([task_id(0), task_id(1)]) if task} == {
                Status.COMPLETED,
                Status.PENDING,
            }


async def test_a_failover_loses_nothing_acknowledged_and_workers_continue(cluster: Sentinels) -> None:
    async with connect(cluster.url) as client:
        await until_writable(client)
        assert len(await under_load(client, lambda acknowledged: failover(cluster, client, acknowledged))) > 200


async def test_a_replaced_primary_that_still_responds_acknowledges_nothing_that_is_lost(cluster: Sentinels) -> None:
    """Until the sentinels demote it, it accepts writes, and replicas that still follow it confirm them."""

    async def failovers(acknowledged: list[str]) -> None:
        for _ in range(FAILOVERS):
            seen = len(acknowledged)
            await until(lambda seen: len(acknowledged) > seen + 100, seen)
            await until(lambda: len(cluster.primaries()) == 1)  # the last replaced primary has been demoted
            before = cluster.primaries()
            await until(lambda: cluster.sentinels[0].accepts("SENTINEL", "FAILOVER", "mymaster"))
            await until(lambda before: bool(cluster.primaries() - before), before)
        seen = len(acknowledged)
        await until(lambda: len(acknowledged) > seen + 50)

    async with connect(cluster.url) as client:
        await until_writable(client)
        assert len(await under_load(client, failovers)) > 100


async def failover(cluster: Sentinels, client: Client, acknowledged: list[str]) -> None:
    """Kill the primary, so that a replica takes over; then kill the last replica and start it again."""
    await until(lambda: len(acknowledged) > 100)
    await asyncio.to_thread(cluster.primary.kill)
    seen = len(acknowledged)
    await until(lambda: len(acknowledged) > seen + 50)
    (new_primary,) = cluster.primaries()
    (replica,) = set(cluster.replicas) - {new_primary}
    await asyncio.to_thread(replica.kill)
    with pytest.raises(StorageError, match="too few replicas"):
        await write_until_refused(client)
    await asyncio.to_thread(replica.start)
    replica.command("REPLICAOF", "127.0.0.1", str(new_primary.port))  # as its configuration file would
    seen = len(acknowledged)
    await until(lambda: len(acknowledged) > seen + 50)


async def write_until_refused(client: Client) -> None:
    for _ in range(1000):
        await client.engine.write_note("probe", b"", expected="any")


async def until_writable(client: Client) -> None:
    async def is_writable() -> bool:
        with contextlib.suppress(StorageError):
            await client.engine.write_note("probe", b"", expected="any")
            return True
        return False

    await until(is_writable)


async def until_attached(primary: Server) -> None:
    await until(primary.accepts, "WAIT", "1", "1000", answer=b":1")
