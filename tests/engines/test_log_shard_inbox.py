"""The inbox of a shard in a busy process, and with a store that refuses or fails."""

import asyncio

from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log.shard_inbox import IngestCall, ShardInbox
from qo.engines.replicated_log.submission_inbox import SubmissionBatch, SubmissionNumber, WaitingSubmission
from qo.engines.replicated_log.submissions import Age
from qo.ids import new_token
from qo.testing.samples import new
from tests.engines.fast_time import pass_time, run
from tests.engines.log_inbox import LOG, SHARD, Place


class SlowDeletions(MemoryBucket):
    async def delete(self, key: str) -> None:
        await pass_time(0.05)
        await super().delete(key)


def _shard_inbox(place: Place) -> ShardInbox:
    async def set_aside(_: object) -> None: ...

    return ShardInbox(
        place.bucket, LOG, SHARD, last_record=lambda: 0, set_aside=set_aside, elapsed=place.clock, wall=place.clock
    )


def test_a_reader_does_not_wait_for_work_that_a_busy_process_starts_again_and_again() -> None:
    async def read() -> list[int]:
        place = Place(SlowDeletions())
        inbox = _shard_inbox(place)

        async def commit() -> None:
            call = inbox.next_call(0.0, is_claiming=False)
            assert call is not None
            place.tables.run(call.work)
            inbox.settle(call)

        async def keep_busy() -> None:
            """As commits of others do, whose submissions are deleted beside the next commits."""
            while True:
                number = SubmissionNumber(new_token(), 0)
                found = {number: WaitingSubmission(1, Age(place.clock, place.clock))}
                inbox.settle(IngestCall(SubmissionBatch(found, consumed=[number]), 0.0))
                await pass_time(0.01)

        busy = asyncio.create_task(keep_busy())
        await place.stream.submit([new(7)])
        async with asyncio.timeout(10):
            await inbox.look(commit)
        busy.cancel()
        await inbox.finish()
        return place.tables.numbers()

    assert run(read()) == [7]
