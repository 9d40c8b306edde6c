"""Mode `durable`: a call is answered when the bucket has what it changed, and reads see nothing else.

While one flush is under way, what is asked for gathers into the next, and is done to the tables only then: between two
flushes the tables are what the bucket holds. A flush that succeeds proves every answer of its round; a round that
changes nothing is proved by looking.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from qo.bucket import Bucket
from qo.buckets.own_writes import SUPERSEDED
from qo.clock import Clock
from qo.engines.contention import ContentionSignal, WriterFairness
from qo.engines.sqlite_object.calls import PendingCall
from qo.engines.sqlite_object.confirmed import Confirmed
from qo.engines.sqlite_object.flush_timer import FlushTimer
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.owner import check_owner
from qo.engines.sqlite_object.upload import Upload
from qo.errors import Conflict, OutcomeUnknown, QoError, StorageError
from qo.model import ClaimRequest
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")


class Durable:
    lost = 0  # nothing that was acknowledged
    is_synced = True

    def __init__(
        self, bucket: Bucket, key: str, clock: Clock, pace: FlushTimer, *, patience: float, repeats_lost_races: bool
    ) -> None:
        self._bucket, self._key, self._clock, self._pace = bucket, key, clock, pace
        self._patience, self._repeats = patience, repeats_lost_races
        self._confirmed = Confirmed(bucket, key, clock)
        self._image: Image | None = None  # where the next round happens
        self._version = ""  # of the object the image stands for
        self._waiting: list[PendingCall] = []
        self._under_way: list[PendingCall] = []
        self._writer: asyncio.Task[None] | None = None
        self._fairness = WriterFairness(ContentionSignal(bucket, key))

    async def open(self) -> None:
        """Download. A bucket that cannot be read, or holds something else, says so here."""
        await self._confirmed.look(is_opening=True)

    async def ask(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        request: ClaimRequest | None = None,
    ) -> Answer:
        call = PendingCall(work, abandoned, request)
        self._waiting.append(call)
        self._pace.count(len(self._waiting))
        if self._writer is None:
            self._writer = asyncio.create_task(self._serve())
        try:
            answer: Answer = await call.done
        except asyncio.CancelledError:
            if call.done.done() and not call.done.cancelled():  # it left with the answer on its way
                call.tell(call.done.exception())
            raise
        return answer

    async def read(self, work: Callable[[Image], Answer]) -> Answer:
        await self._confirmed.refresh()
        return work(self._confirmed.image)

    look = read

    async def flush(self) -> None:
        """Now, and until all who wait have their answers."""
        waiting = [call.done for call in (*self._under_way, *self._waiting) if not call.done.done()]
        if waiting:
            self._pace.hurry()
            await asyncio.wait(waiting)

    async def confirmed(self) -> bool:
        return True

    async def sync(self) -> None:
        """Nothing to do: every answer is in the bucket, and every read looks there."""

    async def finish(self, patience: float) -> None:
        """Do what was asked for. A bucket that does not answer is not waited for without end."""
        writer = self._writer
        if writer is not None:
            self._pace.hurry()
            await asyncio.wait([writer], timeout=patience)
            writer.cancel()
            await asyncio.wait([writer])
        await self._confirmed.settle()

    def close(self) -> None:
        self._drop_image()
        self._confirmed.close()

    def let_go(self) -> None:
        """Nobody has the engine any more, so nobody waits for an answer."""
        if self._writer is not None:
            self._writer.cancel()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._pace.turn()
                self._under_way = [call for call in self._waiting if not call.done.done()]
                self._waiting = []
                if self._under_way:
                    if await self._fairness.begin():
                        self._forget()
                    has_read = not self._confirmed.version
                    await self._round(self._under_way)
                    self._fairness.end(has_read=has_read)
        finally:
            self._writer = None
            _tell(self._under_way, OutcomeUnknown, f"{self._key} may or may not have been written before the end")
            _tell(self._waiting, StorageError, f"{self._key} was not written before the end")
            self._under_way, self._waiting = [], []

    async def _round(self, batch: list[PendingCall]) -> None:
        try:
            await self._commit(batch)
        except QoError as error:
            self._forget()
            _tell(batch, type(error), *error.args, cause=error)
        except Exception as error:  # noqa: BLE001 - goes to everyone in the batch
            self._forget()
            _tell(batch, StorageError, f"{self._key} could not be changed: {error!r}", cause=error)
        else:
            for call in batch:
                call.tell(None)

    async def _commit(self, batch: list[PendingCall]) -> None:
        attempts, is_fresh = self._fairness.attempts(), False
        while attempts.may_try():
            if not self._confirmed.version:
                await self._confirmed.refresh()
                is_fresh = True
            image = self._present()
            if image.do(batch):
                check_owner(image, self._key, self._clock())
                try:
                    return await self._flush(image)
                except Conflict:
                    self._forget()
                    if not self._repeats:
                        await attempts.report_conflict()
                        raise Conflict(_LOST.format(self._key)) from None
                is_fresh = False
                await attempts.back_off()
                continue
            if not is_fresh:
                await self._confirmed.refresh()
                is_fresh = True
            if self._version == self._confirmed.version:
                return None
        raise StorageError(f"{self._key} is written by others all the time; try again")

    def _present(self) -> Image:
        """The tables as the bucket holds them."""
        if self._image is None or self._version != self._confirmed.version:
            self._drop_image()
            data, self._version = self._confirmed.data, self._confirmed.version
            self._image = Image(self._key, data, self._clock, is_ours=bool(data))
        return self._image

    async def _flush(self, image: Image) -> None:
        expected = self._version
        upload = Upload(self._bucket, self._key, image)
        await upload.land(expected=expected, patience=self._patience)
        if upload.version == SUPERSEDED:
            self._forget()
        elif self._confirmed.version == expected:  # else a reader has seen this write, or one after it, before us
            self._confirmed.adopt(upload.data, upload.version, upload.write.n)
            self._version = upload.version

    def _forget(self) -> None:
        """What was done to the tables never happened, or someone has gone on from it: download afresh."""
        self._drop_image()
        self._confirmed.suspect()

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None


_LOST = "{} was written by someone else first; nothing of this call was kept: try it again"


def _tell(batch: list[PendingCall], kind: type[QoError], *words: object, cause: BaseException | None = None) -> None:
    """An error each: one shared by many callers would collect their tracebacks."""
    for call in batch:
        if not call.done.done():
            error = kind(*words)
            error.__cause__ = cause
            call.tell(error)
