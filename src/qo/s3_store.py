"""A queue in one SQLite database in a bucket, whose owner chooses between durability and speed.

store = await S3Store.create(bucket="my-bucket", mode="durable")
producer = await store.producer("jobs")
await producer.enqueue({"data": 1})  # returns when the bucket has it
consumer = await store.consumer("jobs")
task = await consumer.dequeue()
"""

import asyncio
import weakref
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

from qo.bucket import Bucket
from qo.buckets import open_bucket
from qo.buckets.prefixed import PrefixedBucket
from qo.client import Client, Settings
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines.large_values import DEFAULT_PAYLOAD_LIMIT, LargeValuesEngine
from qo.errors import InvalidSetting

if TYPE_CHECKING:
    from qo.engines.sqlite_object import SqliteObjectEngine

_FOREVER = float("inf")


class S3Store(Client):
    """Everything a queue has, on one object. What another process wrote first is told: `ConflictError`.

    `durable`: a call returns when the bucket has what it changed, and reads see nothing else. `local`: a call returns
    at once, and a flush follows; what was not flushed yet is lost if the process dies, or another writes the object.
    """

    def __init__(
        self,
        database: "SqliteObjectEngine",
        engine: Engine,
        mode: str,
        settings: Settings | None = None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        """`engine` keeps its tasks in `database`. Applications call `create`."""
        super().__init__(engine, settings, clock=clock)
        # Between two calls nothing is written that a call of another process could lose a race against.
        self.recorder.is_automatic = False
        self._object = database
        self._mode = mode
        # Nobody may have called close(): then what goes on in the background ends when the store is collected.
        weakref.finalize(self, _let_go, asyncio.get_running_loop(), database).atexit = False

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
        patience: float = _FOREVER,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> "S3Store":
        """Download the database, or begin one; the first write creates it.

        `bucket` is the name of a bucket in S3, a URL (`s3://… gs://… az://… file:///…`), or a bucket itself. A flush
        follows the last one after `interval` seconds at the earliest (durable 0, local 1; infinite: only `flush()`
        does), or when `volume` calls wait. A bucket that does not answer is asked again for `patience` seconds.

        Payloads and results above 256 KiB, up to `payload_limit` bytes, lie beside the database, in objects of their
        own. In mode `local` a call with such a value waits until the bucket has the value.
        """
        from qo.engines.sqlite_object import DurabilityMode, SqliteObjectEngine  # noqa: PLC0415 - its driver is needed only here
        from qo.engines.sqlite_object.engine import VOLUME  # noqa: PLC0415 - as above

        if mode not in set(DurabilityMode):
            raise InvalidSetting(f"mode={mode!r:.40} is not one of {', '.join(DurabilityMode)}")
        if isinstance(bucket, str):
            bucket = open_bucket(_address(bucket, prefix, endpoint=endpoint, region=region), clock=clock)
        elif prefix.strip("/"):
            bucket = PrefixedBucket(bucket, prefix)
        database = SqliteObjectEngine(
            bucket,
            mode=DurabilityMode(mode),
            interval=interval,
            volume=VOLUME if volume is None else volume,
            patience=patience,
            repeats_lost_races=False,
            clock=clock,
        )
        engine = LargeValuesEngine(
            database,
            bucket,
            payload_limit=payload_limit,
            patience=patience if mode == "durable" else 0.0,
            clock=clock or bucket.now,
        )
        store = cls(database, engine, mode, settings, clock=clock or system_clock)
        await store.open()
        return store

    @property
    def mode(self) -> str:
        """Chosen once: for another mode create another store."""
        return self._mode

    @property
    def lost(self) -> int:
        """How many changes of mode `local` never reached the bucket."""
        return self._object.lost

    async def flush(self) -> None:
        """Bring everything to the bucket now: one step of what goes on in the background.

        In mode `local` raises ConflictError if another process has written the object; in `durable` the callers get it.
        """
        await self._object.flush()


def _address(bucket: str, prefix: str, **options: str) -> str:
    """The bucket's URL."""
    url, _, query = bucket.partition("?")
    url = url if "://" in url else f"s3://{url}"
    if prefix:
        url = f"{url.rstrip('/')}/{prefix.strip('/')}"
    given = urlencode({name: value for name, value in options.items() if value})
    query = "&".join(part for part in (query, given) if part)
    return f"{url}?{query}" if query else url


def _let_go(loop: asyncio.AbstractEventLoop, engine: "SqliteObjectEngine") -> None:
    """Called by whichever thread collects."""
    try:
        loop.call_soon_threadsafe(engine.let_go)
    except RuntimeError:  # the loop is closed, and its tasks with it
        return
