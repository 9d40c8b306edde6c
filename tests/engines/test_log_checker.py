"""The checker of the layout `log` accepts a log written by hand, and finds each kind of damage."""

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import apsw
import msgspec
import pytest

from qo.bucket import NEW
from tests.engines.log_checker import check_log
from tests.engines.log_history import StoredChange, check_history
from tests.engines.log_reader import TABLES, read_frame, read_patchset

LOG = "0123456789ab"
SHARD = f"log/{LOG}/00/"
PRODUCER = "9" * 32
NO_ID = "0" * 32
SCHEMA = """
CREATE TABLE lanes (n INTEGER PRIMARY KEY, queue TEXT);
CREATE TABLE tasks (n INTEGER PRIMARY KEY, id TEXT UNIQUE, lane INTEGER, status TEXT, a, b, c, d, e, version INTEGER);
CREATE TABLE events (n INTEGER, version INTEGER, at REAL, PRIMARY KEY (n, version)) WITHOUT ROWID;
CREATE TABLE tally (lane INTEGER, status TEXT, count INTEGER, PRIMARY KEY (lane, status)) WITHOUT ROWID;
CREATE TABLE notes (name TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID;
CREATE TABLE followers (first TEXT PRIMARY KEY, last TEXT UNIQUE) WITHOUT ROWID;
CREATE TABLE submissions (producer TEXT PRIMARY KEY, next INTEGER, at REAL) WITHOUT ROWID;
PRAGMA user_version = 7;
"""


def record_id(number: int) -> str:
    return f"{number:032x}"


def frame(kind: int, first: int, last: int, body: bytes, **fields: Any) -> bytes:
    ids = [bytes.fromhex(fields.get(name, NO_ID)) for name in ("id", "previous", "last_id")]
    stored = zlib.compress(body, 1)
    header = struct.pack(
        ">4s4B4H2Q16s16s16sd2Q16sI",
        *(b"qoLG", kind, 1, 1, 1, 7, 7, fields.get("flags", 0), 0, first, last, *ids, 0.0),
        *(len(body), len(stored), bytes(16), zlib.crc32(body)),
    )
    return header + struct.pack(">I", zlib.crc32(header + stored)) + stored


def sealed(document: dict[str, Any]) -> bytes:
    data = json.dumps(document).encode()
    bits = f"{zlib.crc32(data):032b}".replace("0", " ").replace("1", "\t")
    return data + b"\n" + bits.encode()


class WrittenLog:
    """Five records, of which the second to the third are merged, an image after the third, and a submission."""

    def __init__(self) -> None:
        self.changes: list[StoredChange] = []
        self.db = apsw.Connection(":memory:")
        self.db.execute(SCHEMA)
        self.put(f"{SHARD}checkpoint.json", sealed({"version": 1, "floor": 1, "images": []}))
        self.put("log/meta.json", sealed({"format": 1, "id": LOG, "shards": 1}))
        self.commit(1, "INSERT INTO lanes VALUES (1, 'default'), (2, 'other')", *self.added(1))
        two = self.commit(2, "UPDATE tasks SET status = 'running', version = 2; INSERT INTO events VALUES (1, 2, 1.5)",
                          "UPDATE tally SET status = 'running'")  # fmt: skip
        three = self.commit(3, *self.added(2), "DELETE FROM lanes WHERE n = 2", flags=1)
        merged = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]
        for patchset in (two, three):
            merged.add(patchset)
        self.put(f"{SHARD}merged/{2:016x}-{3:016x}", frame(2, 2, 3, merged.output(), flags=1, id=record_id(99),
                 previous=record_id(1), last_id=record_id(3)))  # fmt: skip
        self.write_image(3)
        tasks = msgspec.msgpack.encode([{"id": "task 3"}])
        self.put(f"{SHARD}submissions/{PRODUCER}/{0:08x}", frame(4, 0, 1, tasks, previous=PRODUCER))
        self.commit(4, *self.added(3), f"INSERT INTO submissions VALUES ('{PRODUCER}', 1, 2.5)")
        self.commit(5, "UPDATE submissions SET at = 3.5")

    def added(self, n: int) -> list[str]:
        return [
            f"INSERT INTO tasks (n, id, lane, status, version) VALUES ({n}, 'task {n}', 1, 'pending', 1)",
            f"INSERT INTO events VALUES ({n}, 1, 0.5)",
            "INSERT INTO tally VALUES (1, 'pending', 1) ON CONFLICT DO UPDATE SET count = count + 1",
        ]

    def put(self, key: str, data: bytes) -> None:
        self.changes.append(StoredChange(key, data, NEW))

    def commit(self, number: int, *statements: str, **fields: Any) -> bytes:
        session = apsw.Session(self.db, "main")
        for table in TABLES:
            session.attach(table)
        for statement in statements:
            self.db.execute(statement)
        patchset = session.patchset()
        fields = {"id": record_id(number), "last_id": record_id(number), "previous": record_id(number - 1)} | fields
        self.put(f"{SHARD}records/{number:016x}", frame(1, number, number, patchset, **fields))
        return patchset

    def commits(self, *transactions: list[str]) -> None:
        for number, statements in enumerate(transactions, start=6):
            self.commit(number, *statements)

    def write_image(self, number: int, **listed: Any) -> None:
        file, token, half = self.db.serialize("main"), "7" * 32, 4096
        slices = [file[:half], file[half:]]
        for part, data in enumerate(slices):
            self.put(
                f"{SHARD}images/{number:016x}-{token}/{part:04x}",
                frame(3, number, part, data, id=token, previous=record_id(number), last_id=record_id(number)),
            )
        image = {
            "seq": number,
            "token": token,
            "parts": 2,
            "raw_bytes": len(file),
            "id": record_id(number),
            "schema": 7,
        }
        self.put(f"{SHARD}checkpoint.json", sealed({"version": 2, "floor": 1, "images": [image | listed]}))

    def objects(self) -> dict[str, bytes]:
        stored: dict[str, bytes] = {}
        for change in self.changes:
            if change.data is None:
                stored.pop(change.key, None)
            else:
                stored[change.key] = change.data
        return stored

    def found(self) -> set[str]:
        return {violation.invariant for violation in check_log(self.objects())}

    def found_in_history(self) -> set[str]:
        return {violation.invariant for violation in check_history(self.changes)}

    def delete(self, name: str) -> None:
        self.changes.append(StoredChange(SHARD + name, None))

    def replace(self, name: str, data: bytes) -> None:
        self.put(SHARD + name, data)

    def move_floor(self, floor: int) -> None:
        (*_, last) = [change.data for change in self.changes if change.key.endswith("checkpoint.json")]
        assert last is not None
        self.replace("checkpoint.json", sealed(json.loads(last) | {"floor": floor}))


RECORDS = [f"records/{n:016x}" for n in range(6)]
MERGED = f"merged/{2:016x}-{3:016x}"
SUBMISSION = f"submissions/{PRODUCER}/{0:08x}"


@pytest.fixture
def log() -> WrittenLog:
    return WrittenLog()


def test_a_whole_log_passes(log: WrittenLog) -> None:
    log.delete(SUBMISSION)
    assert check_log(log.objects()) == []
    assert check_history(log.changes) == []


def test_a_collected_log_passes(log: WrittenLog) -> None:
    log.move_floor(4)
    for name in [*RECORDS[1:4], MERGED]:
        log.delete(name)
    assert check_log(log.objects()) == []


def test_every_flipped_byte_of_a_frame_is_found(log: WrittenLog) -> None:
    key, data = SHARD + RECORDS[4], log.objects()[SHARD + RECORDS[4]]
    for at in range(len(data)):
        objects = log.objects() | {key: data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]}
        assert "frame" in {violation.invariant for violation in check_log(objects)}, at


def reframed(data: bytes, key: str, **fields: Any) -> bytes:
    read = read_frame(key, data)
    kept = {"id": read.id, "previous": read.previous, "last_id": read.last_id, "flags": read.flags}
    return frame(read.kind, read.first, read.last, fields.pop("body", read.body), **kept | fields)


def another(name: str, **fields: Any) -> Callable[[WrittenLog], None]:
    return lambda log: log.replace(name, reframed(log.objects()[SHARD + name], SHARD + name, **fields))


DAMAGES: dict[str, tuple[str, Callable[[WrittenLog], None]]] = {
    "a record is missing": ("I2", lambda log: log.delete(RECORDS[4])),
    "a record follows another one": ("I1", another(RECORDS[5], previous=record_id(3))),
    "a record is applied twice": ("I1", lambda log: another(RECORDS[5], body=_body(log, RECORDS[4]))(log)),
    "lanes were removed in silence": ("flags", another(RECORDS[3], flags=0)),
    "a merged record lacks one": ("I6", lambda log: another(MERGED, body=_body(log, RECORDS[2]))(log)),
    "a merged record ends elsewhere": ("I1", another(MERGED, last_id=record_id(2))),
    "an image part is missing": ("I6", lambda log: log.delete(f"images/{3:016x}-{'7' * 32}/0001")),
    "an image is that of a later record": ("I6", lambda log: log.write_image(3)),
    "a floor past the end": ("I3", lambda log: log.move_floor(9)),
    "a floor above records that nothing replaces": ("I6", lambda log: log.move_floor(5)),
    "a submission added without its cursor": (
        "I7",
        lambda log: log.replace(f"submissions/{PRODUCER}/{7:08x}", log_submission(7, "task 3")),
    ),
    "no checkpoint": ("checkpoint", lambda log: log.delete("checkpoint.json")),
}


def _body(log: WrittenLog, name: str) -> bytes:
    return read_frame(SHARD + name, log.objects()[SHARD + name]).body


def log_submission(n: int, task_id: str) -> bytes:
    return frame(4, n, 1, msgspec.msgpack.encode([{"id": task_id}]), previous=PRODUCER)


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_kind_of_damage_is_found(log: WrittenLog, damage: str) -> None:
    invariant, spoil = DAMAGES[damage]
    spoil(log)
    assert invariant in log.found()


Step = Callable[[WrittenLog], None]
SECOND = f"submissions/{PRODUCER}/{1:08x}"
submit_another: Step = lambda log: log.replace(SECOND, log_submission(1, "task 9"))  # noqa: E731 - as the others
MISSTEPS: dict[str, tuple[str, list[Step]]] = {
    "a record is deleted above the floor": ("I3", [lambda log: log.delete(RECORDS[2])]),
    "the floor moves back": ("I3", [lambda log: log.move_floor(4), lambda log: log.move_floor(3)]),
    "an image is deleted that nothing replaces": (
        "I6",
        [lambda log: log.move_floor(4), lambda log: log.delete(f"images/{3:016x}-{'7' * 32}/0000")],
    ),
    "a number is written again": ("I1", [another(RECORDS[5])]),
    "a submission is deleted unread": ("I7", [submit_another, lambda log: log.delete(SECOND)]),
    "a task is added twice": (
        "I7",
        [lambda log: log.commits(["DELETE FROM tasks WHERE n = 3", "DELETE FROM events WHERE n = 3"], log.added(3))],
    ),
    "the cursor moves without the tasks": (
        "I7",
        [submit_another, lambda log: log.commits(["UPDATE submissions SET next = 2"])],
    ),
}


@pytest.mark.parametrize("misstep", MISSTEPS)
def test_each_misstep_is_found_in_the_history(log: WrittenLog, misstep: str) -> None:
    invariant, steps = MISSTEPS[misstep]
    assert log.found_in_history() == set()
    for step in steps:
        step(log)
    assert invariant in log.found_in_history()


def test_a_patchset_is_read_as_sqlite_reads_it(log: WrittenLog) -> None:
    body = _body(log, RECORDS[3])
    mine = sorted((change.table, change.operation) for change in read_patchset(body))
    theirs = sorted((change.name, change.op) for change in apsw.Changeset.iter(body))
    assert mine == theirs
