"""The inbox of a shard in a busy process, and with a store that refuses or fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.engines.replicated_log.record_store import DamagedRecord
from qo.engines.replicated_log.shard_inbox import IngestCall, ShardInbox
from qo.engines.replicated_log.submission_batch import SubmissionBatch, SubmissionNumber, WaitingSubmission
from qo.engines.replicated_log.submissions import Age
from qo.errors import NewerFormat, Refused, StorageError
from qo.ids import new_token
from qo.model import Filter, Task
from qo.testing.samples import claim, new
from tests.engines.fast_time import pass_time, run
from tests.engines.log_inbox import LOG, SHARD, Place
from tests.engines.log_queue import INBOX, Queue


class SlowDeletions(MemoryBucket):
    async def delete(self, key: str) -> None:
        await pass_time(0.05)
        await super().delete(key)


def _shard_inbox(place: Place) -> ShardInbox:
    async def set_aside(_: object) -> None: ...

    return ShardInbox(
        place.bucket,
        LOG,
        SHARD,
        last_record=lambda: 0,
        set_aside=set_aside,
        thaw=set_aside,
        elapsed=place.clock,
        wall=place.clock,
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
            await inbox.look(commit, with_records=False)
        busy.cancel()
        await inbox.finish()
        return place.tables.numbers()

    assert run(read()) == [7]


class FailingBucket(MemoryBucket):
    """Raises an error for listings or writes while there is one."""

    list_error: StorageError | None = None
    put_error: StorageError | None = None
    listings = 0

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self.put_error is not None:
            raise self.put_error
        return await super().put(key, data, expected=expected)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        self.listings += 1
        if self.list_error is not None:
            raise self.list_error
        async for key in super().keys(prefix, after=after):
            yield key


async def _open_reader() -> tuple[ReplicatedLogEngine, FailingBucket]:
    """A process that has read the log, and its bucket. A task waits in the inbox since."""
    queue = await Queue().create()
    bucket = FailingBucket(queue.clock)
    bucket.__dict__ |= queue.bucket.__dict__
    reader = queue.engine(bucket=bucket)
    assert await _number_found(reader) == 1
    await queue.engine(INBOX).add([queue.task()])
    return reader, bucket


async def _number_found(reader: ReplicatedLogEngine) -> int:
    return len(await reader.find(Filter(), limit=9))


@pytest.mark.parametrize("error", [Refused("expired"), DamagedRecord("a record"), NewerFormat("a note")], ids=repr)
def test_a_reader_adds_submissions_again_after_an_error(error: StorageError, caplog: pytest.LogCaptureFixture) -> None:
    async def read() -> list[int]:
        reader, bucket = await _open_reader()
        bucket.put_error = error
        seen = [await _number_found(reader), await _number_found(reader)]
        bucket.put_error = None
        await pass_time(61 if type(error) is Refused else 1)
        seen.append(await _number_found(reader))
        await reader.close()
        return seen

    assert run(read()) == [1, 1, 2]
    assert str(error) in caplog.text
    assert type(error) is not Refused or caplog.text.count("may not add waiting submissions") == 1


def test_a_reader_without_permission_seldom_tries_to_add() -> None:
    async def read() -> int:
        reader, bucket = await _open_reader()
        bucket.list_error = Refused("these credentials may not list")
        for _ in range(100):
            assert await _number_found(reader) == 1
            await pass_time(1)
        await reader.close()
        return bucket.listings

    assert run(read()) <= 4


def test_a_listing_that_fails_fails_no_read(caplog: pytest.LogCaptureFixture) -> None:
    async def read() -> None:
        reader, bucket = await _open_reader()
        bucket.list_error = StorageError("slow down")
        assert await _number_found(reader) == 1
        assert sum((await reader.count("b")).values()) == 0
        assert await reader.get([new_token()]) == [None]
        await reader.close()

    run(read())
    assert "slow down" in caplog.text


def test_a_claim_fails_if_it_finds_no_task_and_cannot_list_the_inbox() -> None:
    """A worker that drains the queue would end otherwise, although tasks wait."""

    async def work() -> list[Task]:
        worker, bucket = await _open_reader()
        bucket.list_error = StorageError("slow down")
        await pass_time(2)
        with pytest.raises(StorageError, match="slow down"):
            await claim(worker)
        bucket.list_error = None
        claimed = await claim(worker)
        await worker.close()
        return claimed

    assert len(run(work())) == 1


def test_a_worker_that_may_not_list_the_inbox_claims_what_others_add() -> None:
    async def work() -> list[Task]:
        worker, bucket = await _open_reader()
        bucket.list_error = Refused("these credentials may not list")
        await pass_time(2)
        assert await claim(worker) == []
        await worker.add([new(1)])
        claimed = await claim(worker)
        await worker.close()
        return claimed

    assert len(run(work())) == 1
