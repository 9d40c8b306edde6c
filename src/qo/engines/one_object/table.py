"""The table of a queue that is stored as one object: its content, decoded and indexed, and as bytes again.

`StoredTable` is the table that the bucket holds: reads, changes and writes of the object.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.damage import DamageLog, check_known_format, check_stored, sealed, unsealed
from qo.engines.commit_loop import CommitLoop, PendingCall
from qo.engines.indexed_table import IndexedTable
from qo.engines.one_object.record import (
    FORMAT,
    ObjectHeader,
    Record,
    StoredNote,
    UnknownParts,
    check_head,
    decode_head,
    decode_record,
    encode_object,
    encode_record,
    grown,
    id_in,
    salvage,
    unknown_parts,
)
from qo.engines.requests import retry
from qo.errors import StorageError
from qo.ids import new_token as new_write_id
from qo.model import Event, Note, Task

KEPT_WRITE_IDS = 64  # other processes may write this often before a lost response is resolved
Answer = TypeVar("Answer")
_MAX_DAMAGED_READS = 5  # of a damaged object, until two responses are the same


class ObjectTable(IndexedTable):
    """A task that did not change is neither decoded nor encoded again: it keeps its bytes."""

    def __init__(self, data: bytes = b"", known: "ObjectTable | None" = None, *, place: str = "the object") -> None:
        """`known` is a table of the same object; tasks that are equal in both are not decoded again.

        Raises ValueError if the object does not hold a queue, and Refused if a newer qo excludes this one.
        """
        super().__init__()
        text, head, damaged = _parts(data) if data else (b"", ObjectHeader(format=FORMAT, version=0, writes=()), [])
        self.version, self.writes = head.version, head.writes
        self._format = check_head(place, head)
        self._unknown = unknown_parts(text, head) if data else UnknownParts({}, {})
        self.is_changed = False
        self.damage_found: dict[str, str] = {}  # tasks of the object that could not be read, and why
        self._encoded: dict[str, bytes] = {}
        self._records: dict[str, Record] = {}
        self._notes = {note.name: Note(note.name, note.data, note.version) for note in head.notes}
        self._load([bytes(raw) for raw in head.tasks], known)
        for damaged_text in damaged:
            self._set_text_aside(damaged_text, ValueError("its checksum does not match its bytes"))
        # A writer that does not know followers may have deleted the last task under a key.
        self._followers = {first: last for first, last in head.followers.items() if self._is_stored(last)}

    def _load(self, texts: list[bytes], known: "ObjectTable | None") -> None:
        decoded = known._decoded() if known else {}  # noqa: SLF001 - another table of the same class
        for text in texts:
            data, record = decoded.get(text) or (b"", None)
            if record is None:
                try:
                    data, record = sealed(text), decode_record(text)
                    check_stored(record.task)
                except ValueError as error:
                    check_known_format(self._format.format, FORMAT, error)
                    self._set_text_aside(text, error)
                    continue
            task = record.task
            self._encoded[task.id], self._records[task.id], self.tasks[task.id] = data, record, task
            self._index(task)

    def _set_text_aside(self, text: bytes, error: ValueError) -> None:
        """Keep the bytes of a damaged task in a note. The next write omits it from the tasks."""
        task_id = id_in(text)
        self.set_aside(task_id, f"its part of the object does not decode: {error}", text)
        self.damage_found[task_id] = str(error)
        self.is_changed = True

    def _decoded(self) -> dict[bytes, tuple[bytes, Record]]:
        """By the text of a task: the same text with its checksum, and decoded."""
        return {unsealed(data): (data, self._records[task_id]) for task_id, data in self._encoded.items()}

    def encode(self) -> tuple[bytes, str]:
        """The bytes to write, and the id of this write."""
        write = new_write_id()
        self.writes = (*self.writes, write)[-KEPT_WRITE_IDS:]
        self.version += 1
        head = ObjectHeader(
            format=self._format.format,
            since=self._format.since,
            qo=self._format.qo,
            version=self.version,
            writes=self.writes,
            notes=tuple(StoredNote(**note._asdict()) for note in self._notes.values()),
            followers=self._followers,
        )
        self.is_changed = False
        return encode_object(head, self._encoded.values(), self._unknown), write

    # --- the table's operations, where they differ

    def _write(self, task: Task, *, without_event: bool = False, log: str | None = None) -> None:
        record = grown(self._records.get(task.id), task, without_event=without_event, log=log)
        encoded = encode_record(record, self._encoded.get(task.id))  # first: if this fails, nothing has changed
        self._encoded[task.id], self._records[task.id] = encoded, record
        super()._write(task, without_event=True)  # the record holds the events
        self.is_changed = True

    def _remove(self, task: Task) -> None:
        super()._remove(task)
        del self._encoded[task.id], self._records[task.id]
        self.is_changed = True

    def history(self, task_id: str) -> list[Event]:
        record = self._records.get(task_id)
        return [] if record is None else [event.event() for event in record.events]

    def write_note(self, name: str, data: bytes, expected: str) -> str:
        version = super().write_note(name, data, expected)
        self.is_changed = True
        return version

    def _new_note_version(self) -> str:
        return new_write_id()  # random, so that a version is new even after its note was dropped

    def drop_note(self, name: str) -> None:
        self.is_changed = self.is_changed or name in self._notes
        super().drop_note(name)


def _parts(data: bytes) -> tuple[bytes, ObjectHeader, list[bytes]]:
    """The object as text and decoded, and the texts of damaged tasks. Raises ValueError."""
    try:
        return data, decode_head(data), []
    except ValueError:
        return salvage(data)


class StoredTable(CommitLoop):
    def __init__(self, bucket: Bucket, key: str, *, max_batch_size: int, keeps_table: bool) -> None:
        """Without `keeps_table`, every batch reads the object first."""
        super().__init__(bucket, key, max_batch_size=max_batch_size)
        self._keeps_table = keeps_table
        self._table = ObjectTable()  # the object's content if `_version` is set; otherwise a cache of decoded tasks
        self._version = ""  # of the object that the table was read from; empty: the table may be outdated
        self._damage_log = DamageLog()

    async def call(
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
