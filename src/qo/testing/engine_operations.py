"""The contract of the operations that users perform on tasks: run now, reschedule, change the priority and replay.

And of the kinds of pending tasks.
"""

from typing import Any

from qo.engine import Engine
from qo.model import (
    Filter,
    PendingKind,
    Status,
    after_error,
    complete,
    cursor,
    fail,
    release,
    replay,
    replay_finished,
    reschedule,
    run_now,
    set_priority,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id


class OperationContract:
    async def test_a_task_that_is_due_later_can_run_now(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, delay=500), new(1), new(2)])
        held, due = await claim(engine, limit=1), await stored(engine, 2)
        await engine.apply([after_error(held[0], "boom", random=0.5)])
        clock.advance(0.5)
        changes = [run_now(task_id(number)) for number in (0, 1, 2, "unknown")]
        assert await engine.apply(changes) == [True, True, False, False]
        later, retried = [await stored(engine, number) for number in (0, 1)]
        assert (later.status, later.available_at, later.rank) == (Status.PENDING, clock.now, clock.now + 1200)
        assert (retried.status, retried.available_at, retried.failures) == (Status.PENDING, clock.now, 1)
        assert await stored(engine, 2) == due  # it keeps its place
        assert (await claim(engine))[0].id == task_id(2)
        assert await engine.apply(changes) == [False] * 4

    async def test_a_pending_task_can_be_rescheduled(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0), new(1), new(2, delay=60)])
        held = await claim_one(engine)
        assert await engine.apply([reschedule(held.id, clock.now)]) == [False]
        at = clock.now + 100
        assert await engine.apply([reschedule(task_id(1), at), reschedule(task_id(2), clock.now - 50)]) == [True, True]
        assert [task.id for task in await claim(engine)] == [task_id(2)]
        moved = await stored(engine, 1)
        assert (moved.status, moved.available_at, moved.rank, moved.run_at) == (Status.PENDING, at, at + 1200, None)
        clock.advance(99.5)
        assert await claim(engine) == []
        clock.advance(0.5)
        assert [task.id for task in await claim(engine)] == [task_id(1)]

    async def test_a_new_priority_moves_a_task_to_its_lane_and_counts_it_there(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(0, priority=5), new(1, priority=5), new(2, priority=5, delay=60)])
        created = [await stored(engine, number) for number in range(3)]
        changes = [set_priority(task_id(1), 0), set_priority(task_id(2), 9, 10.0), set_priority(task_id("unknown"), 1)]
        assert await engine.apply(changes) == [True, True, False]
        high, low = await stored(engine, 1), await stored(engine, 2)
        assert (high.priority, high.rank, high.available_at) == (0, created[1].due_at, created[1].available_at)
        assert (low.priority, low.rank, low.available_at) == (9, created[2].due_at + 90, created[2].available_at)
        counts = {key.priority: number for key, number in (await engine.count()).items() if number}
        assert counts == {0: 1, 5: 1, 9: 1}
        assert [task.id for task in await claim(engine)] == [task_id(1), task_id(0)]
        assert await engine.apply([set_priority(task_id(0), 1)]) == [False]
        clock.advance(60)
        assert [(task.id, task.priority) for task in await claim(engine)] == [(task_id(2), 9)]

    async def test_the_last_task_of_a_lane_can_leave_it_and_come_back(self, engine: Engine) -> None:
        await engine.add([new(0, priority=5)])
        for priority in (0, 5, 9, 5):
            assert await engine.apply([set_priority(task_id(0), priority)]) == [True]
            assert [task.priority for task in await engine.find(Filter(types=("t",)), limit=9)] == [priority]
        await engine.add([new(1, priority=5)])
        assert {task.id for task in await claim(engine)} == {task_id(0), task_id(1)}
        assert [event.status.value for event in await engine.history(task_id(0))] == [*["pending"] * 5, "running"]

    async def test_a_lane_whose_first_task_has_left_hides_no_other_lane(self, engine: Engine) -> None:
        await engine.add([new(number, priority=number) for number in (0, 1, 2, 5)])
        assert (await claim_one(engine)).priority == 0  # now the engine may know the first task of each lane
        assert await engine.apply([set_priority(task_id(1), 9), set_priority(task_id(5), 1)]) == [True, True]
        assert [(await claim_one(engine)).id for _ in range(3)] == [task_id(5), task_id(2), task_id(1)]

    async def test_a_completed_task_can_be_replayed_only_on_request(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        await engine.apply([complete(await claim_one(engine), b'"done"')])
        clock.advance(1)
        assert await engine.apply([replay(task_id(0))]) == [False]
        assert await engine.apply([replay_finished(task_id(0))]) == [True]
        task = await stored(engine)
        assert (task.status, task.result, task.failures, task.available_at) == (Status.PENDING, None, 0, clock.now)
        assert await engine.apply([replay_finished(task_id(0))]) == [False]
        assert (await claim_one(engine)).attempt == 2

    async def test_three_kinds_of_pending_tasks_are_told_apart(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("ready"), new("later", delay=60.0), new("retry"), new("ended"), new("other")])
        held = {task.id: task for task in await claim(engine)}
        await engine.apply([release(held[task_id("ready")]), fail(held[task_id("ended")], "no")])
        await engine.apply([after_error(held[task_id(name)], "e", random=0.5, after=9) for name in ("retry", "other")])

        async def found(*kinds: PendingKind, **fields: Any) -> set[str]:
            page = await engine.find(Filter(pending=kinds, **fields), limit=99)
            return {bytes.fromhex(task.id[-12:]).strip(b"\0").decode() for task in page}

        ready, scheduled, retrying, _ = PendingKind
        pending = (Status.PENDING,)
        assert await found(ready, statuses=pending) == {"ready"}
        assert await found(scheduled, statuses=pending) == {"later"}
        assert await found(retrying, statuses=pending) == {"retry", "other"}
        assert await found(scheduled, retrying, statuses=(Status.PENDING, Status.FAILED)) == {
            "later",
            "retry",
            "other",
            "ended",
        }
        assert await found(retrying) == {"retry", "other", "ended"}
        assert await found(scheduled, statuses=pending, types=("other",)) == set()
        clock.advance(9)
        assert await found(ready, statuses=pending) == {"ready", "retry", "other"}
        assert await found(retrying, statuses=pending) == set()
        clock.advance(51)
        assert await found(scheduled, statuses=pending) == set()

    async def test_pages_of_one_kind_of_pending_tasks_are_in_order(self, engine: Engine) -> None:
        await engine.add([new(number, delay=60.0 - number) for number in range(7)])
        await engine.add([new(number) for number in range(7, 10)])
        where, after, seen = Filter(statuses=(Status.PENDING,), pending=(PendingKind.SCHEDULED,)), "", list[str]()
        while page := await engine.find(where, limit=3, after=after):
            seen += [task.id for task in page]
            after = cursor(page[-1])
        assert seen == [task_id(number) for number in range(6, -1, -1)]
