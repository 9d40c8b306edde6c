"""A second reader of the layout `log`, written from docs/log-format.md. It shares no code with the engine.

It decodes frames, sealed documents, patchsets and images, and applies patchsets to tables that are dicts.
"""

import hashlib
import json
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

MAGIC, FORMAT, SCHEMA = b"qoLG", 1, 9
KINDS = {"records": 1, "merged": 2, "images": 3, "submissions": 4, "cold": 5}
LANES_REMOVED, SCHEMA_STEP = 1, 2
MAX_BODY = 256 * 1024 * 1024  # bytes
TABLES = (
    "lanes",
    "tasks",
    "events",
    "tally",
    "notes",
    "followers",
    "submissions",
    "segments",
    "cold_ids",
    "cold_counts",
)
_HEADER = struct.Struct(">4s4B4H2Q16s16s16sd2Q16sII")  # 128 bytes, see "The frame"
_KEY = re.compile(
    r"log/(?P<log>[0-9a-f]{12})/(?P<shard>[0-9a-f]{2})/"
    r"(?:(?P<checkpoint>checkpoint\.json)"
    r"|cold/(?P<limit>[0-9a-f]{16})-(?P<cold>[0-9a-f]{32})"
    r"|images/(?P<image>[0-9a-f]{16})-(?P<token>[0-9a-f]{32})/(?P<part>[0-9a-f]{4})"
    r"|merged/(?P<first>[0-9a-f]{16})-(?P<last>[0-9a-f]{16})"
    r"|records/(?P<seq>[0-9a-f]{16})"
    r"|submissions/(?P<producer>[0-9a-f]{32})/(?P<n>[0-9a-f]{8}))"
)

Row = tuple[Any, ...]
Tables = dict[str, dict[Row, Row]]


class Unreadable(Exception):
    """An object is not what the format says."""


class Key(NamedTuple):
    log: str
    shard: int
    folder: str  # checkpoint, cold, images, merged, records, submissions
    first: int = 0  # seq, first, n, or the last record that may add a segment
    last: int = 0  # seq, last or part
    token: str = ""  # of an image or segment, or the producer of a submission


def parse_key(key: str) -> Key | None:
    """What an object of a shard is; None for any other object."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    parts = found.groupdict()
    log, shard = parts["log"], int(parts["shard"], 16)
    if parts["checkpoint"]:
        return Key(log, shard, "checkpoint")
    if parts["seq"]:
        return Key(log, shard, "records", int(parts["seq"], 16), int(parts["seq"], 16))
    if parts["first"]:
        return Key(log, shard, "merged", int(parts["first"], 16), int(parts["last"], 16))
    if parts["image"]:
        return Key(log, shard, "images", int(parts["image"], 16), int(parts["part"], 16), parts["token"])
    if parts["limit"]:
        return Key(log, shard, "cold", int(parts["limit"], 16), 0, parts["cold"])
    return Key(log, shard, "submissions", int(parts["n"], 16), 0, parts["producer"])


class Frame(NamedTuple):
    kind: int
    schema: int
    schema_since: int
    flags: int
    shard: int
    first: int
    last: int
    id: str
    previous: str
    last_id: str
    at: float
    writer: str
    body: bytes


def read_frame(key: str, data: bytes) -> Frame:
    """Decode an object and compare its header with its key. Raises Unreadable."""
    place = parse_key(key)
    assert place is not None, key
    if len(data) < _HEADER.size:
        raise Unreadable(f"{key} is shorter than a header")
    magic, kind, number, since, compression, schema, schema_since, flags, shard, first, last, *rest = _HEADER.unpack(
        data[: _HEADER.size]
    )
    own, previous, last_id, at, raw_bytes, stored_bytes, writer, raw_crc, crc = rest
    stored = data[_HEADER.size :]
    _require(magic == MAGIC, key, "has another magic")
    _require(zlib.crc32(data[:124] + stored) == crc, key, "does not match its checksum")
    _require(since <= FORMAT <= number, key, f"has format {number}, readable since {since}")
    _require(kind == KINDS[place.folder], key, f"has kind {kind}")
    _require(shard == place.shard, key, f"belongs to shard {shard}")
    _require(first == place.first, key, f"has number {first}")
    _require(place.folder in ("submissions", "cold") or last == place.last, key, f"ends at {last}")
    _require(not flags & ~(LANES_REMOVED | SCHEMA_STEP), key, f"has unknown flags {flags}")
    _require(len(stored) == stored_bytes, key, f"stores {len(stored)} bytes instead of {stored_bytes}")
    _require(raw_bytes <= MAX_BODY, key, f"expands to {raw_bytes} bytes")
    _require(compression in (0, 1), key, f"has compression {compression}")
    body = zlib.decompressobj().decompress(stored, raw_bytes + 1) if compression else stored
    _require(len(body) == raw_bytes, key, f"has {len(body)} bytes instead of {raw_bytes}")
    _require(zlib.crc32(body) == raw_crc, key, "has another content than its checksum")
    token = previous if kind == KINDS["submissions"] else own
    _require(not place.token or place.token == token.hex(), key, f"carries the token {token.hex()}")
    return Frame(
        kind, schema, schema_since, flags, shard, first, last,
        own.hex(), previous.hex(), last_id.hex(), at, writer.hex(), body,
    )  # fmt: skip


def _require(holds: bool, key: str, trouble: str) -> None:
    if not holds:
        raise Unreadable(f"{key} {trouble}")


def read_document(key: str, data: bytes) -> dict[str, Any]:
    """A JSON document followed by its CRC-32 as white space. Raises Unreadable."""
    document, seal = data[:-33], data[-33:]
    if len(seal) < 33 or seal[:1] != b"\n" or seal[1:].strip(b" \t"):
        raise Unreadable(f"{key} carries no checksum")
    if int(seal[1:].replace(b" ", b"0").replace(b"\t", b"1"), 2) != zlib.crc32(document):
        raise Unreadable(f"{key} does not match its checksum")
    decoded = json.loads(document)
    assert isinstance(decoded, dict)
    return decoded


# --- patchsets: https://www.sqlite.org/session/sqlite3changeset_new.html and "Changeset format" in sqlite3session.c


class RowChange(NamedTuple):
    table: str
    operation: str  # INSERT, UPDATE, DELETE
    key: Row
    values: Row  # of an UPDATE: KEPT for columns that it does not change; of a DELETE: none


class _Kept:
    def __repr__(self) -> str:
        return "KEPT"


KEPT = _Kept()
_OPERATIONS = {9: "DELETE", 18: "INSERT", 23: "UPDATE"}


def read_patchset(data: bytes) -> Iterator[RowChange]:
    """The changes of a patchset. Raises Unreadable."""
    cursor = _Cursor(data)
    table, order = "", list[int]()
    try:
        while cursor.at < len(data):
            code = cursor.byte()
            if code == ord("P"):
                columns = cursor.varint()
                ranks = cursor.take(columns)
                order = sorted((n for n in range(columns) if ranks[n]), key=lambda n: ranks[n])
                table = cursor.until_nul()
                continue
            operation = _OPERATIONS[code]
            cursor.byte()  # whether it was a side effect
            if operation == "DELETE":
                present = [cursor.value() for _ in order]  # in the order of the columns
                by_column = dict(zip(sorted(order), present, strict=True))
                yield RowChange(table, operation, tuple(by_column[n] for n in order), ())
            else:
                values = tuple(cursor.value() for _ in range(len(ranks)))
                yield RowChange(table, operation, tuple(values[n] for n in order), values)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise Unreadable(f"not a patchset at byte {cursor.at}: {error!r}") from error


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, number: int) -> bytes:
        found = self.data[self.at : self.at + number]
        if len(found) < number:
            raise IndexError("the patchset is cut")
        self.at += number
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        number = 0
        for place in range(9):
            byte = self.byte()
            if place == 8:
                return number << 8 | byte
            number = number << 7 | byte & 0x7F
            if byte < 0x80:
                break
        return number

    def until_nul(self) -> str:
        return self.take(self.data.index(0, self.at) - self.at + 1)[:-1].decode()

    def value(self) -> Any:
        kind = self.byte()
        if kind == 1:
            return struct.unpack(">q", self.take(8))[0]
        if kind == 2:
            return struct.unpack(">d", self.take(8))[0]
        if kind == 3:
            return self.take(self.varint()).decode()
        if kind == 4:
            return self.take(self.varint())
        return {0: KEPT, 5: None}[kind]


def apply_changes(tables: Tables, changes: Iterator[RowChange]) -> None:
    """Apply one patchset. Raises Unreadable for a change that does not fit the rows."""
    for change in changes:
        if change.table not in TABLES:
            raise Unreadable(f"a patchset changes the table {change.table!r}")
        rows = tables.setdefault(change.table, {})
        if (change.key in rows) is (change.operation == "INSERT"):
            raise Unreadable(f"{change.operation} of {change.table} {change.key} does not fit")
        if change.operation == "DELETE":
            del rows[change.key]
        elif change.operation == "INSERT":
            rows[change.key] = change.values
        else:
            before = rows[change.key]
            rows[change.key] = tuple(
                old if new is KEPT else new for old, new in zip(before, change.values, strict=True)
            )


def add_columns(tables: Tables, step: dict[str, Any]) -> None:
    """Apply a schema step: each row gets the default of each new column."""
    for table, _, _, default in step.get("columns", ()):
        rows = tables.setdefault(table, {})
        for key, row in rows.items():
            rows[key] = (*row, default)


def read_image(file: bytes) -> tuple[int, Tables]:
    """The `user_version` and the recorded tables of a SQLite file."""
    quiet = file[:18] + b"\x01\x01" + file[20:]  # not in WAL mode: an image in memory has no second file
    with sqlite3.connect(":memory:") as db:
        db.deserialize(quiet)  # type: ignore[attr-defined, unused-ignore]
        tables: Tables = {}
        for table in TABLES:
            columns = list(db.execute(f"PRAGMA table_info({table})"))
            if not columns:  # an image of an earlier schema
                continue
            order = sorted((column for column in columns if column[5]), key=lambda column: column[5])
            places = [column[0] for column in order]
            tables[table] = {tuple(row[n] for n in places): tuple(row) for row in db.execute(f"SELECT * FROM {table}")}
        (version,) = db.execute("PRAGMA user_version").fetchone()
    return version, tables


def read_segment(body: bytes) -> Tables:
    """The rows of a cold segment."""
    tables: Tables = {}
    apply_changes(tables, read_patchset(body))
    return tables


def id_hash(task_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(task_id.encode(), digest_size=8).digest(), "big", signed=True)


def copied(tables: Tables) -> Tables:
    return {table: dict(rows) for table, rows in tables.items()}


def difference(one: Tables, other: Tables) -> str:
    """The first row in which two states differ, or nothing."""
    for table in TABLES:
        left, right = one.get(table, {}), other.get(table, {})
        for key in left.keys() | right.keys():
            if left.get(key) != right.get(key):
                return f"{table} {key}: {left.get(key)} and {right.get(key)}"
    return ""
