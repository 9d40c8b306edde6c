"""Mode `local`: a call returns immediately, and a flush writes its changes to the bucket later.

Changes that were not flushed are lost if the process dies, or if another process writes the object first.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from qo.bucket import Bucket
from qo.buckets.own_writes import SUPERSEDED
from qo.clock import Clock
from qo.engines.commit_loop import PendingCall
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.stored_image import (
    FlushTimer,
    StoredImage,
    Upload,
    check_owner,
    disown,
    log,
    new_owner,
    own,
    term_of,
)
from qo.errors import Conflict, OutcomeUnknown, QoError, StorageError
from qo.model import ClaimRequest
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")

_CATCH_UP_TIMEOUT = 2.0  # seconds that a local call waits for a download
_LAST_FLUSH_TIMEOUT = 10.0  # seconds for the last flush of an engine that was garbage-collected


class LocalMode:
    def __init__(self, bucket: Bucket, key: str, clock: Clock, flush_timer: FlushTimer, interval: float) -> None:
        self._bucket, self._key, self._clock, self._flush_timer = bucket, key, clock, flush_timer
        self._stored = StoredImage(bucket, key, clock)
        self._image: Image | None = None
        self._version = ""  # of the object that the image was loaded from or written to last
        self._unsynced = 0  # calls whose changes the bucket does not have
        self._changes = 0  # calls that changed something, ever
        # Callers of `confirmed`, each with the number of changes that it waits for.
        self._unconfirmed: list[tuple[int, asyncio.Future[bool]]] = []
        self.lost = 0  # calls whose changes another process's write has discarded
        self._owner = new_owner()
        self._term = term_of(interval)
        self._owned_until = 0.0  # by the store's clock; 0.0: this store does not own the object
        self._is_closing = False
        self._flushing = asyncio.Lock()
        self._flush_loop: asyncio.Task[None] | None = None
        self._flush_error: StorageError | None = None  # why the last flush failed

    async def open(self) -> None:
        if self._image is None:
            await self._stored.download(is_opening=True)

    async def call(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        request: ClaimRequest | None = None,
    ) -> Answer:
        call = PendingCall(work, abandoned, request)
        await self._catch_up()
        image = await self._current_image()
        if not self._unsynced:
            check_owner(image, self._key, self._clock(), self._owner.id)
        if image.do([call]):
            self._unsynced += 1
            self._changes += 1
            self._flush_timer.count(self._unsynced)
            if self._flush_loop is None:
                self._flush_loop = asyncio.create_task(self._run_flushes())
        call.resolve(None)
        answer: Answer = await call.done
        return answer

    async def _catch_up(self) -> None:
        """Other processes may write the object after this store's term, so download it before the next change."""
        if self._owned_until and not self._unsynced and self._clock() >= self._owned_until:
            self._owned_until = 0.0
            with suppress(StorageError, TimeoutError):  # a bucket that does not respond must not delay local calls
                async with asyncio.timeout(_CATCH_UP_TIMEOUT):
                    await self.read_latest(lambda _: None)

    async def read(self, work: Callable[[Image], Answer]) -> Answer:
        return work(await self._current_image())

    async def read_latest(self, work: Callable[[Image], Answer]) -> Answer:
        """Read what other processes wrote, unless this store has changes of its own to flush."""
        if not self._unsynced:
            await self._stored.refresh()
        if not self._unsynced and self._stored.version not in {"", self._version}:
            self._drop_image()
        return await self.read(work)

    async def flush(self) -> None:
        """Flush now. Raises Conflict if another process has written the object: the unsynced changes are lost."""
        async with self._flushing:
            image, taken, expected, changes = self._image, self._unsynced, self._version, self._changes
            if image is None or not (taken or self._must_disown()):
                return
            until = 0.0 if self._is_closing else self._clock() + self._term
            disown(image) if self._is_closing else own(image, replace(self._owner, until=until))
            upload = Upload(self._bucket, self._key, image)
            try:
                await upload.send(expected=expected, retry_timeout=float("inf"))
            except (Conflict, OutcomeUnknown) as error:
                self._lose(error)
                raise Conflict(
                    f"{self._key} was written by another process first; unsynced changes are lost"
                ) from error
            self._unsynced, self._flush_error, self._owned_until = self._unsynced - taken, None, until
            self._version = upload.version
            self._resolve_unconfirmed(changes, is_written=True)
            if upload.version == SUPERSEDED:
                self._stored.suspect()
                if not self._unsynced:
                    self._drop_image()
            else:
                self._stored.adopt(upload.data, upload.version, upload.write.n)

    async def sync(self) -> None:
        await self.flush()
        await self.read_latest(lambda _: None)

    @property
    def is_synced(self) -> bool:
        return not self._unsynced

    async def confirmed(self) -> bool:
        """Wait until every change so far is flushed, without starting a flush. False: they are lost."""
        if not self._unsynced:
            return True
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._unconfirmed.append((self._changes, written))
        return await written

    def _resolve_unconfirmed(self, changes: int, *, is_written: bool) -> None:
        resolved = [future for number, future in self._unconfirmed if number <= changes]
        self._unconfirmed = [(number, future) for number, future in self._unconfirmed if number > changes]
        for future in resolved:
            if not future.done():
                future.set_result(is_written)

    def _lose(self, error: QoError) -> None:
        lost, self._unsynced, self._owned_until = self._unsynced, 0, 0.0
        self.lost += lost
        if lost:
            log.error(
                "%s: %d unsynced changes are lost, and the object is downloaded again: %s", self._key, lost, error
            )
        self._drop_image()
        self._stored.suspect()
        self._resolve_unconfirmed(self._changes, is_written=False)

    async def finish(self, timeout: float) -> None:
        """Flush all changes and give up ownership, within `timeout` seconds."""
        self._is_closing = True
        if self._flush_loop is None and self._must_disown():
            self._flush_loop = asyncio.create_task(self._run_flushes())
        flush_loop = self._flush_loop
        if flush_loop is not None:
            self._flush_timer.trigger()
            await asyncio.wait([flush_loop], timeout=timeout)
            flush_loop.cancel()
            await asyncio.wait([flush_loop])
        if self._unsynced:
            self._lose(self._flush_error or OutcomeUnknown("the bucket did not respond before the store was closed"))
        await self._stored.finish()

    def close(self) -> None:
        self._drop_image()
        self._stored.close()

    def abandon(self) -> None:
        """Stop without waiting, after one last flush: the engine was garbage-collected."""
        self._is_closing = True
        if self._flush_loop is None and self._must_disown():
            self._flush_loop = asyncio.get_running_loop().create_task(self._run_flushes())
        if self._flush_loop is not None:
            self._flush_timer.trigger()
            self._flush_loop.get_loop().call_later(_LAST_FLUSH_TIMEOUT, self._flush_loop.cancel)

    def _must_disown(self) -> bool:
        """Whether a closing store still owns the object."""
        return self._is_closing and self._image is not None and self._owned_until > self._clock()

    async def _run_flushes(self) -> None:
        try:
            while self._unsynced or self._must_disown():
                await self._flush_timer.wait()
                try:
                    await self.flush()
                except Conflict as error:
                    log.debug("%s: %s", self._key, error)  # `_lose` has logged it
                except StorageError as error:
                    if self._flush_error is None:
                        log.warning("%s could not be written; retrying until it is: %s", self._key, error)
                    self._flush_error = error
        finally:
            self._flush_loop = None
            if self._unsynced:  # cancelled, so no flush follows
                self._resolve_unconfirmed(self._changes, is_written=False)

    async def _current_image(self) -> Image:
        while self._image is None:
            if not self._stored.version:
                await self._stored.refresh()
            if self._image is None:
                data, self._version = self._stored.data, self._stored.version
                self._image = Image(self._key, data, self._clock, is_ours=bool(data))
        return self._image

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None
