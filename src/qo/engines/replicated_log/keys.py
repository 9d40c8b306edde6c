"""Names of the objects of a log.

log/meta.json                                             the id of the log and its number of shards
log/{log}/{shard:02x}/checkpoint.json                     the floor and the images of a shard
log/{log}/{shard}/cold/{last:016x}-{token}                tasks that are not in the tables
log/{log}/{shard}/images/{seq:016x}-{token}/{part:04x}    one slice of an image of the tables at `seq`
log/{log}/{shard}/merged/{first:016x}-{last:016x}         the records `first` to `last` as one
log/{log}/{shard}/records/{seq:016x}                      one commit
log/{log}/{shard}/submissions/{producer}/{n:08x}          tasks of a producer without a replica
log/{log}/owners/{period:08x}-{process}                   a process that claims, if there are several shards

Numbers are hexadecimal and have a fixed width, so byte order is numeric order. `records/` sorts before `submissions/`
and after everything else, so one listing after the last known record shows new records and waiting submissions.
"""

import re
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

META = "log/meta.json"
MAX_SHARDS = 256
NO_ID = "0" * 32  # the id of the record before the first one


class FrameKind(IntEnum):
    RECORD = 1
    MERGED = 2
    IMAGE_PART = 3
    SUBMISSION = 4
    SEGMENT = 5


class FrameName(NamedTuple):
    """What the name of an object states about its content. None: the name does not contain it."""

    kind: FrameKind
    log: str
    shard: int
    # Number of a record or image, the place of a submission in its stream, or the last record that may add a segment.
    first: int
    last: int | None  # the same as `first` for a record, the end of a merged one, the number of an image part
    token: str | None  # of an image or segment; the producer of a submission


_NAME = re.compile(
    r"log/(?P<log>[0-9a-f]{12})/(?P<shard>[0-9a-f]{2})/(?:"
    r"records/(?P<seq>[0-9a-f]{16})"
    r"|merged/(?P<first>[0-9a-f]{16})-(?P<last>[0-9a-f]{16})"
    r"|images/(?P<image>[0-9a-f]{16})-(?P<token>[0-9a-f]{32})/(?P<part>[0-9a-f]{4})"
    r"|cold/(?P<limit>[0-9a-f]{16})-(?P<cold>[0-9a-f]{32})"
    r"|submissions/(?P<producer>[0-9a-f]{32})/(?P<n>[0-9a-f]{8}))"
)


def shard_of(task_id: str, shards: int) -> int:
    """The shard that holds a task, unless the task is a follower of one in another shard."""
    return crc32(task_id.encode()) % shards


def shard_prefix(log: str, shard: int) -> str:
    return f"log/{log}/{shard:02x}/"


def checkpoint_key(log: str, shard: int) -> str:
    return f"{shard_prefix(log, shard)}checkpoint.json"


def records_prefix(log: str, shard: int) -> str:
    return f"{shard_prefix(log, shard)}records/"


def record_key(log: str, shard: int, seq: int) -> str:
    return f"{records_prefix(log, shard)}{seq:016x}"


def merged_prefix(log: str, shard: int) -> str:
    return f"{shard_prefix(log, shard)}merged/"


def merged_key(log: str, shard: int, first: int, last: int) -> str:
    return f"{merged_prefix(log, shard)}{first:016x}-{last:016x}"


def images_prefix(log: str, shard: int) -> str:
    return f"{shard_prefix(log, shard)}images/"


def image_prefix(log: str, shard: int, seq: int, token: str) -> str:
    return f"{images_prefix(log, shard)}{seq:016x}-{token}/"


def image_key(log: str, shard: int, seq: int, token: str, part: int) -> str:
    return f"{image_prefix(log, shard, seq, token)}{part:04x}"


def segments_prefix(log: str, shard: int) -> str:
    return f"{shard_prefix(log, shard)}cold/"


def segment_name(limit: int, token: str) -> str:
    """The end of a segment's key. Only records up to the number `limit` may name the segment."""
    return f"{limit:016x}-{token}"


def segment_key(log: str, shard: int, name: str) -> str:
    return f"{segments_prefix(log, shard)}{name}"


def submissions_prefix(log: str, shard: int) -> str:
    return f"{shard_prefix(log, shard)}submissions/"


def submission_key(log: str, shard: int, producer: str, n: int) -> str:
    return f"{submissions_prefix(log, shard)}{producer}/{n:08x}"


def owners_prefix(log: str) -> str:
    return f"log/{log}/owners/"


def owner_key(log: str, period: int, process: str) -> str:
    return f"{owners_prefix(log)}{period:08x}-{process}"


def parse_key(key: str) -> FrameName | None:
    """The parsed name of a record, merged record, image part, segment or submission; None for any other name."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    found = match.groupdict()
    log, shard = found["log"], int(found["shard"], 16)
    if found["seq"] is not None:
        seq = int(found["seq"], 16)
        return FrameName(FrameKind.RECORD, log, shard, seq, seq, None)
    if found["first"] is not None:
        return FrameName(FrameKind.MERGED, log, shard, int(found["first"], 16), int(found["last"], 16), None)
    if found["image"] is not None:
        first, part = int(found["image"], 16), int(found["part"], 16)
        return FrameName(FrameKind.IMAGE_PART, log, shard, first, part, found["token"])
    if found["limit"] is not None:
        return FrameName(FrameKind.SEGMENT, log, shard, int(found["limit"], 16), None, found["cold"])
    return FrameName(FrameKind.SUBMISSION, log, shard, int(found["n"], 16), None, found["producer"])
