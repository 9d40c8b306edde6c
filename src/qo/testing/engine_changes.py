"""The contract of `apply`: settling, renewing, expiring, cancelling, replaying."""

from qo.engine import Engine
from qo.model import (
    FailureKind,
    Filter,
    RetryPolicy,
    Status,
    after_error,
    archive,
    cancel,
    complete,
    expire,
    fail,
    lost_its_process,
    reject,
    release,
    renew,
    replay,
    retry_now,
    set_apart,
    withdraw,
)
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id


class ChangeContract:
    async def test_a_task_that_waits_for_a_retry_can_be_retried_now_or_withdrawn(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(0), new(1), new(2)])
        held = await claim(engine, limit=2)
        assert await engine.apply([retry_now(held[0].id), withdraw(held[1].id)]) == [False, False]
        await engine.apply([after_error(task, "boom", random=0.5) for task in held])
        changes = [retry_now(task_id(0)), withdraw(task_id(1)), withdraw(task_id("unknown"))]
        assert await engine.apply(changes) == [True, True, False]
        again, gone = [await stored(engine, number) for number in (0, 1)]
        assert (again.status, again.failures, again.available_at) == (Status.PENDING, 0, clock.now)
        assert (gone.status, gone.completed_at) == (Status.CANCELLED, clock.now)
        assert {task.id for task in await claim(engine)} == {task_id(0), task_id(2)}
        assert [event.status.value for event in await engine.history(task_id(0))] == [
            "pending", "running", "pending", "pending", "running",
        ]  # fmt: skip

    async def test_only_the_holder_of_the_lease_can_settle_or_renew(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        late = await claim_one(engine, worker_id="w1")
        clock.advance(31)
        assert await engine.apply([expire(late, random=0.5, grace=0)]) == [True]
        clock.advance(60)
        holder = await claim_one(engine, worker_id="w2")
        assert (holder.attempt, holder.failures) == (2, 1)
        for change in (
            renew(late, 30),
            complete(late),
            fail(late, "e"),
            after_error(late, "e", random=0),
            release(late),
        ):
            assert await engine.apply([change]) == [False]
        assert await stored(engine) == holder
        assert await engine.apply([complete(holder, b'"done"')]) == [True]

    async def test_an_overdue_lease_is_valid_until_it_is_expired(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        task = await claim_one(engine, lease=30.0)
        clock.advance(31)
        assert await engine.apply([renew(task, 30)]) == [True]
        assert await engine.apply([expire(task, random=0.5, grace=0)]) == [False]
        assert (await stored(engine)).status is Status.RUNNING

    async def test_a_lease_can_be_expired_after_its_grace_period(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0), new(1, max_retries=0)])
        tasks = await claim(engine, lease=30.0)
        clock.advance(34)
        assert await engine.apply([expire(task, random=0.5, grace=5) for task in tasks]) == [False, False]
        clock.advance(1)
        assert await engine.apply([expire(task, random=0.5, grace=5) for task in tasks]) == [True, True]
        again, given_up = await stored(engine, 0), await stored(engine, 1)
        assert (again.status, again.failures, again.available_at, again.worker_id) == (
            Status.PENDING,
            1,
            clock.now + 1,
            None,
        )
        assert (given_up.status, given_up.failures, given_up.completed_at) == (Status.FAILED, 1, clock.now)
        assert again.error is not None and "w1" in again.error

    async def test_a_renewal_extends_the_lease_and_adds_no_event(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        task = await claim_one(engine, lease=30.0)
        clock.advance(20)
        assert await engine.apply([renew(task, 30)]) == [True]
        renewed = await stored(engine)
        assert (renewed.status, renewed.lease_expires_at, renewed.version) == (Status.RUNNING, clock.now + 30, 3)
        assert (renewed.started_at, renewed.worker_id) == (task.started_at, "w1")
        assert [event.status for event in await engine.history(task.id)] == [Status.PENDING, Status.RUNNING]

    async def test_a_renewal_may_shorten_the_lease(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        task = await claim_one(engine, lease=600)
        assert await engine.apply([renew(task, 5)]) == [True]
        assert (await stored(engine)).lease_expires_at == clock.now + 5
        clock.advance(6)
        assert [found.id for found in await engine.find(Filter(expired_for=0.5), limit=9)] == [task.id]
        assert await engine.apply([expire(task, grace=0.5, random=0.5)]) == [True]
        assert (await stored(engine)).status is Status.PENDING

    async def test_completing_keeps_the_result_and_forgets_the_error(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        await engine.apply([after_error(await claim_one(engine), "boom", random=0.5, after=0)])
        assert (await stored(engine)).error == "boom"
        assert await engine.apply([complete(await claim_one(engine), b"42")]) == [True]
        task = await stored(engine)
        assert (task.status, task.result, task.error, task.completed_at) == (Status.COMPLETED, b"42", None, clock.now)
        assert (task.worker_id, task.lease_expires_at, task.attempt, task.failures) == ("w1", None, 2, 1)
        clock.advance(1e6)
        assert await claim(engine) == []

    async def test_a_repeated_settlement_returns_true_and_changes_nothing(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(0), new(1), new(2)])
        tasks = await claim(engine)
        changes = [complete(tasks[0], b"1"), after_error(tasks[1], "e", random=0.5), fail(tasks[2], "e")]
        assert await engine.apply(changes) == [True] * 3
        before = await engine.get([task_id(n) for n in range(3)])
        clock.advance(0.5)
        assert await engine.apply(changes) == [True] * 3
        assert await engine.get([task_id(n) for n in range(3)]) == before
        assert len(await engine.history(tasks[0].id)) == 3

    async def test_a_retry_waits_and_runs_again_until_the_retries_are_used_up(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = RetryPolicy(initial=4, multiplier=2, jitter=0, timeout_growth=1.5)
        await engine.add([new(max_retries=1, retry=policy, timeout=10.0)])
        assert await engine.apply([after_error(await claim_one(engine), "boom", random=0.5)]) == [True]
        task = await stored(engine)
        assert (task.status, task.error, task.available_at) == (Status.PENDING, "boom", clock.now + 4)
        assert (task.timeout, task.time_limit) == (10, 15)
        assert (task.worker_id, task.started_at, task.lease_expires_at, task.rank) == (
            None,
            None,
            None,
            clock.now + 4 + 1200,
        )
        clock.advance(3.9)
        assert await claim(engine) == []
        clock.advance(0.1)
        assert await engine.apply([after_error(await claim_one(engine), "again", random=0.5)]) == [True]
        task = await stored(engine)
        assert (task.status, task.error, task.attempt, task.failures) == (Status.FAILED, "again", 2, 2)
        assert task.completed_at == clock.now

    async def test_a_release_does_not_count_as_a_failure(self, engine: Engine) -> None:
        await engine.add([new(max_retries=0)])
        for attempt in range(1, 4):
            task = await claim_one(engine)
            assert (task.attempt, task.failures) == (attempt, 0)
            assert await engine.apply([release(task)]) == [True]
        assert (await stored(engine)).status is Status.PENDING

    async def test_a_task_released_without_a_delay_keeps_its_position(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0)])
        before = await stored(engine, 0)
        clock.advance(5)
        await engine.add([new(1)])
        first = await claim_one(engine)
        assert await engine.apply([release(first, None)]) == [True]
        back = await stored(engine, 0)
        assert (back.status, back.available_at, back.rank) == (Status.PENDING, before.available_at, before.rank)
        assert (await claim_one(engine)).id == first.id

    async def test_a_prefetched_task_has_started_when_its_handler_has(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(n, max_retries=0) for n in range(4)])
        claimed_at = clock.now
        tasks = {task.id: task for task in await claim(engine, is_prefetch=True)}
        assert all(task.started_at is None and task.updated_at == claimed_at for task in tasks.values())
        completed, failed, renewed, back = [tasks[task_id(n)] for n in range(4)]
        clock.advance(2)
        started_at = clock.now - 0.5
        changes = [
            complete(completed, b"1", started_at=started_at),
            fail(failed, "boom", started_at=started_at),
            renew(renewed, 30, started_at=started_at),
            release(back, None),
        ]
        assert await engine.apply(changes) == [True] * 4
        assert [(await stored(engine, n)).started_at for n in range(4)] == [started_at] * 3 + [None]
        assert await engine.apply([renew(renewed, 30)]) == [True]  # without `started_at`: the stored one is kept
        assert (await stored(engine, 2)).started_at == started_at
        for task in tasks.values():
            claimed = next(event for event in await engine.history(task.id) if event.status is Status.RUNNING)
            assert claimed.at == claimed_at

    async def test_a_pending_task_can_be_rejected_without_an_attempt(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, type="typo"), new(1, type="typo"), new(2, type="typo", delay=60)])
        waiting = await engine.find(Filter(types=("typo",)), limit=9)
        held = await claim_one(engine)
        changes = [reject(task, "unknown type") for task in waiting if task.id != held.id] + [reject(held, "no")]
        assert await engine.apply(changes) == [True, True, False]
        for task in await engine.find(Filter(statuses=(Status.FAILED,)), limit=9):
            assert (task.attempt, task.failures, task.error) == (0, 0, "unknown type")
            assert (task.completed_at, task.worker_id, task.lease_id) == (clock.now, None, None)
        assert (await stored(engine, int(held.id == task_id(1)))).status is Status.RUNNING
        assert [event.status.value for event in await engine.history(task_id(2))] == ["pending", "failed"]
        assert await engine.apply([reject(waiting[0], "again")]) == [False]
        assert await engine.apply([replay(task_id(2))]) == [True]
        assert (await claim_one(engine)).id == task_id(2)

    async def test_a_task_set_apart_keeps_its_failures_and_has_the_reason(self, engine: Engine) -> None:
        await engine.add([new(max_retries=0)])
        assert await engine.apply([set_apart(await claim_one(engine), "its worker died")]) == [True]
        task = await stored(engine)
        assert (task.status, task.failures, task.error) == (Status.PENDING, 0, "lost: its worker died")
        assert lost_its_process(await claim_one(engine))

    async def test_pending_and_running_tasks_can_be_cancelled(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("running"), new("waiting", delay=9.0)])
        task = await claim_one(engine)
        changes = [cancel(task_id(name)) for name in ("running", "waiting", "unknown")]
        assert await engine.apply(changes) == [True, True, False]
        assert await engine.apply([renew(task, 30)]) == [False]
        assert await engine.apply([complete(task)]) == [False]
        for name in ("running", "waiting"):
            ended = await stored(engine, name)
            assert (ended.status, ended.completed_at) == (Status.CANCELLED, clock.now)
        assert await engine.apply([cancel(task_id("running"))]) == [False]
        clock.advance(10)
        assert await claim(engine) == []

    async def test_a_replayed_task_starts_over_with_a_higher_attempt(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(max_retries=0)])
        assert await engine.apply([replay(task_id(0))]) == [False]
        await engine.apply([fail(await claim_one(engine), "boom")])
        clock.advance(5)
        assert await engine.apply([replay(task_id(0))]) == [True]
        task = await stored(engine)
        assert (task.status, task.failures, task.completed_at, task.available_at) == (
            Status.PENDING,
            0,
            None,
            clock.now,
        )
        task = await claim_one(engine)
        assert (task.attempt, task.failures) == (2, 0)
        await engine.apply([complete(task)])
        assert await engine.apply([replay(task_id(0))]) == [False]

    async def test_the_failure_kind_is_kept_as_long_as_the_error(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(number) for number in range(7)])
        held = {task.id: task for task in await claim(engine, limit=6)}
        plain, late, ended, apart, done, lost = (held[task_id(number)] for number in range(6))
        changes = [
            after_error(plain, "timed out after 3 s, says the handler", random=0.5, after=0),
            after_error(late, "e", kind=FailureKind.TIMEOUT, random=0.5, after=0),
            fail(ended, "e", kind=FailureKind.TIMEOUT),
            set_apart(apart, "its worker died"),
            complete(done),
            reject(await stored(engine, 6), "no worker handles it"),
        ]
        assert await engine.apply(changes) == [True] * 6
        clock.advance(60)
        assert await engine.apply([expire(lost, random=0.5, grace=0)]) == [True]
        kinds = [(await stored(engine, number)).failure_kind for number in range(7)]
        assert kinds == ["error", "timeout", "timeout", "lost", None, "lost", "unknown_type"]
        clock.advance(60)
        again = {task.id: task for task in await claim(engine, limit=6)}
        assert again[task_id(1)].failure_kind is FailureKind.TIMEOUT
        changes = [after_error(again[task_id(1)], "e", random=0.5), complete(again[task_id(0)]), cancel(task_id(3))]
        assert await engine.apply([*changes, replay(task_id(2))]) == [True] * 4
        kinds = [(await stored(engine, number)).failure_kind for number in range(4)]
        assert kinds == [None, "error", "timeout", "lost"]  # kept and cleared together with `error`

    async def test_an_archived_task_keeps_its_previous_status(self, engine: Engine) -> None:
        await engine.add([new(0), new(1), new(2, delay=9.0)])
        first, second = sorted(await claim(engine, limit=2), key=lambda task: task.id)
        await engine.apply([complete(first), fail(second, "boom"), cancel(task_id(2))])
        assert await engine.apply([archive(task_id(number)) for number in range(3)]) == [True] * 3
        archived = [await stored(engine, number) for number in range(3)]
        before = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]
        assert [task.archived_from for task in archived] == [task.ended_as for task in archived] == before
        assert await engine.apply([replay(task_id(1))]) == [True]
        assert (await stored(engine, 1)).archived_from is None

    async def test_finished_tasks_can_be_archived_and_replayed(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        assert await engine.apply([archive(task_id(0))]) == [False]
        await engine.apply([complete(await claim_one(engine), b"1")])
        ended_at = clock.now
        clock.advance(5)
        assert await engine.apply([archive(task_id(0))]) == [True]
        task = await stored(engine)
        assert (task.status, task.result, task.completed_at) == (Status.ARCHIVED, b"1", ended_at)
        assert await engine.apply([archive(task_id(0))]) == [False]
        assert await engine.apply([replay(task_id(0))]) == [True]
        again = await stored(engine)
        assert (again.status, again.result, again.completed_at) == (Status.PENDING, None, None)
        await engine.apply([fail(await claim_one(engine), "boom")])
        assert (await stored(engine)).result is None

    async def test_a_replayed_task_has_its_submitted_timeout(self, engine: Engine) -> None:
        policy = RetryPolicy(initial=0, max=0, timeout_growth=3.0)
        await engine.add([new(max_retries=1, retry=policy, timeout=10.0)])
        for limit in (10, 30):
            task = await claim_one(engine)
            assert task.time_limit == limit
            await engine.apply([after_error(task, "boom", random=0.5)])
        assert await engine.apply([replay(task_id(0))]) == [True]
        task = await claim_one(engine)
        assert (task.timeout, task.time_limit, task.error) == (10, 10, "boom")

    async def test_a_refused_change_does_not_affect_the_rest_of_its_batch(self, engine: Engine) -> None:
        await engine.add([new(0), new(1)])
        first, second = sorted(await claim(engine), key=lambda task: task.id)
        await engine.apply([cancel(first.id)])
        assert await engine.apply([complete(first), complete(second), cancel(task_id(7))]) == [False, True, False]
