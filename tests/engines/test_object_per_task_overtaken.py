"""A write succeeds, its response is lost, and another process changes the task before the write is read back."""

import asyncio
from collections.abc import Awaitable, Callable

from qo.buckets.memory import MemoryBucket
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.one_object import OneObjectEngine
from qo.errors import OutcomeUnknown
from qo.model import Status, cancel, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id
from tests.engines.fast_time import run


class Overtaken(MemoryBucket):
    """Loses the response to the next write of a matching key, after other processes have written."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.prefix = ""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        version = await super().put(key, data, expected=expected)
        if self.meanwhile is None or not key.startswith(self.prefix):
            return version
        meanwhile, self.meanwhile = self.meanwhile, None
        await meanwhile()
        raise OutcomeUnknown("lost")


def test_a_submission_that_was_claimed_before_it_was_read_back_is_new() -> None:
    async def submit(kind: type[ObjectPerTaskEngine | OneObjectEngine], prefix: str) -> None:
        clock = ManualClock()
        bucket = Overtaken(clock)
        bucket.prefix = prefix
        bucket.meanwhile = lambda: claim(kind(bucket, clock=clock))
        assert await kind(bucket, clock=clock).add([new()]) == [(task_id(0), True)]
        assert (await stored(kind(bucket, clock=clock))).status is Status.RUNNING

    run(submit(ObjectPerTaskEngine, "tasks/"))
    run(submit(OneObjectEngine, "queue.json"))


def test_a_claim_that_was_cancelled_before_it_was_read_back_cannot_be_completed() -> None:
    async def work(kind: type[ObjectPerTaskEngine | OneObjectEngine], prefix: str) -> None:
        clock = ManualClock()
        bucket = Overtaken(clock)
        engine = kind(bucket, clock=clock)
        await engine.add([new()])
        bucket.prefix = prefix
        bucket.meanwhile = lambda: kind(bucket, clock=clock).apply([cancel(task_id(0))])
        task = await claim_one(engine)
        assert await engine.apply([complete(task)]) == [False]
        ended = await stored(engine)
        assert (ended.status, ended.version) == (Status.CANCELLED, 3)
        await engine.close()

    run(work(ObjectPerTaskEngine, "tasks/"))
    run(work(OneObjectEngine, "queue.json"))


def test_a_completion_that_was_followed_by_many_writes_is_not_reported_as_failed() -> None:
    async def work() -> None:
        clock = ManualClock()
        bucket = Overtaken(clock)
        engine = OneObjectEngine(bucket, clock=clock)
        await engine.add([new()])
        task = await claim_one(engine)

        async def busy() -> None:
            other = OneObjectEngine(bucket, clock=clock)
            for n in range(1, 40):
                await other.add([new(n)])
                await asyncio.sleep(0)

        bucket.meanwhile = busy
        assert await engine.apply([complete(task)]) == [True]
        assert len(await engine.history(task.id)) == 3

    run(work())
