"""Mode `local`: a call is answered at once, and the bucket gets what it changed behind its back.

What the bucket does not have yet is lost if the process dies, and if another process writes the object first.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from qo.bucket import Bucket
from qo.buckets.own_writes import SUPERSEDED
from qo.clock import Clock
from qo.engines.sqlite_object.calls import PendingCall
from qo.engines.sqlite_object.confirmed import Confirmed
from qo.engines.sqlite_object.flush_timer import FlushTimer
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.owner import check_owner, disown, new_owner, own, term_of
from qo.engines.sqlite_object.upload import Upload, log
from qo.errors import Conflict, OutcomeUnknown, QoError, StorageError
from qo.model import ClaimRequest
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")

_CATCH_UP_TIMEOUT = 2.0  # seconds a local call waits for a look at the bucket
_LAST_TRY = 10.0  # seconds for the last flush of an engine that nobody has any more


class Local:
    def __init__(self, bucket: Bucket, key: str, clock: Clock, pace: FlushTimer, interval: float) -> None:
        self._bucket, self._key, self._clock, self._pace = bucket, key, clock, pace
        self._confirmed = Confirmed(bucket, key, clock)
        self._image: Image | None = None
        self._version = ""  # of the object the image was before what is unsynced
        self._unsynced = 0  # calls that changed something the bucket does not have
        self._changes = 0  # every call that changed something
        self._unconfirmed: list[tuple[int, asyncio.Future[bool]]] = []  # callers of `confirmed`, and what they wait for
        self.lost = 0  # of those, all that another process's write has undone
        self._owner = new_owner()
        self._term = term_of(interval)
        self._owned_until = 0.0  # by the store's clock; 0.0: the object does not say that it is ours
        self._is_leaving = False
        self._flushing = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None
        self._refusal: StorageError | None = None  # why the last flush did not happen

    async def open(self) -> None:
        if self._image is None:
            await self._confirmed.look(is_opening=True)

    async def ask(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        request: ClaimRequest | None = None,
    ) -> Answer:
        call = PendingCall(work, abandoned, request)
        await self._catch_up()
        image = await self._present()
        if not self._unsynced:
            check_owner(image, self._key, self._clock(), self._owner.id)
        if image.do([call]):
            self._unsynced += 1
            self._changes += 1
            self._pace.count(self._unsynced)
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
        call.tell(None)
        answer: Answer = await call.done
        return answer

    async def _catch_up(self) -> None:
        """After our term others may have written the object, so read it before the next change."""
        if self._owned_until and not self._unsynced and self._clock() >= self._owned_until:
            self._owned_until = 0.0
            with suppress(StorageError, TimeoutError):  # a bucket that is away does not hold up a local call
                async with asyncio.timeout(_CATCH_UP_TIMEOUT):
                    await self.look(lambda _: None)

    async def read(self, work: Callable[[Image], Answer]) -> Answer:
        return work(await self._present())

    async def look(self, work: Callable[[Image], Answer]) -> Answer:
        """A read that shows what other processes did, if nothing here stands against it."""
        if not self._unsynced:
            await self._confirmed.refresh()
        if not self._unsynced and self._confirmed.version not in {"", self._version}:
            self._drop_image()
        return await self.read(work)

    async def flush(self) -> None:
        """Now. Raises Conflict if another process has written the object: then what was unsynced is lost."""
        async with self._flushing:
            image, taken, expected, changes = self._image, self._unsynced, self._version, self._changes
            if image is None or not (taken or self._must_disown()):
                return
            until = 0.0 if self._is_leaving else self._clock() + self._term
            disown(image) if self._is_leaving else own(image, replace(self._owner, until=until))
            upload = Upload(self._bucket, self._key, image)
            try:
                await upload.land(expected=expected, patience=float("inf"))
            except (Conflict, OutcomeUnknown) as error:
                self._lose(error)
                raise Conflict(f"{self._key} was written by someone else first; unsynced changes are lost") from error
            self._unsynced, self._refusal, self._owned_until = self._unsynced - taken, None, until
            self._version = upload.version
            self._tell_unconfirmed(changes, landed=True)
            if upload.version == SUPERSEDED:
                self._confirmed.suspect()
                if not self._unsynced:
                    self._drop_image()
            else:
                self._confirmed.adopt(upload.data, upload.version, upload.write.n)

    async def sync(self) -> None:
        await self.flush()
        await self.look(lambda _: None)

    @property
    def is_synced(self) -> bool:
        return not self._unsynced

    async def confirmed(self) -> bool:
        """Wait for a flush of every change so far, without asking for one. False: they are lost."""
        if not self._unsynced:
            return True
        landed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._unconfirmed.append((self._changes, landed))
        return await landed

    def _tell_unconfirmed(self, changes: int, *, landed: bool) -> None:
        told = [future for number, future in self._unconfirmed if number <= changes]
        self._unconfirmed = [(number, future) for number, future in self._unconfirmed if number > changes]
        for future in told:
            if not future.done():
                future.set_result(landed)

    def _lose(self, error: QoError) -> None:
        lost, self._unsynced, self._owned_until = self._unsynced, 0, 0.0
        self.lost += lost
        if lost:
            log.error("%s: %d unsynced changes are lost, and it is downloaded afresh: %s", self._key, lost, error)
        self._drop_image()
        self._confirmed.suspect()
        self._tell_unconfirmed(self._changes, landed=False)

    async def finish(self, patience: float) -> None:
        """Sync. A bucket that does not answer is not waited for without end."""
        self._is_leaving = True
        if self._syncing is None and self._must_disown():
            self._syncing = asyncio.create_task(self._sync())
        syncing = self._syncing
        if syncing is not None:
            self._pace.hurry()
            await asyncio.wait([syncing], timeout=patience)
            syncing.cancel()
            await asyncio.wait([syncing])
        if self._unsynced:
            self._lose(self._refusal or OutcomeUnknown("the bucket did not answer before the end"))
        await self._confirmed.settle()

    def close(self) -> None:
        self._drop_image()
        self._confirmed.close()

    def let_go(self) -> None:
        """Nobody has the engine any more: one last flush, and the task ends."""
        self._is_leaving = True
        if self._syncing is None and self._must_disown():
            self._syncing = asyncio.get_running_loop().create_task(self._sync())
        if self._syncing is not None:
            self._pace.hurry()
            self._syncing.get_loop().call_later(_LAST_TRY, self._syncing.cancel)

    def _must_disown(self) -> bool:
        """The object says that it is ours, and should not any more."""
        return self._is_leaving and self._image is not None and self._owned_until > self._clock()

    async def _sync(self) -> None:
        try:
            while self._unsynced or self._must_disown():
                await self._pace.turn()
                try:
                    await self.flush()
                except Conflict as error:
                    log.debug("%s: %s", self._key, error)  # `_lose` has told it
                except StorageError as error:
                    if self._refusal is None:
                        log.warning("%s was not written, and is tried again and again: %s", self._key, error)
                    self._refusal = error
        finally:
            self._syncing = None
            if self._unsynced:  # cancelled: no flush follows
                self._tell_unconfirmed(self._changes, landed=False)

    async def _present(self) -> Image:
        while self._image is None:
            if not self._confirmed.version:
                await self._confirmed.refresh()
            if self._image is None:
                data, self._version = self._confirmed.data, self._confirmed.version
                self._image = Image(self._key, data, self._clock, is_ours=bool(data))
        return self._image

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None
