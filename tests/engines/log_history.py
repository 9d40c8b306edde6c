"""A bucket that records every change, and the invariants of the layout `log` that only their sequence shows.

I1, I2: each new record follows the last one, and none is written twice.
I3: the floor never moves back, and nothing is deleted before it has moved or before it can be replaced.
I6: an image is listed when all its parts are stored, and equals the replayed records.
I7: each submission changes the tables in one record, and is deleted afterwards.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from qo.bucket import NEW
from qo.buckets.memory import MemoryBucket
from qo.clock import Clock, system_clock
from tests.engines.log_checker import NO_ID, Violation, apply_frame, table_troubles
from tests.engines.log_reader import (
    Frame,
    Key,
    RowChange,
    Tables,
    Unreadable,
    copied,
    difference,
    parse_key,
    read_document,
    read_frame,
    read_image,
    read_segment,
)
from tests.engines.log_segment_checker import TASK_ID, segment_troubles


class StoredChange(NamedTuple):
    key: str
    data: bytes | None  # None: deleted
    expected: str = ""


class RecordingBucket(MemoryBucket):
    """Keeps every successful write and every deletion, in order."""

    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self.changes: list[StoredChange] = []

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        version = await super().put(key, data, expected=expected)
        self.changes.append(StoredChange(key, data, expected))
        return version

    async def delete(self, key: str) -> None:
        await super().delete(key)
        self.changes.append(StoredChange(key, None))

    def objects(self) -> dict[str, bytes]:
        return {key: versions[-1].data for key, versions in self._blobs.items()}


def check_history(changes: Sequence[StoredChange]) -> list[Violation]:
    """Everything that went wrong in the log that the last `log/meta.json` names."""
    metas = [change.data for change in changes if change.key == "log/meta.json" and change.data is not None]
    if not metas:
        return []
    log = read_document("log/meta.json", metas[-1])["id"]
    shards: dict[int, _ShardHistory] = {}
    for change in changes:
        key = parse_key(change.key)
        if key is not None and key.log == log:
            shards.setdefault(key.shard, _ShardHistory()).follow(key, change)
    return [violation for shard in shards.values() for violation in shard.violations]


class _ShardHistory:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._stored: dict[Key, Frame] = {}
        self._checkpoint: dict[str, Any] | None = None
        self._end, self._ids = 0, {0: NO_ID}
        self._states: dict[int, Tables] = {0: {}}
        self._submitted: dict[tuple[str, int], frozenset[str]] = {}
        self._added: dict[str, int] = {}  # the record that added a task

    def follow(self, key: Key, change: StoredChange) -> None:
        try:
            if change.data is None:
                self._delete(key)
            elif key.folder == "checkpoint":
                self._change_checkpoint(read_document(change.key, change.data))
            else:
                self._write(key, change)
        except Unreadable as error:
            self._report("frame", str(error))

    def _report(self, invariant: str, detail: str) -> None:
        self.violations.append(Violation(invariant, detail))

    @property
    def _floor(self) -> int:
        return int(self._checkpoint["floor"]) if self._checkpoint else 1

    def _write(self, key: Key, change: StoredChange) -> None:
        assert change.data is not None
        frame = read_frame(change.key, change.data)
        if change.expected != NEW:
            self._report("I2", f"{change.key} was not written as a new object")
        self._stored[key] = frame
        if key.folder == "records":
            self._append(key.first, frame)
        elif key.folder == "merged":
            self._merge(key, frame)
        elif key.folder == "submissions":
            self._submit(key, frame)

    # --- records

    def _append(self, number: int, frame: Frame) -> None:
        if number < self._floor:
            return  # a writer that slept: no process reads it, and its writer must not acknowledge it
        if number != self._end + 1 or frame.previous != self._ids[self._end]:
            self._report("I1", f"record {number} does not follow record {self._end}")
            return
        before = self._states[self._end]
        after = copied(before)
        changes = apply_frame(after, frame)
        self._consume(number, before, after, changes)
        self._end, self._ids[number], self._states[number] = number, frame.id, after
        self.violations += [Violation("I8", f"record {number}: {trouble}") for trouble in table_troubles(after)]
        troubles = segment_troubles(after, self._segments) if after.get("segments") else []
        self.violations += [Violation("I9", f"record {number}: {trouble}") for trouble in troubles]

    def _merge(self, key: Key, frame: Frame) -> None:
        before, after = self._states.get(max(key.first, 1) - 1), self._states.get(key.last)
        if before is None or after is None:
            self._report("I6", f"{key.first}-{key.last} were merged before they were written")
            return
        if (frame.previous, frame.last_id) != (self._ids[max(key.first, 1) - 1], self._ids[key.last]):
            self._report("I1", f"the merged {key.first}-{key.last} names other records")
        merged = copied(before)
        apply_frame(merged, frame)
        if trouble := difference(merged, after):
            self._report("I6", f"the merged {key.first}-{key.last} leads to another state: {trouble}")

    # --- submissions

    def _submit(self, key: Key, frame: Frame) -> None:
        ids = frozenset(task["id"] for task in msgspec.msgpack.decode(frame.body))
        if self._submitted.setdefault((key.token, key.first), ids) != ids:  # a late repeat of one write is the same
            self._report("I7", f"two submissions have the name {key.token}/{key.first}")

    def _consume(self, number: int, before: Tables, after: Tables, changes: list[RowChange]) -> None:
        """Compare the tasks that a record adds with the submissions whose cursors it moves."""
        added = {row.values[TASK_ID] for row in changes if (row.table, row.operation) == ("tasks", "INSERT")}
        added -= self._cold_ids(before)  # those of segments return to the tables
        for task_id in added:
            if task_id in self._added:
                self._report("I7", f"records {self._added[task_id]} and {number} both add {task_id}")
            self._added[task_id] = number
        old, new = _cursors(before), _cursors(after)
        for producer in old.keys() | new.keys():
            start, end = old.get(producer, 0), new.get(producer)
            if end is None:
                left = [key for key in self._stored if key.folder == "submissions" and key.token == producer]
                if left:
                    self._report("I7", f"record {number} forgets {producer}, but {left} are stored")
                continue
            if end < start:
                self._report("I7", f"record {number} moves the cursor of {producer} back")
            for n in range(start, end):
                missing = self._submitted.get((producer, n), frozenset()) - added
                if missing - _task_ids(before) - self._cold_ids(before):
                    self._report("I7", f"record {number} passes {producer}/{n} without adding {missing}")

    # --- segments

    @property
    def _segments(self) -> dict[str, Frame]:
        """The stored segments, by their names in the tables."""
        return {f"{key.first:016x}-{key.token}": frame for key, frame in self._stored.items() if key.folder == "cold"}

    def _cold_ids(self, tables: Tables) -> set[str]:
        stored = self._segments if tables.get("segments") else {}
        names = [row[1] for row in tables.get("segments", {}).values() if row[1] in stored]
        return {task_id for name in names for task_id in _task_ids(read_segment(stored[name].body))}

    # --- checkpoint and deletions

    def _change_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if checkpoint["floor"] < self._floor:
            self._report("I3", f"the floor moved back from {self._floor} to {checkpoint['floor']}")
        listed = [image["token"] for image in (self._checkpoint or {}).get("images", ())]
        self._checkpoint = checkpoint
        for image in checkpoint["images"]:
            if image["token"] not in listed:
                self._list_image(image)
        self._check_coverage("a new checkpoint")

    def _list_image(self, image: dict[str, Any]) -> None:
        frames = [
            self._stored.get(Key(key.log, key.shard, "images", image["seq"], part, image["token"]))
            for key in [*self._stored][:1]
            for part in range(image["parts"])
        ]
        if None in frames or not frames:
            self._report("I6", f"image {image['seq']} was listed before all its parts were stored")
            return
        _, tables = read_image(b"".join(frame.body for frame in frames if frame))
        if trouble := difference(tables, self._states.get(image["seq"], {})):
            self._report("I6", f"image {image['seq']} differs from the records: {trouble}")

    def _delete(self, key: Key) -> None:
        gone = self._stored.pop(key, None)
        if gone is None:
            return
        if key.folder == "records" and key.first >= self._floor:
            self._report("I3", f"record {key.first} was deleted, but the floor is {self._floor}")
        if key.folder == "submissions" and key.first >= _cursors(self._states[self._end]).get(key.token, 0):
            self._report("I7", f"submission {key.token}/{key.first} was deleted before it was consumed")
        if key.folder == "cold":
            name = f"{key.first:016x}-{key.token}"
            if key.first >= self._floor:
                self._report("I3", f"the segment {name} was deleted, but the floor is {self._floor}")
            if any(row[1] == name for row in self._states[self._end].get("segments", {}).values()):
                self._report("I9", f"the segment {name} was deleted, but the tables name it")
        self._check_coverage(f"the deletion of {key.folder} {key.first}")

    def _check_coverage(self, cause: str) -> None:
        """From every listed image, a newcomer still reaches the end; and from the beginning, if there is none."""
        images = (self._checkpoint or {}).get("images", ())
        for image in images:
            parts = sum(1 for key in self._stored if key.folder == "images" and key.token == image["token"])
            if parts < image["parts"]:
                self._report("I6", f"after {cause} the image {image['seq']} is not whole")
        steps = {
            (max(key.first, 1) - 1, key.last)
            for key in self._stored
            if key.folder == "merged" or (key.folder == "records" and key.first >= self._floor)
        }
        for base in [image["seq"] for image in images] or [0]:
            reached = {base}
            for start, end in sorted(steps):
                if start in reached:
                    reached.add(end)
            if self._end not in reached:
                self._report("I6", f"after {cause} nothing leads from {base} to the record {self._end}")


def _cursors(tables: Tables) -> dict[str, int]:
    return {producer: row[1] for (producer,), row in tables.get("submissions", {}).items()}


def _task_ids(tables: Tables) -> set[str]:
    return {row[TASK_ID] for row in tables.get("tasks", {}).values()}
