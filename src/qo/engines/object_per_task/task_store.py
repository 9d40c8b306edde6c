"""Task objects: read, and written only over the version that was read."""

from collections import OrderedDict
from typing import NamedTuple

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.damage import check_stored
from qo.engines.object_per_task.keys import task_key
from qo.engines.object_per_task.task_document import StoredDocument, decode, encode, is_ours
from qo.engines.quarantine import Quarantine
from qo.engines.retry import retry
from qo.model import UNREADABLE, Status, Task, is_id

_MOST_HELD = 20_000


class StoredTask(NamedTuple):
    document: StoredDocument
    version: str  # the bucket's
    written_at: float

    @property
    def task(self) -> Task:
        return self.document.task

    @property
    def is_alive(self) -> bool:
        return not self.document.tombstone


class TaskStore:
    def __init__(self, bucket: Bucket, quarantine: Quarantine) -> None:
        self._bucket, self._quarantine = bucket, quarantine
        self._held: OrderedDict[str, StoredTask] = OrderedDict()  # running tasks this process wrote last

    async def read(self, task_id: str) -> StoredTask | None:
        """The object as it is now; None if there is none that can be read."""
        if not is_id(task_id):
            return None
        key = task_key(task_id)
        blob = await retry(lambda: self._bucket.get(key))
        if blob is None:
            self._quarantine.release_task(key, task_id)
            return None
        return self.decoded(task_id, blob)

    def decoded(self, task_id: str, blob: Blob) -> StoredTask | None:
        try:
            document = decode(blob.data)
            check_stored(document.task)
        except UNREADABLE as error:
            self._quarantine.put_task(task_key(task_id), task_id, error)
            return None
        if document.task.id != task_id:
            self._quarantine.put_task(
                task_key(task_id), task_id, f"it is named after {task_id} but holds {document.task.id}"
            )
            return None
        self._quarantine.release_task(task_key(task_id), task_id)
        return StoredTask(document, blob.version, blob.written_at)

    async def read_living(self, task_id: str) -> StoredTask | None:
        kept = await self.read(task_id)
        return kept if kept is not None and kept.is_alive else None

    def held(self, task_id: str) -> StoredTask | None:
        """What this process wrote last, so that settling needs no read. It may be outdated: a write finds out."""
        return self._held.get(task_id)

    async def write(self, document: StoredDocument, over: StoredTask | None) -> None:
        """Write over what was read, or where nothing is. Conflict: someone else wrote first."""
        task = document.task
        self._held.pop(task.id, None)
        version = await put_document(
            self._bucket,
            task_key(task.id),
            encode(document),
            expected=over.version if over else NEW,
            is_ours=lambda data: _is_ours(data, document),
        )
        if task.status is Status.RUNNING and version != SUPERSEDED:
            self._held[task.id] = StoredTask(document, version, 0.0)
            if len(self._held) > _MOST_HELD:
                self._held.popitem(last=False)

    async def remove_unreadable(self, task_id: str) -> bool:
        """Remove an object that cannot be read, if it still cannot. Its index entries are left to the sweeper."""
        key = task_key(task_id)
        if await self.read(task_id) is not None or self.is_readable(task_id):
            return False
        await retry(lambda: self._bucket.delete(key))
        self._quarantine.release_task(key, task_id)
        return True

    async def is_occupied(self, task_id: str) -> bool:
        """There is an object, readable or not."""
        return await retry(lambda: self._bucket.get(task_key(task_id))) is not None

    def is_readable(self, task_id: str) -> bool:
        return task_key(task_id) not in self._quarantine.keys


def _is_ours(data: bytes, document: StoredDocument) -> bool | None:
    try:
        return is_ours(decode(data), document)
    except UNREADABLE:
        return None
