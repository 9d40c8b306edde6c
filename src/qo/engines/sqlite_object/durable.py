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
from qo.engines.commit_loop import CommitLoop, PendingCall
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.stored_image import FlushTimer, StoredImage, Upload, check_owner
from qo.model import ClaimRequest
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")


class DurableMode(CommitLoop):
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
        super().__init__(bucket, key, retries_conflicts=retries_conflicts)
        self._clock, self._flush_timer, self._retry_timeout = clock, flush_timer, retry_timeout
        self._stored = StoredImage(bucket, key, clock)
        self._image: Image | None = None  # the tables for the next batch
        self._version = ""  # of the object that the image was loaded from

    async def open(self) -> None:
        """Download the image. Raises StorageError if the bucket cannot be read or holds something else."""
        await self._stored.download(is_opening=True)

    async def call(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        request: ClaimRequest | None = None,
    ) -> Answer:
        self._flush_timer.count(len(self._waiting) + 1)
        answer: Answer = await self.submit(PendingCall(work, abandoned, request))
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
        await self._fairness.finish()
        await self._stored.finish()

    def close(self) -> None:
        self._drop_image()
        self._stored.close()

    def abandon(self) -> None:
        """Stop without waiting: the engine was garbage-collected, so no caller waits for an answer."""
        if self._writer is not None:
            self._writer.cancel()

    # --- the content

    async def _wait_for_turn(self) -> None:
        await self._flush_timer.wait()

    @property
    def _is_loaded(self) -> bool:
        return bool(self._stored.version)

    async def _refresh(self) -> bool:
        await self._stored.refresh()
        return self._version != self._stored.version

    async def _run(self, batch: list[PendingCall]) -> bool:
        return self._current_image().do(batch)

    def _current_image(self) -> Image:
        """The tables as the bucket has them."""
        if self._image is None or self._version != self._stored.version:
            self._drop_image()
            data, self._version = self._stored.data, self._stored.version
            self._image = Image(self._key, data, self._clock, is_ours=bool(data))
        return self._image

    async def _write(self) -> None:
        image, expected = self._current_image(), self._version
        check_owner(image, self._key, self._clock())
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
