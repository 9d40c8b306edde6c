"""The contract of reads and of `delete`."""

from typing import Any

import pytest
from msgspec.structs import replace

from qo.engine import Engine
from qo.errors import BadBatch
from qo.model import CountKey, Filter, Status, after_error, cancel, complete, cursor, fail, release, replay
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id


class ReadContract:
    async def test_now_is_the_time_that_tasks_are_stamped_with(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(7)
        assert await engine.now() == clock.now

    async def test_only_finished_tasks_are_deleted(self, engine: Engine) -> None:
        await engine.add([new("done"), new("waiting", delay=9.0)])
        await engine.apply([complete(await claim_one(engine))])
        assert await engine.delete([task_id(name) for name in ("done", "waiting", "unknown")]) == [True, False, False]
        done, waiting = await engine.get([task_id("done"), task_id("waiting")])
        assert done is None
        assert waiting is not None
        assert await engine.history(task_id("done")) == []
        assert await engine.add([new("done")]) == [(task_id("done"), True)]

    async def test_a_batch_names_each_task_once(self, engine: Engine) -> None:
        await engine.add([new()])
        with pytest.raises(BadBatch):
            await engine.apply([cancel(task_id(0)), replay(task_id(0))])
        with pytest.raises(BadBatch):
            await engine.add([new(1), new(1)])
        with pytest.raises(BadBatch):
            await engine.delete([task_id(0), task_id(0)])
        assert (await stored(engine)).status is Status.PENDING

    async def test_empty_batches_return_empty_lists(self, engine: Engine) -> None:
        answers = [await engine.add([]), await engine.apply([]), await engine.delete([]), await engine.get([])]
        assert answers == [[], [], [], []]

    async def test_get_returns_tasks_in_the_order_of_the_ids(self, engine: Engine) -> None:
        await engine.add([new(0), new(1)])
        found = await engine.get([task_id(1), task_id(9), task_id(0), task_id(1)])
        assert [task and task.id for task in found] == [task_id(1), None, task_id(0), task_id(1)]

    async def test_get_without_values_returns_the_same_tasks_as_get(self, engine: Engine) -> None:
        """Except for payloads and results. There are more tasks than the first step reads."""
        await engine.add([new(n) for n in range(34)])
        await engine.apply([complete(task, b"1") for task in await claim(engine, limit=2)])
        asked = [task_id(n) for n in range(36)]
        some, whole = await engine.get_without_values(asked), await engine.get(asked)
        assert [task and replace(task, payload=b"", result=None) for task in some] == [
            task and replace(task, payload=b"", result=None) for task in whole
        ]
        assert [task is None for task in some] == [False] * 34 + [True] * 2

    async def test_find_without_values_returns_the_same_tasks_as_find(self, engine: Engine) -> None:
        """Except for payloads and results, which can be read later. There are more tasks than the first step reads."""
        await engine.add([new(n) for n in range(34)])
        await engine.apply([complete(task, b"1") for task in await claim(engine, limit=2)])
        for limit in (1, 32, 33, 99):
            some, whole = (
                await engine.find_without_values(Filter(), limit=limit),
                await engine.find(Filter(), limit=limit),
            )
            assert [replace(task, payload=b"", result=None) for task in some] == [
                replace(task, payload=b"", result=None) for task in whole
            ]
            assert [task.result is None for task in some] == [task.result is None for task in whole]
            assert await engine.with_values(some) == whole

    async def test_find_returns_pages_newest_first(self, engine: Engine, clock: ManualClock) -> None:
        for name in (3, 1, 4, 2):
            await engine.add([new(name)])
            clock.advance(1)
        await engine.add([new(n) for n in (7, 6)])  # in a batch, the later task is the newer one
        page = await engine.find(Filter(), limit=4)
        assert [task.id for task in page] == [task_id(n) for n in (6, 7, 2, 4)]
        rest = await engine.find(Filter(), limit=4, after=cursor(page[-1]))
        assert [task.id for task in rest] == [task_id(n) for n in (1, 3)]
        assert await engine.find(Filter(), limit=4, after=cursor(rest[-1])) == []
        assert await engine.find(Filter(), limit=0) == []

    async def test_a_page_contains_only_tasks_created_before_an_instant(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for name in (3, 1, 2):
            await engine.add([new(name)])
            clock.advance(1)
        for where in (Filter(), Filter(statuses=(Status.PENDING,)), Filter(queues=("q",), statuses=(Status.PENDING,))):
            for find in (engine.find, engine.find_without_values):
                older = await find(where, limit=4, created_before=clock.now - 1)
                assert [task.id for task in older] == [task_id(n) for n in (1, 3)]
                assert [task.id for task in await find(where, limit=1, created_before=clock.now)] == [task_id(2)]
                rest = await find(where, limit=4, after=cursor(older[0]), created_before=clock.now)
                assert [task.id for task in rest] == [task_id(3)]
                assert await find(where, limit=4, created_before=clock.now - 3) == []

    async def test_find_filters(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add(
            [new(0, queue="x"), new(1, queue="y", type="u"), new(2, queue="z"), new(3, queue="x", type="u")]
        )
        (held,) = await claim(engine, queues=("z",), worker_id="w7", lease=30.0)
        (done,) = await claim(engine, queues=("y",), worker_id="w8")
        await engine.apply([complete(done)])

        async def found(where: Filter) -> set[str]:
            return {task.id for task in await engine.find(where, limit=99)}

        assert await found(Filter(queues=("x", "z"))) == {task_id(n) for n in (0, 2, 3)}
        assert await found(Filter(types=("u",), queues=("x",))) == {task_id(3)}
        assert await found(Filter(statuses=(Status.RUNNING, Status.COMPLETED))) == {task_id(1), task_id(2)}
        assert await found(Filter(worker_id="w7")) == {held.id}
        clock.advance(29)
        assert await found(Filter(expired_for=0)) == await found(Filter(finished_for=30)) == set()
        clock.advance(1)
        assert await found(Filter(expired_for=0)) == {held.id}
        assert await found(Filter(expired_for=1)) == set()
        assert await found(Filter(finished_for=30)) == {done.id}
        assert await found(Filter(finished_for=30, statuses=(Status.ARCHIVED,))) == set()
        for statuses in ((Status.PENDING,), (Status.COMPLETED, Status.PENDING)):
            assert await found(Filter(expired_for=0, statuses=statuses)) == set()
        assert await found(Filter(expired_for=0, finished_for=0)) == set()
        assert await found(Filter(finished_for=0, statuses=(Status.RUNNING,), queues=("z",))) == set()

    async def test_find_by_the_first_digit_of_the_id(self, engine: Engine, clock: ManualClock) -> None:
        names = [0x10000000, 0x1FFFFFFF, 0xA0000000, 0xF0000000]
        await engine.add([new(name) for name in names])
        await engine.add([new(0x1A000000, delay=60.0), new(0xAA000000, delay=60.0)])
        (done,) = await claim(engine, limit=1)
        await engine.apply([complete(done)])
        clock.advance(1)

        async def found(**fields: Any) -> set[str]:
            return {task.id for task in await engine.find(Filter(**fields), limit=99)}

        assert await found(shards=("1",)) == {task_id(name) for name in (0x10000000, 0x1FFFFFFF, 0x1A000000)}
        assert await found(shards=("a", "f")) == {task_id(name) for name in (0xA0000000, 0xF0000000, 0xAA000000)}
        assert await found(shards=("1", "a"), statuses=(Status.PENDING,)) == {
            task_id(name) for name in (0x1FFFFFFF, 0x1A000000, 0xA0000000, 0xAA000000)
        }
        assert await found(shards=("1",), statuses=(Status.COMPLETED,)) == {done.id}
        assert await found(shards=("2",)) == set()

    async def test_pending_tasks_are_distinguished_by_whether_an_attempt_failed(self, engine: Engine) -> None:
        await engine.add([new("fresh"), new("later", delay=60.0), new("released"), new("failing"), new("ended")])
        held = {task.id: task for task in await claim(engine)}
        await engine.apply([release(held[task_id(name)]) for name in ("fresh", "released")])
        await engine.apply(
            [after_error(held[task_id("failing")], "boom", random=0.5), fail(held[task_id("ended")], "no")]
        )

        async def found(**fields: Any) -> set[str]:
            return {task.id for task in await engine.find(Filter(**fields), limit=99)}

        waiting = {task_id(name) for name in ("fresh", "later", "released")}
        pending, failed = (Status.PENDING,), (Status.PENDING, Status.FAILED, Status.CANCELLED)
        assert await found(statuses=pending, retrying=False) == waiting
        assert await found(statuses=pending, retrying=True) == {task_id("failing")}
        assert await found(statuses=failed, retrying=True) == {task_id("failing"), task_id("ended")}
        assert await found(retrying=False) == waiting | {task_id("ended")}
        assert await found(retrying=True, types=("other",)) == set()

    async def test_counts_by_queue_type_and_status(self, engine: Engine) -> None:
        await engine.add([new(0), new(1), new(2, queue="other", type="u"), new(3, delay=60.0)])
        await engine.apply([complete(await claim_one(engine, queues=("other",)))])
        await claim_one(engine)
        assert {lane: n for lane, n in (await engine.count()).items() if n} == {
            CountKey("q", "t", Status.RUNNING): 1,
            CountKey("q", "t", Status.PENDING): 2,
            CountKey("other", "u", Status.COMPLETED): 1,
        }
        await engine.delete([task_id(2)])
        await engine.apply([cancel(task_id(3))])
        assert {lane: n for lane, n in (await engine.count()).items() if n} == {
            CountKey("q", "t", Status.RUNNING): 1,
            CountKey("q", "t", Status.PENDING): 1,
            CountKey("q", "t", Status.CANCELLED): 1,
        }

    async def test_counts_by_priority(self, engine: Engine) -> None:
        await engine.add([new(n, priority=n, idempotency_key=str(n), window=0.0) for n in range(10)])
        await engine.add([new(10, priority=9, delay=60.0), new(11, priority=0)])
        first, *_ = await engine.claim(claim_request(limit=2, types=("t",)))
        waiting = {
            lane.priority: n for lane, n in (await engine.count()).items() if n and lane.status is Status.PENDING
        }
        assert waiting == {n: 2 if n == 9 else 1 for n in range(1, 10)}
        await engine.apply([fail(first, "boom")])
        await engine.delete([first.id])
        await engine.apply([cancel(task_id(5)), cancel(task_id(7))])
        await engine.apply([replay(task_id(7))])
        await engine.add([new(5, priority=1, idempotency_key="5", window=0.0, next_id=task_id(55))])
        counted = {lane: n for lane, n in (await engine.count()).items() if n}
        assert counted == {
            CountKey("q", "t", Status.RUNNING, 0): 1,
            CountKey("q", "t", Status.PENDING, 1): 2,
            CountKey("q", "t", Status.CANCELLED, 5): 1,
            **{CountKey("q", "t", Status.PENDING, n): 1 for n in (2, 3, 4, 6, 7, 8)},
            CountKey("q", "t", Status.PENDING, 9): 2,
        }

    async def test_the_history_contains_every_transition_in_order(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        clock.advance(1)
        await engine.apply([after_error(await claim_one(engine), "boom", random=0.5)])
        clock.advance(2)
        await engine.apply([complete(await claim_one(engine, worker_id="w2"))])
        events = await engine.history(task_id(0))
        assert [(e.status.value, e.attempt, e.failures, e.worker_id, e.error) for e in events] == [
            ("pending", 0, 0, None, None),
            ("running", 1, 0, "w1", None),
            ("pending", 1, 1, None, "boom"),
            ("running", 2, 1, "w2", "boom"),
            ("completed", 2, 1, "w2", None),
        ]
        start = clock.now - 3
        assert [e.at - start for e in events] == [0, 1, 1, 3, 3]
        assert [e.version for e in events] == sorted({e.version for e in events})
        assert events[2].available_at == start + 2
        assert await engine.history(task_id("unknown")) == []
