"""Engines for the Redis tests, which are always closed: a connection left open would fail a later test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qo.clock import Clock, system_clock
from qo.engines.redis import RedisEngine
from qo.engines.redis.address import address_of


@asynccontextmanager
async def opened(url: str, clock: Clock = system_clock) -> AsyncIterator[RedisEngine]:
    engine = RedisEngine(address_of(url), clock)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()
