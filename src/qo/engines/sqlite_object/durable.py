"""Mode `durable`: a call returns when the bucket has its changes, and reads see only what the bucket has.

Calls that arrive during a flush wait for the next one, and change the tables only then, so between two flushes the
tables equal the stored image. If a flush succeeds, the answers of its calls were computed from the current content. If
no call of a batch changed anything, a download confirms that.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from qo.bucket import Bucket
from qo.buckets.own_writes import SUPERSEDED
from qo.clock import Clock
from qo.engines.contention import ContentionSignal, WriterFairness
from qo.engines.sqlite_object.flush_timer import FlushTimer
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.owner import check_owner
from qo.engines.sqlite_object.pending_calls import PendingCall
from qo.engines.sqlite_object.stored_image import StoredImage, Upload
from qo.errors import Conflict, OutcomeUnknown, QoError, StorageError
from qo.model import ClaimRequest
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")

_CONFLICT = "{} was written by another process first; nothing of this call was kept: try it again"


class DurableMode:
    lost = 0  # no acknowledged change is ever lost
    is_synced = True

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        clock: Clock,
        flush_timer: FlushTimer,
        *,
        retry_timeout: float,
        retries_conflicts: bool,
    ) -> None:
        self._bucket, self._key, self._clock, self._flush_timer = bucket, key, clock, flush_timer
        self._retry_timeout, self._retries_conflicts = retry_timeout, retries_conflicts
        self._stored = StoredImage(bucket, key, clock)
        self._image: Image | None = None  # the tables for the next batch
        self._version = ""  # of the object that the image was loaded from
        self._waiting: list[PendingCall] = []
        self._in_flight: list[PendingCall] = []
        self._writer: asyncio.Task[None] | None = None
        self._fairness = WriterFairness(ContentionSignal(bucket, key))

    async def open(self) -> None:
        """Download the image. Raises StorageError if the bucket cannot be read or holds something else."""
        await self._stored.download(is_opening=True)

    async def ask(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        request: ClaimRequest | None = None,
    ) -> Answer:
        call = PendingCall(work, abandoned, request)
        self._waiting.append(call)
        self._flush_timer.count(len(self._waiting))
        if self._writer is None:
            self._writer = asyncio.create_task(self._serve())
        try:
            answer: Answer = await call.done
        except asyncio.CancelledError:
            if call.done.done() and not call.done.cancelled():  # the caller was cancelled after the answer was set
                call.resolve(call.done.exception())
            raise
        return answer

    async def read(self, work: Callable[[Image], Answer]) -> Answer:
        await self._stored.refresh()
        return work(self._stored.image)

    read_latest = read

    async def flush(self) -> None:
        """Flush now, and return when all waiting calls have their answers."""
        waiting = [call.done for call in (*self._in_flight, *self._waiting) if not call.done.done()]
        if waiting:
            self._flush_timer.trigger()
            await asyncio.wait(waiting)

    async def confirmed(self) -> bool:
        return True

    async def sync(self) -> None:
        """Nothing to do: the bucket has every acknowledged change, and every read downloads."""

    async def finish(self, timeout: float) -> None:
        """Serve all waiting calls, within `timeout` seconds."""
        writer = self._writer
        if writer is not None:
            self._flush_timer.trigger()
            await asyncio.wait([writer], timeout=timeout)
            writer.cancel()
            await asyncio.wait([writer])
        await self._stored.finish()

    def close(self) -> None:
        self._drop_image()
        self._stored.close()

    def abandon(self) -> None:
        """Stop without waiting: the engine was garbage-collected, so no caller waits for an answer."""
        if self._writer is not None:
            self._writer.cancel()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._flush_timer.wait()
                self._in_flight = [call for call in self._waiting if not call.done.done()]
                self._waiting = []
                if self._in_flight:
                    if await self._fairness.begin():
                        self._forget()
                    has_read = not self._stored.version
                    await self._serve_batch(self._in_flight)
                    self._fairness.end(has_read=has_read)
        finally:
            self._writer = None
            _fail(self._in_flight, OutcomeUnknown, f"{self._key} may have been written before the store was closed")
            _fail(self._waiting, StorageError, f"{self._key} was not written before the store was closed")
            self._in_flight, self._waiting = [], []

    async def _serve_batch(self, batch: list[PendingCall]) -> None:
        try:
            await self._commit(batch)
        except QoError as error:
            self._forget()
            _fail(batch, type(error), *error.args, cause=error)
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets it
            self._forget()
            _fail(batch, StorageError, f"{self._key} could not be changed: {error!r}", cause=error)
        else:
            for call in batch:
                call.resolve(None)

    async def _commit(self, batch: list[PendingCall]) -> None:
        attempts, is_fresh = self._fairness.attempts(), False
        while attempts.may_try():
            if not self._stored.version:
                await self._stored.refresh()
                is_fresh = True
            image = self._current_image()
            if image.do(batch):
                check_owner(image, self._key, self._clock())
                try:
                    return await self._flush(image)
                except Conflict:
                    self._forget()
                    if not self._retries_conflicts:
                        await attempts.report_conflict()
                        raise Conflict(_CONFLICT.format(self._key)) from None
                is_fresh = False
                await attempts.back_off()
                continue
            if not is_fresh:
                await self._stored.refresh()
                is_fresh = True
            if self._version == self._stored.version:
                return None
        raise StorageError(f"other processes keep writing {self._key}; try again")

    def _current_image(self) -> Image:
        """The tables as the bucket has them."""
        if self._image is None or self._version != self._stored.version:
            self._drop_image()
            data, self._version = self._stored.data, self._stored.version
            self._image = Image(self._key, data, self._clock, is_ours=bool(data))
        return self._image

    async def _flush(self, image: Image) -> None:
        expected = self._version
        upload = Upload(self._bucket, self._key, image)
        await upload.send(expected=expected, retry_timeout=self._retry_timeout)
        if upload.version == SUPERSEDED:
            self._forget()
        elif self._stored.version == expected:  # otherwise a reader has downloaded this write, or a later one
            self._stored.adopt(upload.data, upload.version, upload.write.n)
            self._version = upload.version

    def _forget(self) -> None:
        """Download again: the changes were not written, or another process has written since."""
        self._drop_image()
        self._stored.suspect()

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None


def _fail(batch: list[PendingCall], kind: type[QoError], *args: object, cause: BaseException | None = None) -> None:
    """Raise one error per caller: a shared error would collect the tracebacks of all callers."""
    for call in batch:
        if not call.done.done():
            error = kind(*args)
            error.__cause__ = cause
            call.resolve(error)
