"""Reads, changes and writes the object, with one write for all concurrent calls.

Calls that arrive during a write wait for the next one. If a write succeeds, the table was current, so the answers of
all calls of its batch are right, reads included. If no call of a batch changed anything, a read confirms that.
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

_MAX_DAMAGED_READS = 5  # of a damaged object, until two responses are the same


@dataclass(slots=True)
class PendingCommit(Generic[Answer]):
    work: Callable[[ObjectTable], Answer]
    abandoned: Callable[[Answer], None] | None = None  # called with the answer if the caller was cancelled
    done: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CommitLoop:
    def __init__(self, bucket: Bucket, key: str, *, max_batch_size: int, keeps_table: bool) -> None:
        self._bucket, self._key = bucket, key
        self._max_batch_size, self._keeps_table = max_batch_size, keeps_table
        self._waiting: list[PendingCommit[Any]] = []
        self._writer: asyncio.Task[None] | None = None
        self._fairness = WriterFairness(ContentionSignal(bucket, key))
        self._table = ObjectTable()  # the object's content if `_version` is set; otherwise a cache of decoded tasks
        self._version = ""  # of the object that the table was read from; empty: the table may be outdated
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
            if call.done.done() and not call.done.cancelled():  # the caller was cancelled after the answer was set
                _resolve(call, call.done.exception() or call.done.result())
            raise

    async def finish(self) -> None:
        """Wait until all calls have their answers."""
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
                    await self._serve_batch(batch)
                    self._fairness.end(has_read=has_read)
        finally:
            self._writer = None

    async def _serve_batch(self, batch: list[PendingCommit[Any]]) -> None:
        try:
            answers = await self._commit(batch)
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets it
            self._version = ""
            answers = [error] * len(batch)
        for call, answer in zip(batch, answers, strict=True):
            _resolve(call, answer)

    async def _commit(self, batch: list[PendingCommit[Any]]) -> list[Any]:
        attempts = self._fairness.attempts()
        while attempts.may_try():
            is_current = not self._keeps_table or not self._version
            if is_current:
                await self._read()
            answers = [_attempt(call, self._table) for call in batch]
            try:
                if self._table.is_changed:
                    await self._write()
                elif not is_current and await self._read():
                    continue  # another process has written, so the answers are outdated
            except Conflict:
                await attempts.back_off()
                continue
            return answers
        raise StorageError(f"other processes keep writing {self._key}; try again")

    async def _read(self) -> bool:
        """Read the object. Returns whether it has changed."""
        blob = await retry(lambda: self._bucket.get(self._key))
        if (NEW if blob is None else blob.version) == self._version:
            return False
        table = self._decoded(blob)
        for _ in range(_MAX_DAMAGED_READS):
            if isinstance(table, ObjectTable) and not table.damage_found:
                break
            # The response may be damaged, and not the object, so read until two responses are the same.
            former, blob = blob, await retry(lambda: self._bucket.get(self._key))
            if _same(blob, former):
                break
            table = self._decoded(blob)
        else:
            raise StorageError(f"each read of {self._key} returns other bytes; check the store and the connection")
        if isinstance(table, ValueError):
            raise StorageError(f"{self._key} does not hold a queue; examine it and move it away: {table}") from table
        self._table, self._version = table, NEW if blob is None else blob.version
        self._damage_log.report(self._table.damage_found)
        return True

    def _decoded(self, blob: Blob | None) -> ObjectTable | ValueError:
        if blob is not None and not blob.data and not getattr(self._bucket, "may_be_empty", False):
            # Only a user's storage is empty before the first write. Here the content was lost.
            raise StorageError(f"{self._key} is empty; restore an older version, or delete it to start over")
        try:
            return ObjectTable(b"" if blob is None else blob.data, self._table, place=self._key)
        except ValueError as error:
            return error

    async def _write(self) -> None:
        expected, self._version = self._version, ""  # unknown until the write is confirmed
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
    except Exception as error:  # noqa: BLE001 - only this caller gets it
        return error


def _resolve(call: PendingCommit[Any], answer: Any) -> None:
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
