"""A client for a queue in one SQLite database in a bucket, with a choice between durability and speed.

store = await S3Store.create(bucket="my-bucket", mode="durable")
producer = await store.producer("jobs")
await producer.enqueue({"data": 1})  # returns when the bucket has the task
consumer = await store.consumer("jobs")
tasks = await consumer.dequeue()
"""

import asyncio
import weakref
from collections.abc import AsyncIterator
from typing import Literal
from urllib.parse import urlencode

from qo.bucket import Blob, Bucket
from qo.buckets import open_bucket
from qo.client import Client, Settings
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines.commit_loop import FlushedDatabase
from qo.engines.large_values import DEFAULT_PAYLOAD_LIMIT
from qo.engines.layouts import open_database


class PrefixedBucket:
    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket, self._prefix = bucket, f"{prefix.strip('/')}/"

    async def get(self, key: str) -> Blob | None:
        return await self._bucket.get(self._prefix + key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._bucket.put(self._prefix + key, data, expected=expected)

    async def delete(self, key: str) -> None:
        await self._bucket.delete(self._prefix + key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        after = self._prefix + after if after else ""
        async for key in self._bucket.keys(self._prefix + prefix, after=after):
            yield key.removeprefix(self._prefix)

    async def versions(self, key: str) -> list[Blob]:
        return await self._bucket.versions(self._prefix + key)

    def now(self) -> float:
        return self._bucket.now()


_FOREVER = float("inf")


class S3Store(Client):
    """A client of one object. A call that loses a race against another process raises `ConflictError`.

    `durable`: a call returns when the bucket has its changes, and reads see only what the bucket has. `local`: a call
    returns immediately and a flush follows; changes that were not flushed are lost if the process dies or another
    process writes the object.
    """

    def __init__(
        self,
        database: FlushedDatabase,
        engine: Engine,
        mode: str,
        settings: Settings | None = None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        """`engine` stores its tasks in `database`. Applications call `create` instead."""
        super().__init__(engine, settings, clock=clock)
        # The recorder must not write between calls: its writes could lose a race against another process.
        self.recorder.is_automatic = False
        self._object = database
        self._mode = mode
        # Stop the background tasks when the store is garbage-collected without close().
        weakref.finalize(self, _abandon, asyncio.get_running_loop(), database).atexit = False

    @classmethod
    async def create(
        cls,
        bucket: str | Bucket,
        *,
        mode: Literal["durable", "local"] = "durable",
        prefix: str = "",
        endpoint: str = "",
        region: str = "",
        interval: float | None = None,
        volume: int | None = None,
        payload_limit: int = DEFAULT_PAYLOAD_LIMIT,
        retry_timeout: float = _FOREVER,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> "S3Store":
        """Download the database, or start an empty one that the first write creates.

        `bucket` is the name of an S3 bucket, a URL (`s3://… gs://… az://… file:///…`), or a `Bucket`. Flushes are at
        least `interval` seconds apart (durable 0, local 1; infinite: only `flush()` flushes), unless `volume` calls are
        waiting. A request to a bucket that does not respond is retried for `retry_timeout` seconds.

        Payloads and results above 256 KiB, up to `payload_limit` bytes, are stored in objects next to the database. In
        mode `local` a call with such a value waits until the bucket has the value.
        """
        if isinstance(bucket, str):
            bucket = open_bucket(_address(bucket, prefix, endpoint=endpoint, region=region), clock=clock)
        elif prefix.strip("/"):
            bucket = PrefixedBucket(bucket, prefix)
        engine, database = open_database(
            bucket,
            mode=mode,
            interval=interval,
            volume=volume,
            retry_timeout=retry_timeout,
            payload_limit=payload_limit,
            clock=clock,
        )
        store = cls(database, engine, mode, settings, clock=clock or system_clock)
        await store.open()
        return store

    @property
    def mode(self) -> str:
        """The durability mode. It cannot change; create another store for another mode."""
        return self._mode

    @property
    def lost(self) -> int:
        """The number of changes in mode `local` that never reached the bucket."""
        return self._object.lost

    async def flush(self) -> None:
        """Write every change to the bucket now.

        In mode `local` raises ConflictError if another process has written the object. In mode `durable` the calls that
        made the changes raise it.
        """
        await self._object.flush()


def _address(bucket: str, prefix: str, **options: str) -> str:
    url, _, query = bucket.partition("?")
    url = url if "://" in url else f"s3://{url}"
    if prefix:
        url = f"{url.rstrip('/')}/{prefix.strip('/')}"
    given = urlencode({name: value for name, value in options.items() if value})
    query = "&".join(part for part in (query, given) if part)
    return f"{url}?{query}" if query else url


def _abandon(loop: asyncio.AbstractEventLoop, engine: FlushedDatabase) -> None:
    """Runs in any thread: the garbage collector calls it."""
    try:
        loop.call_soon_threadsafe(engine.abandon)
    except RuntimeError:  # the loop is closed
        return
