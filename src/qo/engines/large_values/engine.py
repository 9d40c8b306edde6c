"""Stores large payloads and results, and the notes of administrators, next to the tasks of any bucket layout.

Large values are blobs under `data/` that tasks refer to.

A blob is written before a task refers to it and removed after the task is deleted, so a crash can leave a blob that no
task refers to. `repair` removes such blobs once they are too old to belong to a write in progress.

Notes below `admin/` and `audit/` are separate objects in every layout. In a layout of one object, all roles write that
object, so its content can neither grant rights nor prove who did what.
"""

import asyncio
import logging
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import Quarantine
from qo.engine import Engine, Snapshot
from qo.engines.commit_loop import WriteBehind
from qo.engines.hand_backs import HandBacks
from qo.engines.large_values.blobs import (
    MARK,
    MAX_TRANSFERS,
    BlobStore,
    follower_name,
    followers_in,
    leave_to_repair,
    own_key,
    referred,
    remove_orphans,
    used_keys,
)
from qo.engines.note_objects import NoteObjects
from qo.engines.requests import in_parallel
from qo.errors import Conflict, StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.ids import new_token
from qo.model import (
    ADMIN_NOTES,
    AUDIT_NOTES,
    PAYLOAD_LIMIT,
    Added,
    Change,
    ClaimRequest,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    fail,
    release,
)

log = logging.getLogger("qo.engines")
DEFAULT_PAYLOAD_LIMIT = 16 * 1024 * 1024  # bytes, unless a URL sets another limit
_SEPARATE_NOTES = (ADMIN_NOTES, AUDIT_NOTES)


class LargeValuesEngine(ForwardingEngine):
    """Stores values that are too large for the wrapped engine as blobs in a bucket."""

    def __init__(
        self,
        engine: Engine,
        bucket: Bucket,
        *,
        inline: int = PAYLOAD_LIMIT,
        payload_limit: int = DEFAULT_PAYLOAD_LIMIT,
        retry_timeout: float = 0.0,
        clock: Clock,
    ) -> None:
        """Failed requests to the bucket are retried for at least `retry_timeout` seconds."""
        super().__init__(engine)
        self._payload_limit, self._inline, self._clock = payload_limit, inline, clock
        self._blobs = BlobStore(bucket, inline=inline, retry_timeout=retry_timeout)
        self._hand_backs = HandBacks(engine.apply)
        self._separate_notes = NoteObjects(bucket, Quarantine())
        self._removals: dict[asyncio.Task[None], list[str]] = {}  # blobs of deleted tasks, to be removed after a flush

    @property
    def payload_limit(self) -> int:
        return self._payload_limit

    async def close(self) -> None:
        await self._hand_backs.finish()
        await self.engine.close()
        if self._removals:
            await asyncio.wait(self._removals)

    async def now(self) -> float:
        return self._clock()

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        if not any(self._needs_change(task.payload) for task in tasks):
            return await self.engine.add(tasks)
        check_distinct(task.id for task in tasks)
        kept = await in_parallel(self._keep_payload, tasks, max_concurrent=MAX_TRANSFERS)
        written = {task.id: key for task in kept if (key := own_key(task.payload, task.id, "payload"))}
        try:
            added = await self.engine.add(kept)
        except Conflict:  # nothing was written
            await leave_to_repair(self._withdraw(written))
            raise
        ids = [each.id for each in kept]
        if refused := {
            first: written[first] for first, each in zip(ids, added, strict=True) if not each.new and first in written
        }:
            await leave_to_repair(self._withdraw(refused))
        return added

    def _needs_change(self, value: bytes | None) -> bool:
        return value is not None and (len(value) > self._inline or value.startswith(MARK))

    async def _keep_payload(self, task: NewTask) -> NewTask:
        """The blob has a random name: no two submissions share one, so each may remove its own."""
        name = new_token()[:32]
        if task.next_id is not None:
            name = follower_name(task.next_id, name)
        return replace(task, payload=await self._blobs.keep(task.id, "payload", name, task.payload))

    async def _withdraw(self, refused: dict[str, str]) -> None:
        """Remove the blobs of refused writes, unless the task refers to them: an earlier attempt may have succeeded."""
        needed = used_keys(await self.engine.get([*refused, *followers_in(refused.values())]))
        await self._blobs.remove([key for key in refused.values() if key not in needed])

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if not any(self._needs_change(change.result) or self._needs_change(change.payload) for change in changes):
            return await self.engine.apply(changes)
        check_distinct(change.id for change in changes)
        kept = await in_parallel(self._keep_values, changes, max_concurrent=MAX_TRANSFERS)
        written = {change.id: key for change in kept if (key := _written_key(change))}
        try:
            answers = await self.engine.apply(kept)
        except Conflict:  # nothing was written
            await leave_to_repair(self._withdraw(written))
            raise
        is_applied = dict(zip((change.id for change in kept), answers, strict=True))
        if refused := {task_id: key for task_id, key in written.items() if not is_applied[task_id]}:
            await leave_to_repair(self._withdraw(refused))
        return answers

    async def _keep_values(self, change: Change) -> Change:
        """The name of a result's blob depends on the lease and the value, so a repeated call writes the same blob."""
        if change.payload is not None:
            kept = await self._blobs.keep(change.id, "payload", new_token()[:32], change.payload)
            return replace(change, payload=kept)
        if change.result is None:
            return change
        name = sha256(f"{change.lease_id} ".encode() + change.result).hexdigest()[:32]
        return replace(change, result=await self._blobs.keep(change.id, "result", name, change.result))

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        tasks = await self.engine.get(ids)
        answers = await self.engine.delete(ids)
        keys = sorted(used_keys(task for task, deleted in zip(tasks, answers, strict=True) if deleted))
        if keys and isinstance(self.engine, WriteBehind) and not self.engine.is_synced:
            removal = asyncio.create_task(self._remove_once_confirmed(self.engine, keys))
            self._removals[removal] = keys
            removal.add_done_callback(self._removals.pop)
        else:
            await leave_to_repair(self._blobs.remove(keys))
        return answers

    async def _remove_once_confirmed(self, engine: WriteBehind, keys: list[str]) -> None:
        """If the deletion is lost, the task exists again and needs its values."""
        if await engine.confirmed():
            await leave_to_repair(self._blobs.remove(keys))

    async def repair(self) -> int:
        """Repair the wrapped engine, then remove blobs that no task refers to."""
        if isinstance(self.engine, WriteBehind):
            await self.engine.sync()  # tasks that its copy does not show yet may refer to blobs
        repaired = await self.engine.repair()
        return repaired + await remove_orphans(self.engine, self._blobs, self._clock, kept=self._awaiting_removal)

    def _awaiting_removal(self) -> set[str]:
        return {key for keys in self._removals.values() for key in keys}

    # --- reading

    async def claim(self, request: ClaimRequest) -> list[Task]:
        claimed = await self.engine.claim(request)
        if not any(_is_marked(task) for task in claimed):
            return claimed
        try:
            filled = await in_parallel(self._filled, claimed, max_concurrent=MAX_TRANSFERS)
        except asyncio.CancelledError:
            self._hand_backs.start(claimed)
            raise
        return [task for task in filled if task is not None]

    async def _filled(self, task: Task) -> Task | None:
        """The task with its values. None: it cannot run, and was released or failed; other tasks are not affected."""
        try:
            payload, result = await self._blobs.fetch(task, "payload"), await self._blobs.fetch(task, "result")
        except StorageError as error:
            log.warning("the payload of %s %s cannot be read; releasing the task: %s", task.type, task.id, error)
            await self.engine.apply([release(task)])
            return None
        if payload is not None:
            return replace(task, payload=payload, result=result)  # a replayed task still has the result of its last run
        log.error(
            "the payload of %s %s is missing or damaged; the task fails", task.type, task.id, extra={"task_id": task.id}
        )
        await self.engine.apply([fail(task, f"its payload is missing or damaged: {referred(task.payload)}")])
        return None

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await in_parallel(self._with_values, await self.engine.get(ids), max_concurrent=MAX_TRANSFERS)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self.with_values(
            await self.engine.find(where, limit=limit, after=after, created_before=created_before)
        )

    async def snapshot(self) -> Snapshot:
        found = await self.engine.snapshot()
        return found._replace(tasks=await self.with_values(found.tasks))

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        return await self.engine.get_without_values(ids)

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self.engine.find(where, limit=limit, after=after, created_before=created_before)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        filled = await in_parallel(self._with_values, tasks, max_concurrent=MAX_TRANSFERS)
        return [task for task in filled if task is not None]

    async def _with_values(self, task: Task | None) -> Task | None:
        """The task with its values. A missing value is replaced by its key, so that a listing does not fail."""
        if task is None or not _is_marked(task):
            return task
        payload, result = await self._blobs.fetch(task, "payload"), await self._blobs.fetch(task, "result")
        return replace(
            task,
            payload=_missing(task.payload) if payload is None else payload,
            result=_missing(task.result) if result is None and task.result is not None else result,
        )

    # --- notes

    async def read_note(self, name: str) -> Note | None:
        if name.startswith(_SEPARATE_NOTES):
            return await self._separate_notes.read(name)
        return await self.engine.read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(_SEPARATE_NOTES):
            return await self._separate_notes.write(name, data, expected)
        return await self.engine.write_note(name, data, expected=expected)

    async def notes(self, prefix: str) -> list[Note]:
        if prefix.startswith(_SEPARATE_NOTES):
            return await self._separate_notes.find(prefix)
        folders = [folder for folder in _SEPARATE_NOTES if folder.startswith(prefix)]
        found = await self.engine.notes(prefix)
        if not folders:
            return found
        # The wrapped engine may list the same objects, or forged notes in its one object.
        merged = [note for note in found if not note.name.startswith(_SEPARATE_NOTES)]
        for folder in folders:
            merged += await self._separate_notes.find(folder)
        return sorted(merged)

    async def drop_note(self, name: str) -> None:
        if name.startswith(_SEPARATE_NOTES):
            await self._separate_notes.drop(name)
        else:
            await self.engine.drop_note(name)


def _written_key(change: Change) -> str | None:
    """The blob that the values of a change were written to."""
    return own_key(change.payload or b"", change.id, "payload") or own_key(change.result or b"", change.id, "result")


def _is_marked(task: Task) -> bool:
    return task.payload.startswith(MARK) or (task.result or b"").startswith(MARK)


def _missing(stored: bytes) -> bytes:
    return msgspec.json.encode({"$missing": referred(stored)})
