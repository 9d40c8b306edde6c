"""Frames of the layout `log`: everything that is not exactly what was written is refused."""

import struct
import tracemalloc
from zlib import compress, crc32

import pytest

from qo.engines.replicated_log.frame import (
    FORMAT,
    HEADER_SIZE,
    MAX_BODY,
    Compression,
    DamagedFrame,
    FrameFlags,
    FrameHeader,
    decode_frame,
    encode_frame,
)
from qo.engines.replicated_log.keys import (
    NO_ID,
    FrameKind,
    checkpoint_key,
    image_key,
    merged_key,
    parse_key,
    record_key,
    shard_of,
    submission_key,
)
from qo.errors import NewerFormat, StorageError

LOG, ID, BEFORE, WRITER = "0123456789ab", "ab" * 16, "cd" * 16, "ef" * 16
BODY = b"a patchset, " * 20
KEY = record_key(LOG, 3, 77)
RECORD = FrameHeader(FrameKind.RECORD, 3, 77, 77, ID, BEFORE, ID, 1234.5, WRITER, 7, 6, FrameFlags.LANES_REMOVED)
FRAME = encode_frame(RECORD, BODY)


def forged(frame: bytes, **fields: tuple[str, int, object]) -> bytes:
    """The frame with other fields (format, offset, value) and a matching checksum."""
    changed = bytearray(frame)
    for layout, offset, value in fields.values():
        struct.pack_into(layout, changed, offset, value)
    return resealed(bytes(changed))


def resealed(frame: bytes) -> bytes:
    return frame[:124] + struct.pack(">I", crc32(frame[HEADER_SIZE:], crc32(frame[:124]))) + frame[HEADER_SIZE:]


@pytest.mark.parametrize(
    ("key", "header"),
    [
        (KEY, RECORD),
        (merged_key(LOG, 3, 64, 127), RECORD._replace(kind=FrameKind.MERGED, first=64, last=127)),
        (image_key(LOG, 3, 127, ID, 2), RECORD._replace(kind=FrameKind.IMAGE_PART, first=127, last=2)),
        (submission_key(LOG, 3, BEFORE, 9), RECORD._replace(kind=FrameKind.SUBMISSION, first=9, last=4_000)),
    ],
    ids=lambda value: value.kind.name.lower() if isinstance(value, FrameHeader) else "",
)
def test_a_frame_returns_what_was_written(key: str, header: FrameHeader) -> None:
    read, body = decode_frame(key, encode_frame(header, BODY))
    assert body == BODY
    assert read == header._replace(raw_bytes=len(BODY), stored_bytes=read.stored_bytes)
    assert read.stored_bytes < len(BODY)


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256))])
def test_a_body_that_does_not_shrink_is_stored_as_it_is(body: bytes) -> None:
    data = encode_frame(RECORD, body)
    header, read = decode_frame(KEY, data)
    assert read == body
    assert header.compression is Compression.NONE
    assert len(data) == HEADER_SIZE + len(body)


def test_every_single_bit_flip_is_detected() -> None:
    for bit in range(8 * len(FRAME)):
        flipped = bytearray(FRAME)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFrame, match=KEY):
            decode_frame(KEY, bytes(flipped))


def test_every_truncation_and_every_addition_is_detected() -> None:
    for length in range(len(FRAME)):
        with pytest.raises(DamagedFrame, match=KEY):
            decode_frame(KEY, FRAME[:length])
    with pytest.raises(DamagedFrame, match=KEY):
        decode_frame(KEY, FRAME + b"\0")


@pytest.mark.parametrize(
    "key",
    [
        record_key(LOG, 3, 78),
        record_key(LOG, 4, 77),
        merged_key(LOG, 3, 77, 77),
        submission_key(LOG, 3, BEFORE, 77),
        image_key(LOG, 3, 77, ID, 77),
    ],
)
def test_a_record_under_another_number_is_refused(key: str) -> None:
    with pytest.raises(DamagedFrame, match=key):
        decode_frame(key, FRAME)


def test_parts_of_another_image_and_submissions_of_another_producer_are_refused() -> None:
    part = encode_frame(RECORD._replace(kind=FrameKind.IMAGE_PART, last=0), BODY)
    with pytest.raises(DamagedFrame, match="another image"):
        decode_frame(image_key(LOG, 3, 77, BEFORE, 0), part)
    submission = encode_frame(RECORD._replace(kind=FrameKind.SUBMISSION), BODY)
    with pytest.raises(DamagedFrame, match="another image, segment or producer"):
        decode_frame(submission_key(LOG, 3, ID, 77), submission)


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(DamagedFrame, match="unknown flags"):
        decode_frame(KEY, forged(FRAME, flags=(">H", 12, 4)))


@pytest.mark.parametrize("compression", [2, 255])
def test_an_unknown_compression_is_refused(compression: int) -> None:
    with pytest.raises(DamagedFrame, match="compression"):
        decode_frame(KEY, forged(FRAME, compression=(">B", 7, compression)))


def test_a_small_object_cannot_decompress_to_gigabytes() -> None:
    bomb = compress(bytes(64 * 1024 * 1024))
    small = resealed(FRAME[:HEADER_SIZE] + bomb)
    stored = (">Q", 96, len(bomb))
    tracemalloc.start()
    try:
        for raw in (len(BODY), MAX_BODY + 1, 2**63):
            with pytest.raises(DamagedFrame, match=KEY):
                decode_frame(KEY, forged(small, stored=stored, raw=(">Q", 88, raw)))
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [len(BODY) - 1, len(BODY) + 1, 0])
def test_a_body_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DamagedFrame, match="bytes"):
        decode_frame(KEY, forged(FRAME, raw=(">Q", 88, length)))


def test_bytes_after_the_compressed_body_are_refused() -> None:
    longer = resealed(FRAME + b"more")
    with pytest.raises(DamagedFrame, match=KEY):
        decode_frame(KEY, longer)
    with pytest.raises(DamagedFrame, match=KEY):
        decode_frame(KEY, forged(longer, stored=(">Q", 96, len(longer) - HEADER_SIZE)))


def test_a_wrong_checksum_of_the_body_is_refused() -> None:
    with pytest.raises(DamagedFrame, match="body"):
        decode_frame(KEY, forged(FRAME, body=(">I", 120, crc32(BODY) ^ 1)))


def test_a_newer_frame_is_refused_and_an_additive_one_is_read() -> None:
    newer = forged(FRAME, format=(">B", 5, FORMAT + 1), since=(">B", 6, FORMAT + 1), kind=(">B", 4, 9))
    with pytest.raises(NewerFormat, match=KEY):
        decode_frame(KEY, newer)
    additive = forged(FRAME, format=(">B", 5, FORMAT + 1))
    assert decode_frame(KEY, additive)[1] == BODY


def test_a_body_that_is_too_large_is_not_written() -> None:
    with pytest.raises(StorageError, match="too large"):
        encode_frame(RECORD, bytes(MAX_BODY + 1))


def test_names_tell_what_they_hold() -> None:
    record = parse_key(KEY)
    assert record is not None
    assert (record.kind, record.log, record.shard, record.first, record.last) == (FrameKind.RECORD, LOG, 3, 77, 77)
    for other in (checkpoint_key(LOG, 3), f"{KEY}.contention", KEY.upper(), "log/meta.json", f"x{KEY}", f"{KEY}\n"):
        assert parse_key(other) is None
        with pytest.raises(DamagedFrame):
            decode_frame(other, FRAME)


def test_one_listing_after_the_last_record_shows_new_records_and_submissions() -> None:
    names = [
        checkpoint_key(LOG, 0),
        image_key(LOG, 0, 1, ID, 0),
        merged_key(LOG, 0, 64, 127),
        record_key(LOG, 0, 127),
        record_key(LOG, 0, 4096),
        submission_key(LOG, 0, NO_ID, 0),
    ]
    assert names == sorted(names)


def test_the_shard_of_a_task_never_changes() -> None:
    assert [shard_of(f"task-{n}", 16) for n in range(5)] == [shard_of(f"task-{n}", 16) for n in range(5)]
    assert {shard_of(f"task-{n}", 4) for n in range(100)} == set(range(4))
    assert shard_of("a1b2", 256) == crc32(b"a1b2") % 256
