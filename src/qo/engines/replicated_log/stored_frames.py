"""Reads and writes the framed objects of a log."""

from functools import partial
from typing import NamedTuple

from qo.bucket import NEW, Bucket
from qo.buckets.own_writes import put_document
from qo.engines.replicated_log.frame import DamagedFrame, FrameHeader, decode_frame, encode_frame
from qo.engines.replicated_log.runner import Runner, run_inline, run_sized
from qo.engines.retry import retry

_MAX_READS = 3


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
