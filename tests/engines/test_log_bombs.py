"""Small objects of a producer that unpack to much: a producer is less trusted than the processes that read them."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qo.bucket import ANY
from qo.engines.replicated_log.frame import FrameHeader, encode_frame
from qo.engines.replicated_log.keys import FrameKind, submission_key
from qo.engines.replicated_log.submissions import MAX_PAYLOADS, DamagedSubmission, decode_submission, encode_submission
from qo.ids import new_token
from qo.testing.samples import new
from tests.engines.log_inbox import LOG, SHARD, Place, producers

MIB = 1024 * 1024


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Python may not allocate more than `size` bytes at a time in this block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size, f"{peak / MIB:.0f} MiB"


def test_a_submission_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    (producer,) = producers("a")
    header = FrameHeader(FrameKind.SUBMISSION, SHARD, 0, 1, new_token(), previous=producer)
    data = encode_frame(header, bytes(100 * MIB))
    assert len(data) < MIB
    with at_most(10 * MIB), pytest.raises(DamagedSubmission, match="too large"):
        decode_submission(submission_key(LOG, SHARD, producer, 0), data)


async def test_submissions_that_unpack_to_much_are_read_a_few_at_a_time() -> None:
    place = Place()
    many = producers(*"abcdef")
    for n, producer in enumerate(many):
        task = new(n, payload=b"\x00" + bytes(MAX_PAYLOADS - 1))
        data = encode_submission(producer, SHARD, 0, [task], at=0.0, writer=new_token())
        await place.bucket.put(submission_key(LOG, SHARD, producer, 0), data, expected=ANY)
    await place.inbox.scan()
    with at_most(4 * MAX_PAYLOADS):
        await place.inbox.read()
    place.inbox.rewind()
    await place.consume(times=len(many))
    assert sorted(place.tables.numbers()) == [*range(len(many))]
    assert await place.waiting() == []
