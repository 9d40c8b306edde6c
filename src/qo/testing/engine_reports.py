"""Contract of what tasks and attempts report: batches, progress and logs."""

import asyncio
from collections import Counter

from qo.engine import Engine
from qo.model import (
    LOG_LIMIT,
    CountKey,
    Filter,
    Status,
    after_error,
    archive,
    cancel,
    complete,
    cursor,
    fail,
    release,
    renew,
    replay,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id


class ReportsContract:
    # --- batches

    async def test_a_batch_is_stored_with_its_tasks_and_found_newest_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for n in range(5):
            await engine.add([new(n, batch="thumbnails"), new(100 + n)])
            clock.advance(1)
        await engine.add([new("other", batch="thumbnails-2")])
        assert (await stored(engine, 3)).batch == "thumbnails"
        assert (await stored(engine, 103)).batch is None
        page = await engine.find(Filter(batch="thumbnails"), limit=3)
        rest = await engine.find(Filter(batch="thumbnails"), limit=3, after=cursor(page[-1]))
        assert [task.id for task in [*page, *rest]] == [task_id(n) for n in (4, 3, 2, 1, 0)]
        assert [task.id for task in await engine.find(Filter(batch="thumbnails-2"), limit=9)] == [task_id("other")]
        assert await engine.find(Filter(batch="unknown"), limit=9) == []

    async def test_a_batch_combines_with_the_other_filters(self, engine: Engine) -> None:
        await engine.add([new(n, batch="b", type="tu"[n % 2], queue="xy"[n // 2]) for n in range(4)])
        done = await claim_one(engine, types=("u",), queues=("x",))
        await engine.apply([complete(done)])

        async def found(where: Filter) -> set[str]:
            return {task.id for task in await engine.find(where, limit=9)}

        assert await found(Filter(batch="b", statuses=(Status.COMPLETED,))) == {task_id(1)}
        assert await found(Filter(batch="b", statuses=(Status.PENDING,), types=("t",))) == {task_id(0), task_id(2)}
        assert await found(Filter(batch="b", queues=("x",))) == {task_id(0), task_id(1)}
        assert await found(Filter(batch="b", worker_id="w1", finished_for=0.0)) == {task_id(1)}

    async def test_the_tasks_of_a_batch_are_counted_by_status(self, engine: Engine) -> None:
        await engine.add([new(n, batch="b", priority=n) for n in range(5)])
        await engine.add([new("single"), new("other", batch="c")])
        held = {task.id: task for task in await claim(engine, limit=3)}
        await engine.apply([complete(held[task_id(0)]), fail(held[task_id(1)], "no")])
        assert {key: number for key, number in (await engine.count("b")).items() if number} == {
            CountKey("q", "t", Status.COMPLETED, 0): 1,
            CountKey("q", "t", Status.FAILED, 1): 1,
            CountKey("q", "t", Status.RUNNING, 2): 1,
            CountKey("q", "t", Status.PENDING, 3): 1,
            CountKey("q", "t", Status.PENDING, 4): 1,
        }
        assert sum((await engine.count("c")).values()) == 1
        assert sum((await engine.count("unknown")).values()) == 0
        await engine.apply([replay(task_id(1)), cancel(task_id(4)), archive(task_id(0))])
        await engine.delete([task_id(4)])
        by_status: Counter[Status] = Counter()
        for key, number in (await engine.count("b")).items():
            by_status[key.status] += number
        assert +by_status == {Status.ARCHIVED: 1, Status.PENDING: 2, Status.RUNNING: 1}

    async def test_many_batches_are_counted_at_the_same_time(self, engine: Engine) -> None:
        await engine.add([new(n, batch=f"b{n % 30}") for n in range(45)])
        found = await asyncio.gather(*(engine.count(f"b{n}") for n in range(31)))
        assert [sum(counts.values()) for counts in found] == [2] * 15 + [1] * 15 + [0]

    async def test_a_task_under_an_idempotency_key_keeps_its_batch(self, engine: Engine) -> None:
        await engine.add([new(1, batch="b", idempotency_key="k")])
        await engine.add([new(1, batch="c", idempotency_key="k")])
        assert (await stored(engine, 1)).batch == "b"
        assert await engine.find(Filter(batch="c"), limit=9) == []

    # --- progress

    async def test_a_renewal_reports_progress(self, engine: Engine) -> None:
        await engine.add([new()])
        task = await claim_one(engine)
        assert (task.progress, task.progress_text) == (None, None)
        await engine.apply([renew(task, 60.0, progress=0.25, progress_text="resizing\nimages")])
        seen = await stored(engine)
        assert (seen.progress, seen.progress_text) == (0.25, "resizing images")
        await engine.apply([renew(task, 60.0)])
        assert (await stored(engine)).progress == 0.25
        await engine.apply([renew(task, 60.0, progress=0.5)])
        seen = await stored(engine)
        assert (seen.progress, seen.progress_text) == (0.5, None)

    async def test_progress_is_kept_at_the_end_and_cleared_by_a_claim(self, engine: Engine) -> None:
        await engine.add([new()])
        task = await claim_one(engine)
        await engine.apply([renew(task, 60.0, progress=0.75, progress_text="almost")])
        await engine.apply([release(task)])
        assert (await stored(engine)).progress == 0.75
        again = await claim_one(engine)
        assert (again.progress, again.progress_text) == (None, None)
        assert (await stored(engine)).progress is None
        await engine.apply([renew(again, 60.0, progress=0.0, progress_text="begun")])
        await engine.apply([complete(again)])
        seen = await stored(engine)
        assert (seen.status, seen.progress, seen.progress_text) == (Status.COMPLETED, 0.0, "begun")

    async def test_a_late_worker_reports_no_progress(self, engine: Engine) -> None:
        await engine.add([new()])
        late = await claim_one(engine)
        await engine.apply([release(late)])
        await claim_one(engine)
        assert await engine.apply([renew(late, 60.0, progress=0.9)]) == [False]
        assert (await stored(engine)).progress is None

    # --- logs

    async def test_the_event_that_ends_an_attempt_has_its_log(self, engine: Engine) -> None:
        await engine.add([new(n) for n in range(4)])
        tasks = {task.id: task for task in await claim(engine)}
        changes = [
            complete(tasks[task_id(0)], log="done\nfine"),
            fail(tasks[task_id(1)], "no", log="Zeile ü"),
            after_error(tasks[task_id(2)], "boom", random=0.5, log="retrying"),
            release(tasks[task_id(3)], log="stopping"),
        ]
        assert await engine.apply(changes) == [True] * 4
        assert await engine.apply(changes[:1]) == [True]
        for n, change in enumerate(changes):
            events = await engine.history(task_id(n))
            assert [event.log for event in events] == [None, None, change.log]

    async def test_the_log_of_the_last_attempt_is_kept(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(max_retries=9)])
        for n in range(6):
            task = await claim_one(engine)
            line = f"attempt {n}: {'x' * 1000}\n"
            await engine.apply([after_error(task, "boom", random=0.5, log=line * 100)])
            clock.advance(600)
        task = await claim_one(engine)
        await engine.apply([renew(task, 60.0)])
        await engine.apply([complete(task, log="the end")])
        await engine.apply([archive(task.id)])
        events = await engine.history(task.id)
        assert [event.status for event in events][-2:] == [Status.COMPLETED, Status.ARCHIVED]
        assert [event.log for event in events][-2:] == ["the end", None]
        assert all(len((event.log or "").encode()) <= LOG_LIMIT for event in events)
        assert len(events) == 1 + 6 * 2 + 3
