"""Checks the invariants of the layout `log` on the objects of a bucket, with a reader of its own (log_reader.py).

I1, I2: the records from the floor to the end have no gap, and each names the one before it.
I3: what is below the floor is not needed.
I6: from every image on, merged records and records lead to the end, all to the same states.
I7: a submission changes the tables in the record that moves its producer's cursor past it.
I9: a segment that the tables name is stored, and contains what they say.
`log_history.py` checks what only the sequence of the requests shows.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from qo.bucket import Bucket
from tests.engines.log_reader import (
    LANES_REMOVED,
    SCHEMA,
    SCHEMA_STEP,
    Frame,
    Key,
    RowChange,
    Tables,
    Unreadable,
    add_columns,
    apply_changes,
    copied,
    difference,
    parse_key,
    read_document,
    read_frame,
    read_image,
    read_patchset,
)
from tests.engines.log_segment_checker import TASK_ID, TASK_LANE, TASK_N, TASK_STATUS, TASK_VERSION, segment_troubles

NO_ID = "0" * 32  # of the position before the first record


class Violation(NamedTuple):
    invariant: str
    detail: str


class ShardObjects:
    """The objects of one shard, decoded."""

    def __init__(self, objects: Mapping[str, bytes], log: str, shard: int) -> None:
        self.violations: list[Violation] = []
        self.checkpoint: dict[str, Any] = {}
        self.records: dict[int, Frame] = {}
        self.merged: dict[tuple[int, int], Frame] = {}
        self.parts: dict[tuple[int, str, int], Frame] = {}
        self.submissions: dict[tuple[str, int], Frame] = {}
        self.segments: dict[str, Frame] = {}  # by the name in the tables
        for name, data in objects.items():
            key = parse_key(name)
            if key is not None and (key.log, key.shard) == (log, shard):
                try:
                    self._read(name, key, data)
                except Unreadable as error:
                    self.report("frame", str(error))
        if not self.checkpoint:
            self.report("checkpoint", f"shard {shard} has no checkpoint")

    def _read(self, name: str, key: Key, data: bytes) -> None:
        if key.folder == "checkpoint":
            self.checkpoint = read_document(name, data)
            return
        frame = read_frame(name, data)
        if key.folder == "records":
            self.records[key.first] = frame
        elif key.folder == "merged":
            self.merged[key.first, key.last] = frame
        elif key.folder == "images":
            self.parts[key.first, key.token, key.last] = frame
        elif key.folder == "cold":
            self.segments[f"{key.first:016x}-{key.token}"] = frame
        else:
            self.submissions[key.token, key.first] = frame

    def report(self, invariant: str, detail: str) -> None:
        self.violations.append(Violation(invariant, detail))

    @property
    def floor(self) -> int:
        return int(self.checkpoint["floor"])

    @property
    def images(self) -> list[dict[str, Any]]:
        """Those that the checkpoint lists, oldest first."""
        return sorted(self.checkpoint["images"], key=lambda image: int(image["seq"]))

    @property
    def end(self) -> int:
        """The number of the last record."""
        numbers = [*self.records, *(last for _, last in self.merged), *(image["seq"] for image in self.images)]
        return max(numbers, default=0)

    def image_state(self, image: dict[str, Any]) -> Tables | None:
        """The tables of a listed image; None if it is not whole."""
        name = f"image {image['seq']}-{image['token']}"
        file = b""
        for number in range(image["parts"]):
            part = self.parts.get((image["seq"], image["token"], number))
            if part is None:
                self.report("I6", f"part {number} of {name} is missing")
                return None
            if image["id"] not in (part.previous, part.last_id) or part.previous != part.last_id:
                self.report("I1", f"{name} names another record than its parts")
            file += part.body
        if len(file) != image["raw_bytes"]:
            self.report("I6", f"{name} has {len(file)} bytes instead of {image['raw_bytes']}")
        version, tables = read_image(file)
        if version != image["schema"]:
            self.report("I6", f"{name} has schema {version} instead of {image['schema']}")
        return tables


def check_log(objects: Mapping[str, bytes]) -> list[Violation]:
    """Everything that is wrong with the log in a bucket, by its objects alone."""
    if "log/meta.json" not in objects:
        return []
    try:
        meta = read_document("log/meta.json", objects["log/meta.json"])
    except Unreadable as error:
        return [Violation("meta", str(error))]
    return [
        violation
        for shard in range(meta["shards"])
        for violation in _check_shard(ShardObjects(objects, meta["id"], shard))
    ]


def _check_shard(shard: ShardObjects) -> list[Violation]:
    if shard.checkpoint:
        _check_records(shard)
        _check_images(shard)
        state = replay(shard)
        if state is not None:
            _check_tables(shard, state)
            _check_submissions(shard, state)
    return shard.violations


def _check_records(shard: ShardObjects) -> None:
    if shard.end and shard.end + 1 < shard.floor:
        shard.report("I3", f"the floor {shard.floor} is past the end {shard.end}")
    for number in range(max(shard.floor, 1), shard.end + 1):
        record = shard.records.get(number)
        if record is None:
            shard.report("I2", f"record {number} is missing, but the floor is {shard.floor}")
        elif record.last_id != record.id:
            shard.report("I1", f"record {number} names another last record")
        elif number - 1 in shard.records and number > shard.floor and record.previous != shard.records[number - 1].id:
            shard.report("I1", f"record {number} does not follow record {number - 1}")


def _check_images(shard: ShardObjects) -> None:
    """A newcomer reaches the end from every image."""
    ranges = [(max(first, 1) - 1, last) for first, last in shard.merged]
    ranges += [(number - 1, number) for number in shard.records if number >= shard.floor]
    for image in shard.images:
        reached = {image["seq"]}
        for start, end in sorted(ranges):
            if start in reached:
                reached.add(end)
        if shard.end not in reached:
            shard.report("I6", f"nothing leads from image {image['seq']} to record {shard.end}")


def replay(shard: ShardObjects) -> Tables | None:
    """The last state, after comparing every way that leads to it."""
    states, ids = _bases(shard)
    first = min(states, default=None)
    if first is None:
        shard.report("I6", "neither an image nor the first record is left")
        return None
    for number in range(first, shard.end + 1):
        if number in states:
            for step in _steps(shard, number):
                _advance(shard, states, ids, number, step)
        elif number >= shard.floor - 1:
            shard.report("I6", f"the state after record {number} cannot be reproduced")
        if number != shard.end:
            states.pop(number, None)
    return states.get(shard.end)


def _bases(shard: ShardObjects) -> tuple[dict[int, Tables], dict[int, str]]:
    states: dict[int, Tables] = {}
    ids: dict[int, str] = {0: NO_ID}
    if shard.floor <= 1 or not shard.images:
        states[0] = {}
    for image in shard.images:
        tables = shard.image_state(image)
        if tables is not None:
            states[image["seq"]], ids[image["seq"]] = tables, image["id"]
    return states, ids


class _Step(NamedTuple):
    target: int
    frame: Frame


def _steps(shard: ShardObjects, number: int) -> Iterator[_Step]:
    """The objects that continue after a position. Records below the floor are not part of the log."""
    if number + 1 in shard.records and number + 1 >= shard.floor:
        yield _Step(number + 1, shard.records[number + 1])
    for (first, last), frame in shard.merged.items():
        if number + 1 == max(first, 1):
            yield _Step(last, frame)


def _advance(shard: ShardObjects, states: dict[int, Tables], ids: dict[int, str], number: int, step: _Step) -> None:
    """Apply one object to the state at a position, and compare the result with what other objects lead to."""
    target, frame = step
    name = f"{number + 1}-{target}" if frame.kind == 2 else f"{target}"
    if frame.previous != ids[number]:
        shard.report("I1", f"{name} does not follow the record before it")
        return
    after = copied(states[number])
    try:
        changes = apply_frame(after, frame)
    except Unreadable as error:
        shard.report("I1", f"{name} does not apply: {error}")
        return
    if _removes_lanes(changes) and not frame.flags & LANES_REMOVED:
        shard.report("flags", f"{name} removes lanes and does not say so")
    if ids.setdefault(target, frame.last_id) != frame.last_id:
        shard.report("I1", f"{name} ends with another id than the record {target}")
    known = states.setdefault(target, after)
    if trouble := difference(known, after):
        shard.report("I6", f"{name} leads to another state: {trouble}")


def apply_frame(tables: Tables, frame: Frame) -> list[RowChange]:
    if frame.flags & SCHEMA_STEP:
        add_columns(tables, json.loads(frame.body))
        return []
    if frame.schema_since > SCHEMA:
        raise Unreadable(f"it needs schema {frame.schema_since}")
    changes = list(read_patchset(frame.body))
    apply_changes(tables, iter(changes))
    return changes


def _removes_lanes(changes: list[RowChange]) -> bool:
    return any(change.table == "lanes" and change.operation == "DELETE" for change in changes)


def _check_tables(shard: ShardObjects, state: Tables) -> None:
    for trouble in table_troubles(state):
        shard.report("I8", trouble)
    for trouble in segment_troubles(state, shard.segments):
        shard.report("I9", trouble)


def table_troubles(state: Tables) -> list[str]:
    """What does not hold between the tables of one state."""
    tasks = [*state.get("tasks", {}).values()]
    events, lanes = state.get("events", {}), state.get("lanes", {})
    troubles = [f"{n} tasks have the id {id}" for id, n in Counter(task[TASK_ID] for task in tasks).items() if n > 1]
    troubles += [f"task {task[TASK_ID]} has no lane" for task in tasks if (task[TASK_LANE],) not in lanes]
    troubles += [
        f"task {task[TASK_ID]} has no event of version {task[TASK_VERSION]}"
        for task in tasks
        if (task[TASK_N], task[TASK_VERSION]) not in events
    ]
    counted = Counter((task[TASK_LANE], task[TASK_STATUS]) for task in tasks)
    for _, lane, status, _, number in state.get("cold_counts", {}).values():
        counted[lane, status] += number
    stored = Counter({key: row[2] for key, row in state.get("tally", {}).items()})
    troubles += [
        f"the tally of {key} is {stored[key]} instead of {counted[key]}"
        for key in counted.keys() | stored.keys()
        if counted[key] != stored[key]
    ]
    return troubles


def _check_submissions(shard: ShardObjects, state: Tables) -> None:
    """Submissions below the cursor were consumed: their tasks are stored, unless retention has deleted them since."""
    cursors = {producer: row[1] for (producer,), row in state.get("submissions", {}).items()}
    added = _added_ids(shard)
    stored = {row[TASK_ID] for row in state.get("tasks", {}).values()}
    for (producer, n), frame in shard.submissions.items():
        ids = {task["id"] for task in msgspec.msgpack.decode(frame.body)}
        if frame.last != len(ids):
            shard.report("frame", f"submission {producer}/{n} counts {frame.last} tasks and has {len(ids)}")
        if n >= cursors.get(producer, 0) and ids & added:
            shard.report("I7", f"submission {producer}/{n} was added, but the cursor is before it")
        if n < cursors.get(producer, 0) and shard.floor <= 1 and not ids <= stored | added:
            shard.report("I7", f"submission {producer}/{n} is before the cursor, but was not added")


def _added_ids(shard: ShardObjects) -> set[str]:
    return {
        change.values[TASK_ID]
        for number, record in shard.records.items()
        if number >= shard.floor and not record.flags & SCHEMA_STEP
        for change in read_patchset(record.body)
        if (change.table, change.operation) == ("tasks", "INSERT")
    }


async def check_bucket(bucket: Bucket) -> None:
    """Read a whole bucket and raise AssertionError if its log violates an invariant."""
    objects = {}
    keys = [key async for key in bucket.keys("log/")]
    for key in keys:
        blob = await bucket.get(key)
        if blob is not None:
            objects[key] = blob.data
    violations = check_log(objects)
    assert not violations, violations[:10]
