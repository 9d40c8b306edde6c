"""The blobs of large values, and what a task stores instead of one. Blobs that no task refers to are removed.

A reference begins with MARK, and no JSON text and no raw value of the codec does. A caller of the port may send any
bytes, so a value that begins with MARK is stored behind a second mark. This way no caller can forge a reference.

Other programs may write task objects too. So a reference is valid only if it names a value of its own task:
`data/{first digit of its id}/{its id}/…`, or a payload that was submitted for it as the successor of another task. Any
other reference is treated as damaged: its object is neither read nor removed.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar

from qo.bucket import ANY, Blob, Bucket
from qo.clock import Clock
from qo.damage import DAMAGED_TASKS, checksum_of
from qo.engine import Engine
from qo.engines.requests import in_parallel, retry
from qo.errors import StorageError
from qo.model import ID_PATTERN, Task, is_id

log = logging.getLogger("qo.engines")
Kind = Literal["payload", "result"]

MARK = b"\x01qo\x01"
DATA = "data/"
_REFERENCE, _LITERAL = MARK + b"@", MARK + b"="
_FOLLOWER_NAME_LENGTH = 64  # digits: an id and 128 random bits
_KEY = re.compile(
    rf"{DATA}([0-9a-f])/({ID_PATTERN})/(payload_(?:[0-9a-f]{{32}}){{1,2}}|result_[0-9a-f]{{32}})", re.ASCII
)
MAX_TRANSFERS = 16  # concurrent, because blobs are large
Answer = TypeVar("Answer")
MIN_ORPHAN_AGE = 3600.0  # seconds: a younger blob may belong to a write in progress
_PAGE_SIZE = 500  # tasks


def data_key(task_id: str, kind: Kind, name: str) -> str:
    return f"{DATA}{task_id[0]}/{task_id}/{kind}_{name}"


def follower_name(next_id: str, token: str) -> str:
    """The name of a payload that may belong to a successor, under an idempotency key, of the task in its key."""
    return next_id.replace("-", "") + token


def follower_in(key: str) -> str | None:
    """The id of the successor that may hold this payload instead of the task in its key."""
    name = key.rpartition("_")[2]
    if len(name) != _FOLLOWER_NAME_LENGTH:
        return None
    return "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:32]))


def task_id_in(key: str) -> str | None:
    """The id in the key of a blob. None: the object is foreign."""
    found = _KEY.fullmatch(key)
    return found[2] if found and found[1] == found[2][0] else None


def reference(key: str, value: bytes) -> bytes:
    """A reference to the value under this key, with its checksum."""
    return _REFERENCE + f"{key}#{checksum_of(value)}".encode()


def referred(stored: bytes) -> str | None:
    """The key in a reference, valid or not. None: this is a value."""
    if not stored.startswith(_REFERENCE):
        return None
    return stored[len(_REFERENCE) :].decode("ascii", "replace").partition("#")[0]


def own_key(stored: bytes, task_id: str, kind: Kind) -> str | None:
    """The key in a valid reference of this task. None: this is a value, or the reference is not valid."""
    key = referred(stored)
    if key is None or not key.rpartition("/")[2].startswith(f"{kind}_"):
        return None
    owner = task_id_in(key)
    return key if owner is not None and task_id in (owner, follower_in(key)) else None


def is_intact(stored: bytes, value: bytes) -> bool:
    """Whether the value has the checksum of its reference. References of the first versions have no checksum."""
    checksum = stored.partition(b"#")[2].decode("ascii", "replace")
    return not checksum or checksum == checksum_of(value)


def literal(value: bytes) -> bytes:
    return _LITERAL + value if value.startswith(MARK) else value


def value_of(stored: bytes) -> bytes:
    return stored.removeprefix(_LITERAL)


class BlobStore:
    """Stores values above `inline` bytes as blobs. Retries failed requests for at least `retry_timeout` seconds."""

    def __init__(self, bucket: Bucket, *, inline: int, retry_timeout: float) -> None:
        self._bucket, self._inline, self._retry_timeout = bucket, inline, retry_timeout

    async def keep(self, task_id: str, kind: Kind, name: str, value: bytes) -> bytes:
        """Return what the task stores: the value, or a reference to the blob that now holds it."""
        if len(value) <= self._inline or not is_id(task_id):
            return literal(value)
        key = data_key(task_id, kind, name)
        await self._retry(lambda: self._bucket.put(key, value, expected=ANY))
        return reference(key, value)

    async def fetch(self, task: Task, kind: Kind) -> bytes | None:
        """The value. None: the task has none, its blob is missing or damaged, or another task owns the blob."""
        stored = task.payload if kind == "payload" else task.result
        if stored is None or referred(stored) is None:
            return None if stored is None else value_of(stored)
        key = own_key(stored, task.id, kind)
        if key is None:
            log.error("the %s of task %s refers to %r, which belongs to another task", kind, task.id, referred(stored))
            return None
        blob = await self.get(key)
        if blob is not None and not is_intact(stored, blob.data):  # the response may be damaged, and not the blob
            blob = await self.get(key)
        if blob is not None and not is_intact(stored, blob.data):
            log.error("%s is damaged: its checksum does not match its bytes", key)
            return None
        return None if blob is None else blob.data

    async def get(self, key: str) -> Blob | None:
        return await self._retry(lambda: self._bucket.get(key))

    async def keys(self) -> list[str]:
        async def read() -> list[str]:
            return [key async for key in self._bucket.keys(DATA)]

        return await self._retry(read)

    async def remove(self, keys: Sequence[str]) -> None:
        await in_parallel(lambda key: self._retry(lambda: self._bucket.delete(key)), keys, max_concurrent=MAX_TRANSFERS)

    async def _retry(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        return await retry(request, at_least=self._retry_timeout)


async def leave_to_repair(cleanup: Awaitable[None]) -> None:
    """Clean up after a call whose answer is known. If a removal fails, `repair` removes the blob later."""
    try:
        await cleanup
    except StorageError as error:
        log.warning("an unused blob could not be removed and stays until the next repair: %s", error)


async def remove_orphans(engine: Engine, blobs: BlobStore, clock: Clock, *, kept: Callable[[], Collection[str]]) -> int:
    """Remove the blobs that no task refers to, except those in `kept`. Returns the number of removals.

    Crashes leave such blobs behind.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in await blobs.keys():
        if task_id := task_id_in(key):  # otherwise the object is foreign
            found[task_id].append(key)
    ids, removed = sorted(found), 0

    async def remove_if_old(key: str) -> bool:
        blob = await blobs.get(key)
        if blob is None or blob.written_at > clock() - MIN_ORPHAN_AGE:
            return False
        await blobs.remove([key])
        return True

    for page in (ids[at : at + _PAGE_SIZE] for at in range(0, len(ids), _PAGE_SIZE)):
        unused = await _unused(engine, [key for task_id in page for key in found[task_id]])
        still_needed = kept()  # read last, because tasks may have been deleted in the meantime
        orphans = [key for key in unused if key not in still_needed]
        removed += sum(await in_parallel(remove_if_old, orphans, max_concurrent=MAX_TRANSFERS))
    return removed


async def _unused(engine: Engine, keys: list[str]) -> list[str]:
    """The blobs that no task refers to. A damaged task may refer to any blob with its id."""
    tasks = await engine.get(sorted({task_id for key in keys if (task_id := task_id_in(key)) is not None}))
    needed = used_keys(tasks)
    unused = [key for key in keys if key not in needed]
    if followers := followers_in(unused):
        following = await engine.get(followers)
        needed, tasks = needed | used_keys(following), [*tasks, *following]
    damaged = await _damaged(engine) if None in tasks else frozenset()
    return [key for key in unused if key not in needed and damaged.isdisjoint((task_id_in(key), follower_in(key)))]


async def _damaged(engine: Engine) -> frozenset[str]:
    """The ids of damaged tasks. Which values they need is unknown, and they may be restored."""
    notes = await engine.notes(DAMAGED_TASKS)
    return frozenset(note.name.removeprefix(DAMAGED_TASKS) for note in notes)


def used_keys(tasks: Iterable[Task | None]) -> frozenset[str]:
    """The blobs that these tasks refer to. References to blobs of other tasks are forged and ignored."""
    return frozenset(
        key
        for task in tasks
        if task is not None
        for key in (own_key(task.payload, task.id, "payload"), own_key(task.result or b"", task.id, "result"))
        if key is not None
    )


def followers_in(keys: Iterable[str]) -> list[str]:
    """The tasks that may refer to these payloads as successors under an idempotency key."""
    return sorted({task_id for key in keys if (task_id := follower_in(key)) is not None})
