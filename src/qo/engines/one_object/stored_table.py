"""The table that the bucket holds: reads, changes and writes of the object."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.damage import DamageLog
from qo.engines.commit_loop import CommitLoop, PendingCall
from qo.engines.one_object.record import decode_head
from qo.engines.one_object.table import KEPT_WRITE_IDS, ObjectTable
from qo.engines.retry import retry
from qo.errors import StorageError

Answer = TypeVar("Answer")

_MAX_DAMAGED_READS = 5  # of a damaged object, until two responses are the same


class StoredTable(CommitLoop):
    def __init__(self, bucket: Bucket, key: str, *, max_batch_size: int, keeps_table: bool) -> None:
        """Without `keeps_table`, every batch reads the object first."""
        super().__init__(bucket, key, max_batch_size=max_batch_size)
        self._keeps_table = keeps_table
        self._table = ObjectTable()  # the object's content if `_version` is set; otherwise a cache of decoded tasks
        self._version = ""  # of the object that the table was read from; empty: the table may be outdated
        self._damage_log = DamageLog()

    async def ask(
        self, work: Callable[[ObjectTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        answer: Answer = await self.submit(PendingCall(work, abandoned))
        return answer

    async def finish(self) -> None:
        """Wait until all calls have their answers."""
        while self._writer is not None:
            await asyncio.wait([self._writer])
        await self._fairness.finish()

    @property
    def _is_loaded(self) -> bool:
        return self._keeps_table and bool(self._version)

    async def _run(self, batch: list[PendingCall]) -> bool:
        for call in batch:
            call.error = None
            try:
                call.answer = call.work(self._table)
            except Exception as error:  # noqa: BLE001 - only this caller gets it
                call.error = error
        return self._table.is_changed

    async def _refresh(self) -> bool:
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

    def _forget(self) -> None:
        self._version = ""


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
