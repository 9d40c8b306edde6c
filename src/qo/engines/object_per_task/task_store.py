"""Task objects. A task is written only over the version that was read."""

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

_MAX_CACHED_TASKS = 20_000


class StoredTask(NamedTuple):
    document: StoredDocument
    version: str  # the bucket's version
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
        self._cached: OrderedDict[str, StoredTask] = OrderedDict()  # running tasks that this process wrote last

    async def read(self, task_id: str) -> StoredTask | None:
        """The stored object, or None if there is none or it cannot be read."""
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
                task_key(task_id), task_id, f"its name says {task_id}, its content {document.task.id}"
            )
            return None
        self._quarantine.release_task(task_key(task_id), task_id)
        return StoredTask(document, blob.version, blob.written_at)

    async def read_live(self, task_id: str) -> StoredTask | None:
        stored = await self.read(task_id)
        return stored if stored is not None and stored.is_alive else None

    def cached(self, task_id: str) -> StoredTask | None:
        """The document that this process wrote last, so that settling needs no read. A write detects an old one."""
        return self._cached.get(task_id)

    async def write(self, document: StoredDocument, over: StoredTask | None) -> None:
        """Replace the document that was read, or create one. Raises Conflict if another process wrote first."""
        task = document.task
        self._cached.pop(task.id, None)
        version = await put_document(
            self._bucket,
            task_key(task.id),
            encode(document),
            expected=over.version if over else NEW,
            is_ours=lambda data: _is_ours(data, document),
        )
        if task.status is Status.RUNNING and version != SUPERSEDED:
            self._cached[task.id] = StoredTask(document, version, 0.0)
            if len(self._cached) > _MAX_CACHED_TASKS:
                self._cached.popitem(last=False)

    async def remove_unreadable(self, task_id: str) -> bool:
        """Remove an object if it still cannot be read. The sweeper removes its index entries."""
        key = task_key(task_id)
        if await self.read(task_id) is not None or self.is_readable(task_id):
            return False
        await retry(lambda: self._bucket.delete(key))
        self._quarantine.release_task(key, task_id)
        return True

    async def is_occupied(self, task_id: str) -> bool:
        """Whether an object exists, readable or not."""
        return await retry(lambda: self._bucket.get(task_key(task_id))) is not None

    def is_readable(self, task_id: str) -> bool:
        return task_key(task_id) not in self._quarantine.keys


def _is_ours(data: bytes, document: StoredDocument) -> bool | None:
    try:
        return is_ours(decode(data), document)
    except UNREADABLE:
        return None
