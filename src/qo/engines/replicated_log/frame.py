"""The frame of the objects of a log: a header of 128 bytes, then the body. Encodes, decodes, reads and creates them.

Numbers are big-endian. docs/log-format.md describes each field. The checksum at the end of the header covers the whole
object, so that every flipped bit and every truncation is detected. A second one covers the body before compression.
"""

import struct
from enum import IntEnum, IntFlag
from functools import partial
from typing import NamedTuple
from zlib import compress, crc32, decompressobj
from zlib import error as ZlibError  # noqa: N812 - the class has this name

from qo.bucket import NEW, Bucket
from qo.buckets.own_writes import put_document
from qo.engines.replicated_log.keys import NO_ID, FrameKind, FrameName, parse_key
from qo.engines.replicated_log.runner import Runner, run_inline, run_sized
from qo.engines.requests import retry
from qo.errors import Refused
from qo.formats import Format, check_format, format_of

FORMAT = 1
HEADER_SIZE = 128
MAX_BODY = 256 * 1024 * 1024  # bytes before compression; a damaged or forged object must not exhaust the memory
_MAGIC = b"qoLG"
_HEADER = struct.Struct(">4sBBBBHHHHQQ16s16s16sdQQ16sI")  # without the checksum of the whole
_CHECKSUM = struct.Struct(">I")
_MAX_READS = 3  # of an object that cannot be decoded: the response may be damaged, and not the object
_COMPRESSION_LEVEL = 1  # higher levels cost more time than the smaller object saves


class Compression(IntEnum):
    NONE = 0
    ZLIB = 1


class FrameFlags(IntFlag):
    NONE = 0
    LANES_REMOVED = 1  # the commit has removed lanes, so cached lanes are outdated
    SCHEMA_STEP = 2  # the body is a change of the tables, not a patchset


_ALL_FLAGS = int(FrameFlags.LANES_REMOVED | FrameFlags.SCHEMA_STEP)  # `~` of an IntFlag ignores unknown bits


class DamagedFrame(Refused):
    """An object of the log cannot be read."""


class FrameHeader(NamedTuple):
    """The header. Ids are 32 hexadecimal digits. `encode_frame` sets the fields that describe the body."""

    kind: FrameKind
    shard: int
    first: int  # as in FrameName
    last: int  # as in FrameName; the number of tasks of a submission or segment
    id: str  # random, of this write; of all parts of an image the same
    previous: str = NO_ID  # id of the record before `first`; of an image its last record; the producer of a submission
    last_id: str = NO_ID  # id of the last record that this includes
    at: float = 0.0  # by the store's clock
    writer: str = NO_ID  # random, of the process
    schema: int = 0  # the version of the tables
    schema_since: int = 0  # builds that know this version of the tables can apply it
    flags: FrameFlags = FrameFlags.NONE
    format: int = FORMAT
    since: int = format_of(FORMAT).since
    compression: Compression = Compression.ZLIB
    raw_bytes: int = 0
    stored_bytes: int = 0


def encode_frame(header: FrameHeader, body: bytes) -> bytes:
    """The object. The body is stored uncompressed if compression does not make it smaller."""
    if len(body) > MAX_BODY:
        raise Refused(f"{len(body)} bytes are too large for one object of a log; use smaller batches or payloads")
    stored = compress(body, _COMPRESSION_LEVEL) if header.compression is Compression.ZLIB else body
    compression = header.compression
    if len(stored) >= len(body):
        stored, compression = body, Compression.NONE
    packed = _HEADER.pack(
        _MAGIC, header.kind, header.format, header.since, compression,
        header.schema, header.schema_since, header.flags, header.shard, header.first, header.last,
        bytes.fromhex(header.id), bytes.fromhex(header.previous), bytes.fromhex(header.last_id),
        header.at, len(body), len(stored), bytes.fromhex(header.writer), crc32(body),
    )  # fmt: skip
    return b"".join((packed, _CHECKSUM.pack(crc32(stored, crc32(packed))), stored))


def decode_frame(key: str, data: bytes, *, max_body: int = MAX_BODY) -> tuple[FrameHeader, bytes]:
    """The header and the body. Raises DamagedFrame, or NewerFormat if this build must not use the object.

    A body of more than `max_body` bytes before compression is not unpacked.
    """
    name = parse_key(key)
    if name is None:
        raise DamagedFrame(f"{key} is not the name of an object of a log")
    try:
        return _decode(key, name, data, max_body)
    except (_Problem, ZlibError) as problem:
        raise DamagedFrame(f"{key} is damaged: {problem}") from problem


class _Problem(Exception):
    """A problem with an object."""


def _decode(key: str, name: FrameName, data: bytes, max_body: int) -> tuple[FrameHeader, bytes]:
    view = memoryview(data)
    if len(data) < HEADER_SIZE or data[: len(_MAGIC)] != _MAGIC:
        raise _Problem("it does not begin with the header of a log")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if checksum != crc32(view[HEADER_SIZE:], crc32(view[: _HEADER.size])):
        raise _Problem("its checksum does not match its content")
    (
        _, kind, number, since, compression, schema, schema_since, flags, shard, first, last,
        own_id, previous, last_id, at, raw_bytes, stored_bytes, writer, body_checksum,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    check_format(key, Format(format=number, since=since), FORMAT)
    if kind != name.kind:
        raise _Problem(f"its kind is {kind}, not {name.kind}")
    if shard != name.shard or first != name.first or last != (last if name.last is None else name.last):
        raise _Problem(f"it belongs to shard {shard} under the numbers {first} and {last}")
    if flags & ~_ALL_FLAGS:
        raise _Problem(f"it has unknown flags ({flags:#x})")
    if compression not in {*Compression}:
        raise _Problem(f"its compression {compression} is unknown")
    if stored_bytes != len(data) - HEADER_SIZE:
        raise _Problem(f"it is {len(data)} bytes long, but its header states {stored_bytes}")
    header = FrameHeader(
        name.kind, shard, first, last, own_id.hex(), previous.hex(), last_id.hex(), at, writer.hex(),
        schema, schema_since, FrameFlags(flags), number, since, Compression(compression), raw_bytes, stored_bytes,
    )  # fmt: skip
    if name.token is not None and name.token != (header.previous if kind == FrameKind.SUBMISSION else header.id):
        raise _Problem("it belongs to another image, segment or producer")
    body = _unpacked(view[HEADER_SIZE:], header, max_body)
    if crc32(body) != body_checksum:
        raise _Problem("the checksum of its body does not match")
    return header, body


def _unpacked(stored: memoryview, header: FrameHeader, max_body: int) -> bytes:
    """The body before compression, which is never longer than the header states."""
    if header.raw_bytes > max_body:
        raise _Problem(f"its body of {header.raw_bytes} bytes is too large; the limit is {max_body}")
    if header.compression is Compression.NONE:
        body, is_whole = bytes(stored), True
    else:
        unpacker = decompressobj()
        body = unpacker.decompress(stored, header.raw_bytes + 1)  # 0 would mean any length
        is_whole = unpacker.eof and not unpacker.unused_data
    if len(body) != header.raw_bytes or not is_whole:
        raise _Problem(f"its body is not {header.raw_bytes} bytes long")
    return body


# --- in the bucket


class StoredFrame(NamedTuple):
    header: FrameHeader
    body: bytes
    written_at: float  # by the store's clock


async def get_frame(bucket: Bucket, key: str, run: Runner = run_inline) -> StoredFrame | None:
    """Read an object and decode it in `run`; None if it does not exist. Raises DamagedFrame, and NewerFormat.

    An object that cannot be decoded is read again: the response may be damaged, and not the object.
    """
    former = b""
    for _ in range(_MAX_READS):
        blob = await retry(lambda: bucket.get(key))
        if blob is None:
            return None
        data = blob.data
        try:
            header, body = await run_sized(run, len(data), partial(decode_frame, key, data))
            return StoredFrame(header, body, blob.written_at)
        except DamagedFrame as error:
            problem = error
        if data == former:
            break
        former = data
    raise problem


async def create_frame(bucket: Bucket, key: str, header: FrameHeader, body: bytes, run: Runner = run_inline) -> int:
    """Write an object that never changes; returns its size. Raises Conflict if the name is taken."""
    data = await run_sized(run, len(body), lambda: encode_frame(header, body))
    await put_document(bucket, key, data, expected=NEW, is_ours=lambda stored: _is_ours(key, stored))
    return len(data)


def _is_ours(key: str, stored: bytes) -> bool | None:
    """Only an equal object is this write. None if the response cannot be read: it may be this write, damaged."""
    try:
        decode_frame(key, stored)
    except DamagedFrame:
        return None
    return False
