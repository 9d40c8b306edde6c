"""Engines for the Redis tests, which are always closed: a connection left open would fail a later test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from redis import Redis

from qo.clock import Clock, system_clock
from qo.engines.redis import RedisEngine
from qo.engines.redis.address import address_of
from qo.testing import ManualClock
from tests.servers.redis import Server

names = count()


@asynccontextmanager
async def opened(url: str, clock: Clock = system_clock) -> AsyncIterator[RedisEngine]:
    engine = RedisEngine(address_of(url), clock)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()


def fresh(server: Server) -> str:
    """The URL of an empty queue."""
    return f"{server.url}?prefix=t{next(names)}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock, redis_server: Server) -> AsyncIterator[RedisEngine]:
    async with opened(fresh(redis_server), clock) as engine:
        yield engine


def write_format_3(client: Redis, tag: str) -> None:
    """Write a queue as builds of format 3 did: the members of ready tasks and heads have no creation time."""
    _cut_members(client, f"{tag}ready:*", 0)
    _cut_members(client, f"{tag}*promoted:*", 8)
    heads: Any = client.hgetall(f"{tag}head")
    client.hset(f"{tag}head", mapping={lane: head[:9] + head[17:] for lane, head in heads.items()})
    client.hset(f"{tag}format", mapping={"format": 3, "since": 3})


def write_format_2(client: Redis, tag: str) -> None:
    """Write a queue as builds of format 2 did: without heads, and with one set of all lanes."""
    lanes = [lane for key in client.scan_iter(f"{tag}lanes:*") for lane in client.zrange(key, 0, -1)]
    _cut_members(client, f"{tag}ready:*", 0)
    for part in ("lanes:*", "head", "promoted:*", "unpromoted:*", "needs", "typed:*"):
        for key in client.scan_iter(tag + part):
            client.delete(key)
    for lane in ('["q","gone",[],6]', *lanes):
        client.sadd(f"{tag}lanes", str(lane, "utf-8") if isinstance(lane, bytes) else str(lane))
    client.set(f"{tag}lanes:tag", "x")
    client.hset(f"{tag}format", mapping={"format": 2, "since": 2})


def _cut_members(client: Redis, keys: str, start: int) -> None:
    """Remove the eight bytes of the creation time from the members of sorted sets."""
    for key in client.scan_iter(keys):
        members: Any = client.zrange(key, 0, -1, withscores=True)
        for member, score in members:
            client.zrem(key, member)
            client.zadd(key, {member[:start] + member[start + 8 :]: score})
