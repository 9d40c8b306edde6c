"""Reading, changing and writing the object, for all who ask at once.

While one write is under way, what is asked for gathers into the next. A write that succeeds proves every answer of its
round, reads included: the object was what we took it for. A round that changes nothing is proved by reading.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.damage import DamageLog
from qo.engines.contention import ContentionSignal, WriterFairness
from qo.engines.one_object.record import decode_head
from qo.engines.one_object.table import KEPT_WRITE_IDS, ObjectTable
from qo.engines.retry import retry
from qo.errors import Conflict, StorageError

Answer = TypeVar("Answer")

_MOST_READS = 5  # of an object that is damaged, until two answers are the same


@dataclass(slots=True)
class PendingCommit(Generic[Answer]):
    work: Callable[[ObjectTable], Answer]
    abandoned: Callable[[Answer], None] | None = None  # told the answer if the caller has left
    done: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CommitLoop:
    def __init__(self, bucket: Bucket, key: str, *, max_batch_size: int, keeps_table: bool) -> None:
        self._bucket, self._key = bucket, key
        self._max_batch_size, self._keeps_table = max_batch_size, keeps_table
        self._waiting: list[PendingCommit[Any]] = []
        self._writer: asyncio.Task[None] | None = None
        self._fairness = WriterFairness(ContentionSignal(bucket, key))
        self._table = ObjectTable()  # what the object held, as far as `_version` says so; else a store of decoded tasks
        self._version = ""  # of the object the table stands for; empty: it stands for none
        self._damage_log = DamageLog()

    async def ask(
        self, work: Callable[[ObjectTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        call = PendingCommit(work, abandoned)
        self._waiting.append(call)
        if self._writer is None:
            self._writer = asyncio.create_task(self._serve())
        try:
            return await call.done
        except asyncio.CancelledError:
            if call.done.done() and not call.done.cancelled():  # it left with the answer on its way
                _answer(call, call.done.exception() or call.done.result())
            raise

    async def finish(self) -> None:
        """Wait until everyone who asked has an answer."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _serve(self) -> None:
        try:
            while self._waiting:
                waiting = [call for call in self._waiting if not call.done.done()]
                batch, self._waiting = waiting[: self._max_batch_size], waiting[self._max_batch_size :]
                if batch:
                    if await self._fairness.begin():
                        self._version = ""
                    has_read = not self._version
                    await self._round(batch)
                    self._fairness.end(has_read=has_read)
        finally:
            self._writer = None

    async def _round(self, batch: list[PendingCommit[Any]]) -> None:
        try:
            answers = await self._commit(batch)
        except Exception as error:  # noqa: BLE001 - goes to everyone in the batch
            self._version = ""
            answers = [error] * len(batch)
        for call, answer in zip(batch, answers, strict=True):
            _answer(call, answer)

    async def _commit(self, batch: list[PendingCommit[Any]]) -> list[Any]:
        attempts = self._fairness.attempts()
        while attempts.may_try():
            is_proved = not self._keeps_table or not self._version
            if is_proved:
                await self._read()
            answers = [_attempt(call, self._table) for call in batch]
            try:
                if self._table.is_changed:
                    await self._write()
                elif not is_proved and await self._read():
                    continue  # someone has written since: what we answered is not so any more
            except Conflict:
                await attempts.back_off()
                continue
            return answers
        raise StorageError(f"{self._key} is written by others all the time; try again")

    async def _read(self) -> bool:
        """Whether it was news."""
        blob = await retry(lambda: self._bucket.get(self._key))
        if (NEW if blob is None else blob.version) == self._version:
            return False
        table = self._decoded(blob)
        for _ in range(_MOST_READS):
            if isinstance(table, ObjectTable) and not table.damage_found:
                break
            # The answer may be damaged, and not what is stored: only the same answer twice is believed.
            former, blob = blob, await retry(lambda: self._bucket.get(self._key))
            if _same(blob, former):
                break
            table = self._decoded(blob)
        else:
            raise StorageError(f"{self._key} reads differently each time; check the store and the connection to it")
        if isinstance(table, ValueError):
            raise StorageError(f"{self._key} does not hold a queue; look at it and move it away: {table}") from table
        self._table, self._version = table, NEW if blob is None else blob.version
        self._damage_log.report(self._table.damage_found)
        return True

    def _decoded(self, blob: Blob | None) -> ObjectTable | ValueError:
        if blob is not None and not blob.data and not getattr(self._bucket, "may_be_empty", False):
            # A plain storage may hold nothing at first. Here someone has emptied the object, and all that was in it.
            raise StorageError(f"{self._key} is empty; put an older version in its place, or remove it to start over")
        try:
            return ObjectTable(b"" if blob is None else blob.data, self._table, place=self._key)
        except ValueError as error:
            return error

    async def _write(self) -> None:
        expected, self._version = self._version, ""  # until it is known to have landed
        data, write = self._table.encode()
        own_version = self._table.version
        version = await put_document(
            self._bucket,
            self._key,
            data,
            expected=expected,
            is_ours=lambda stored: _is_ours(stored, write, own_version),
        )
        self._version = "" if version == SUPERSEDED else version


def _attempt(call: PendingCommit[Any], table: ObjectTable) -> Any:
    try:
        return call.work(table)
    except Exception as error:  # noqa: BLE001 - one caller's mistake must not sink the others
        return error


def _answer(call: PendingCommit[Any], answer: Any) -> None:
    if call.done.done():
        if call.abandoned is not None and not isinstance(answer, Exception):
            call.abandoned(answer)
    elif isinstance(answer, Exception):
        call.done.set_exception(answer)
    else:
        call.done.set_result(answer)


def _same(one: Blob | None, other: Blob | None) -> bool:
    return (one and (one.data, one.version)) == (other and (other.data, other.version))


def _is_ours(stored: bytes, write: str, version: int) -> bool | None:
    try:
        head = decode_head(stored)
    except ValueError:
        return None
    if write in head.writes:
        return True
    return False if head.version < version + KEPT_WRITE_IDS else None
