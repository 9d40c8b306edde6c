"""What every engine promises. Written once, run against all of them; a bug found in one becomes a test for all."""

import asyncio
from typing import Any

import pytest

from qo.engine import Engine
from qo.errors import BadBatch, Conflict
from qo.model import (
    ANY,
    NEW,
    Filter,
    Lane,
    RetryPolicy,
    Status,
    after_error,
    archive,
    cancel,
    complete,
    cursor,
    expire,
    fail,
    release,
    renew,
    replay,
)
from qo.testing.clock import ManualClock
from qo.testing.histories import random_history
from qo.testing.samples import claim, claim_one, new, stored, task_id, want


class EngineContract:
    """Subclass it and give it an `engine` fixture: a fresh, open engine that takes its time from `clock`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    # --- add

    async def test_an_added_task_is_pending_as_described(self, engine: Engine, clock: ManualClock) -> None:
        policy = RetryPolicy(initial=2, max=9, multiplier=3, jitter=0, timeout_growth=1.5)
        described = new(
            payload=b'{"a":1}', priority=4, needs=("gpu", "ssd"), timeout=7.5, max_retries=9, retry=policy, delay=5.0,
            idempotency_key="k", trace_id="tr",
        )  # fmt: skip
        assert await engine.add([described]) == [(task_id(0), True)]
        task = await stored(engine)
        for field in ("id", "queue", "type", "payload", "priority", "needs", "timeout", "max_retries", "retry"):
            assert getattr(task, field) == getattr(described, field)
        assert (task.idempotency_key, task.trace_id, task.status, task.attempt) == ("k", "tr", Status.PENDING, 0)
        assert (task.created_at, task.updated_at, task.available_at) == (clock.now, clock.now, clock.now + 5)
        assert (task.failures, task.version, task.rank) == (0, 1, clock.now + 5 + 4 * 200)
        assert (task.result, task.error, task.worker_id, task.lease_id, task.completed_at) == (None,) * 5

    async def test_adding_an_id_again_changes_nothing(self, engine: Engine) -> None:
        await engine.add([new(payload=b"1")])
        assert await engine.add([new(payload=b"2"), new(1)]) == [(task_id(0), False), (task_id(1), True)]
        assert (await stored(engine)).payload == b"1"

    async def test_payloads_and_results_are_opaque_bytes(self, engine: Engine) -> None:
        for data in (b"", b"\x00\xff\x00", b'{"empty":[],"big":9007199254740993}', "\u2028é\U0001f600".encode()):
            name = data.hex()[:10]
            await engine.add([new(name, payload=data)])
            assert await engine.apply([complete(await claim_one(engine), data)]) == [True]
            task = await stored(engine, name)
            assert (task.payload, task.result) == (data, data)

    async def test_a_task_may_be_due_at_an_instant(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(run_at=clock.now + 7.25, delay=99)])
        assert (await stored(engine)).available_at == clock.now + 7.25
        assert await claim(engine) == []
        clock.advance(7.25)
        assert len(await claim(engine)) == 1

    async def test_a_key_makes_room_once_its_window_is_over_and_its_task_is_finished(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 100.0}
        await engine.add([new(payload=b"1", **keyed)])
        clock.advance(100)
        assert await engine.add([new(payload=b"2", **keyed)]) == [(task_id(0), False)]
        await engine.apply([complete(await claim_one(engine))])
        assert await engine.add([new(payload=b"3", **keyed)]) == [(task_id(0), True)]
        task = await stored(engine)
        assert (task.payload, task.status, task.attempt, task.created_at) == (b"3", Status.PENDING, 0, clock.now)
        assert (task.result, task.completed_at, task.lease_id) == (None, None, None)
        assert await engine.add([new(payload=b"4", **keyed)]) == [(task_id(0), False)]
        assert [task.payload for task in await claim(engine)] == [b"3"]

    # --- claim

    async def test_a_claim_leases_the_task(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        clock.advance(1)
        task = await claim_one(engine, lease=30.0, lease_id="secret")
        assert (task.status, task.worker_id, task.lease_id, task.attempt) == (Status.RUNNING, "w1", "secret", 1)
        assert (task.started_at, task.lease_expires_at, task.version) == (clock.now, clock.now + 30, 2)
        assert await stored(engine) == task

    async def test_a_leased_task_is_not_claimed_again_even_when_its_lease_ran_out(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new()])
        await claim_one(engine, lease=30.0)
        assert await claim(engine) == []
        clock.advance(31)
        assert await claim(engine) == []  # expiring is the monitor's decision, with back-off

    async def test_a_delayed_task_waits_for_its_time(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(delay=5.0)])
        assert await claim(engine) == []
        clock.advance(5)
        assert (await claim_one(engine)).id == task_id(0)

    async def test_lower_priority_numbers_go_first_then_older_tasks(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, priority=9), new(1, priority=6)])
        clock.advance(1)
        await engine.add([new(2, priority=6), new(3, priority=0)])
        order = [(await claim_one(engine)).id for _ in range(4)]
        assert order == [task_id(n) for n in (3, 1, 2, 0)]

    async def test_waiting_makes_up_for_priority(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("medium", priority=6), new("low", priority=9)])
        clock.advance(1199)
        await engine.add([new("early high", priority=0)])
        clock.advance(2)
        await engine.add([new("late high", priority=0)])
        clock.advance(600)
        await engine.add([new("last high", priority=0)])
        order = [(await claim_one(engine)).id for _ in range(5)]
        assert order == [task_id(n) for n in ("early high", "medium", "late high", "low", "last high")]

    async def test_ageing_can_be_strict_or_off(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, priority=1, ageing=float("inf"))])
        await engine.add([new(1, priority=9, ageing=0.0)])
        clock.advance(1e7)
        await engine.add([new(2, priority=0)])
        assert [(await claim_one(engine)).id for _ in range(3)] == [task_id(n) for n in (1, 2, 0)]

    async def test_a_batch_keeps_its_order(self, engine: Engine) -> None:
        names = [5, 3, 9, 1]
        await engine.add([new(n) for n in names])
        assert [(await claim_one(engine)).id for _ in names] == [task_id(n) for n in names]

    async def test_a_claim_looks_only_at_what_is_wanted(self, engine: Engine) -> None:
        await engine.add(
            [
                new(0, queue="x"),
                new(1, queue="y"),
                new(2, queue="x", type="other"),
                new(3, queue="x", needs=("gpu",)),
                new(4, queue="z", needs=("cpu", "gpu")),
            ]
        )
        assert await claim(engine, queues=("nowhere",)) == await claim(engine, types=("nothing",)) == []
        assert [task.id for task in await claim(engine, queues=("x",), types=("t",))] == [task_id(0)]
        assert {task.id for task in await claim(engine)} == {task_id(1), task_id(2)}
        assert [task.id for task in await claim(engine, capabilities=frozenset({"gpu"}))] == [task_id(3)]
        assert [task.id for task in await claim(engine, capabilities=frozenset({"gpu", "cpu"}))] == [task_id(4)]

    async def test_tasks_nobody_here_can_run_do_not_block_those_behind_them(self, engine: Engine) -> None:
        await engine.add([new(n, type="foreign", priority=0) for n in range(60)])
        await engine.add([new(100 + n, needs=("gpu",), priority=0) for n in range(60)])
        await engine.add([new(200, priority=9)])
        assert [task.id for task in await claim(engine, types=("t",), limit=1)] == [task_id(200)]

    async def test_a_claim_takes_no_more_than_asked_for_in_all_and_by_type(self, engine: Engine) -> None:
        await engine.add([new(n, type="a", priority=0) for n in range(5)] + [new(10 + n, type="b") for n in range(5)])
        first = await claim(engine, limit=4, at_most={"a": 2})
        assert sorted(task.type for task in first) == ["a", "a", "b", "b"]
        assert [task.type for task in await claim(engine, limit=9, at_most={"a": 0, "b": 1})] == ["b"]
        assert len(await claim(engine, limit=2)) == 2
        assert await claim(engine, limit=0) == []

    async def test_repeating_a_claim_gives_the_same_tasks(self, engine: Engine) -> None:
        await engine.add([new(0), new(1), new(2)])
        first = await claim(engine, lease_id="mine", limit=2)
        again = await claim(engine, lease_id="mine", limit=2, again=True)
        assert sorted(again, key=lambda task: task.id) == sorted(first, key=lambda task: task.id)
        assert len(await claim(engine, lease_id="other", again=True)) == 1  # the first try never arrived

    # --- apply

    async def test_only_the_holder_of_the_lease_can_settle_or_extend(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        late = await claim_one(engine, worker_id="w1")
        clock.advance(31)
        assert await engine.apply([expire(late, luck=0.5, grace=0)]) == [True]
        clock.advance(60)
        holder = await claim_one(engine, worker_id="w2")
        assert (holder.attempt, holder.failures) == (2, 1)
        for change in (renew(late, 30), complete(late), fail(late, "e"), after_error(late, "e", luck=0), release(late)):
            assert await engine.apply([change]) == [False]
        assert await stored(engine) == holder
        assert await engine.apply([complete(holder, b'"done"')]) == [True]

    async def test_a_lease_that_ran_out_is_still_held_until_someone_expires_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new()])
        task = await claim_one(engine, lease=30.0)
        clock.advance(31)
        assert await engine.apply([renew(task, 30)]) == [True]
        assert await engine.apply([expire(task, luck=0.5, grace=0)]) == [False]
        assert (await stored(engine)).status is Status.RUNNING

    async def test_a_lease_expires_after_its_grace(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0), new(1, max_retries=0)])
        tasks = await claim(engine, lease=30.0)
        clock.advance(34)
        assert await engine.apply([expire(task, luck=0.5, grace=5) for task in tasks]) == [False, False]
        clock.advance(1)
        assert await engine.apply([expire(task, luck=0.5, grace=5) for task in tasks]) == [True, True]
        again, given_up = await stored(engine, 0), await stored(engine, 1)
        assert (again.status, again.failures, again.available_at, again.worker_id) == (
            Status.PENDING,
            1,
            clock.now + 1,
            None,
        )
        assert (given_up.status, given_up.failures, given_up.completed_at) == (Status.FAILED, 1, clock.now)
        assert again.error is not None and "w1" in again.error

    async def test_renewing_moves_the_deadline_and_leaves_no_event(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        task = await claim_one(engine, lease=30.0)
        clock.advance(20)
        assert await engine.apply([renew(task, 30)]) == [True]
        renewed = await stored(engine)
        assert (renewed.status, renewed.lease_expires_at, renewed.version) == (Status.RUNNING, clock.now + 30, 3)
        assert (renewed.started_at, renewed.worker_id) == (task.started_at, "w1")
        assert [event.status for event in await engine.history(task.id)] == [Status.PENDING, Status.RUNNING]

    async def test_completing_keeps_the_result_and_forgets_the_error(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        await engine.apply([after_error(await claim_one(engine), "boom", luck=0.5, after=0)])
        assert (await stored(engine)).error == "boom"
        assert await engine.apply([complete(await claim_one(engine), b"42")]) == [True]
        task = await stored(engine)
        assert (task.status, task.result, task.error, task.completed_at) == (Status.COMPLETED, b"42", None, clock.now)
        assert (task.worker_id, task.lease_expires_at, task.attempt, task.failures) == ("w1", None, 2, 1)
        clock.advance(1e6)
        assert await claim(engine) == []

    async def test_repeating_a_settlement_is_harmless_and_answered_alike(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(0), new(1), new(2)])
        tasks = await claim(engine)
        changes = [complete(tasks[0], b"1"), after_error(tasks[1], "e", luck=0.5), fail(tasks[2], "e")]
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
        assert await engine.apply([after_error(await claim_one(engine), "boom", luck=0.5)]) == [True]
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
        assert await engine.apply([after_error(await claim_one(engine), "again", luck=0.5)]) == [True]
        task = await stored(engine)
        assert (task.status, task.error, task.attempt, task.failures) == (Status.FAILED, "again", 2, 2)
        assert task.completed_at == clock.now

    async def test_handing_a_task_back_costs_nothing(self, engine: Engine) -> None:
        await engine.add([new(max_retries=0)])
        for attempt in range(1, 4):
            task = await claim_one(engine)
            assert (task.attempt, task.failures) == (attempt, 0)
            assert await engine.apply([release(task)]) == [True]
        assert (await stored(engine)).status is Status.PENDING

    async def test_cancelling_reaches_waiting_and_running_tasks(self, engine: Engine, clock: ManualClock) -> None:
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

    async def test_a_replayed_task_starts_over_under_a_higher_attempt(self, engine: Engine, clock: ManualClock) -> None:
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

    async def test_finished_tasks_can_be_archived_and_brought_back(self, engine: Engine, clock: ManualClock) -> None:
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

    async def test_a_replayed_task_has_the_time_it_had_at_first(self, engine: Engine) -> None:
        policy = RetryPolicy(initial=0, max=0, timeout_growth=3.0)
        await engine.add([new(max_retries=1, retry=policy, timeout=10.0)])
        for limit in (10, 30):
            task = await claim_one(engine)
            assert task.time_limit == limit
            await engine.apply([after_error(task, "boom", luck=0.5)])
        assert await engine.apply([replay(task_id(0))]) == [True]
        task = await claim_one(engine)
        assert (task.timeout, task.time_limit, task.error) == (10, 10, "boom")

    async def test_one_bad_change_in_a_batch_fails_alone(self, engine: Engine) -> None:
        await engine.add([new(0), new(1)])
        first, second = sorted(await claim(engine), key=lambda task: task.id)
        await engine.apply([cancel(first.id)])
        assert await engine.apply([complete(first), complete(second), cancel(task_id(7))]) == [False, True, False]

    # --- delete, get, find, count, history

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

    async def test_empty_batches_are_fine(self, engine: Engine) -> None:
        answers = [await engine.add([]), await engine.apply([]), await engine.delete([]), await engine.get([])]
        assert answers == [[], [], [], []]

    async def test_get_answers_in_the_order_asked(self, engine: Engine) -> None:
        await engine.add([new(0), new(1)])
        found = await engine.get([task_id(1), task_id(9), task_id(0), task_id(1)])
        assert [task and task.id for task in found] == [task_id(1), None, task_id(0), task_id(1)]

    async def test_find_pages_newest_first(self, engine: Engine, clock: ManualClock) -> None:
        for name in (3, 1, 4, 2):
            await engine.add([new(name)])
            clock.advance(1)
        await engine.add([new(n) for n in (7, 6)])  # one batch: the later is the newer
        page = await engine.find(Filter(), limit=4)
        assert [task.id for task in page] == [task_id(n) for n in (6, 7, 2, 4)]
        rest = await engine.find(Filter(), limit=4, after=cursor(page[-1]))
        assert [task.id for task in rest] == [task_id(n) for n in (1, 3)]
        assert await engine.find(Filter(), limit=4, after=cursor(rest[-1])) == []

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

    async def test_counts_by_queue_type_and_status(self, engine: Engine) -> None:
        await engine.add([new(0), new(1), new(2, queue="other", type="u"), new(3, delay=60.0)])
        await engine.apply([complete(await claim_one(engine, queues=("other",)))])
        await claim_one(engine)
        assert {lane: n for lane, n in (await engine.count()).items() if n} == {
            Lane("q", "t", Status.RUNNING): 1,
            Lane("q", "t", Status.PENDING): 2,
            Lane("other", "u", Status.COMPLETED): 1,
        }
        await engine.delete([task_id(2)])
        await engine.apply([cancel(task_id(3))])
        assert {lane: n for lane, n in (await engine.count()).items() if n} == {
            Lane("q", "t", Status.RUNNING): 1,
            Lane("q", "t", Status.PENDING): 1,
            Lane("q", "t", Status.CANCELLED): 1,
        }

    async def test_counts_by_priority(self, engine: Engine) -> None:
        await engine.add([new(n, priority=n, idempotency_key=str(n), window=0.0) for n in range(10)])
        await engine.add([new(10, priority=9, delay=60.0), new(11, priority=0)])
        first, *_ = await engine.claim(want(limit=2, types=("t",)))
        waiting = {
            lane.priority: n for lane, n in (await engine.count()).items() if n and lane.status is Status.PENDING
        }
        assert waiting == {n: 2 if n == 9 else 1 for n in range(1, 10)}
        await engine.apply([fail(first, "boom")])
        await engine.delete([first.id])
        await engine.apply([cancel(task_id(5)), cancel(task_id(7))])
        await engine.apply([replay(task_id(7))])
        await engine.add([new(5, priority=1, idempotency_key="5", window=0.0)])  # makes room for itself, elsewhere
        counted = {lane: n for lane, n in (await engine.count()).items() if n}
        assert counted == {
            Lane("q", "t", Status.RUNNING, 0): 1,
            Lane("q", "t", Status.PENDING, 1): 2,
            **{Lane("q", "t", Status.PENDING, n): 1 for n in (2, 3, 4, 6, 7, 8)},
            Lane("q", "t", Status.PENDING, 9): 2,
        }

    async def test_history_tells_every_transition_in_order(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        clock.advance(1)
        await engine.apply([after_error(await claim_one(engine), "boom", luck=0.5)])
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

    # --- notes

    async def test_notes_are_compared_and_set(self, engine: Engine) -> None:
        assert await engine.read_note("switch") is None
        first = await engine.write_note("switch", b"\x00on", expected=NEW)
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"off", expected=NEW)
        second = await engine.write_note("switch", b"off", expected=first)
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"stale", expected=first)
        assert await engine.read_note("switch") == ("switch", b"off", second)
        third = await engine.write_note("switch", b"off", expected=ANY)
        assert len({first, second, third}) == 3
        await engine.drop_note("switch")
        await engine.drop_note("switch")
        assert await engine.read_note("switch") is None
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"x", expected=third)
        assert await engine.write_note("switch", b"x", expected=NEW) not in {first, second, third}

    async def test_notes_are_listed_by_prefix(self, engine: Engine) -> None:
        for name in ("workers/b", "workers/a", "workers_other", "control"):
            await engine.write_note(name, name.encode(), expected=ANY)
        assert [note.name for note in await engine.notes("workers/")] == ["workers/a", "workers/b"]
        assert [note.data for note in await engine.notes("control")] == [b"control"]

    async def test_one_of_many_racing_writers_of_a_note_wins(self, engine: Engine) -> None:
        async def write(n: int) -> bool:
            try:
                await engine.write_note("leader", b"%d" % n, expected=NEW)
            except Conflict:
                return False
            return True

        assert sum(await asyncio.gather(*(write(n) for n in range(8)))) == 1

    # --- wait, open, races

    async def test_waiting_ends_by_itself(self, engine: Engine) -> None:
        await asyncio.wait_for(engine.wait(want(), 0.01), 5)

    async def test_waiting_ends_when_a_task_arrives(self, engine: Engine) -> None:
        waiting = asyncio.create_task(engine.wait(want(), 30))
        await asyncio.sleep(0.02)
        await engine.add([new()])
        await asyncio.wait_for(waiting, 10)

    async def test_opening_again_changes_nothing(self, engine: Engine) -> None:
        await engine.add([new()])
        await engine.open()
        assert (await stored(engine)).status is Status.PENDING

    async def test_racing_claimers_never_share_a_task(self, engine: Engine) -> None:
        await engine.add([new(n) for n in range(40)])
        got = await asyncio.gather(*(claim(engine, limit=4, worker_id=f"w{n}") for n in range(10)))
        ids = [task.id for batch in got for task in batch]
        assert len(ids) == len(set(ids))
        assert ids

    async def test_racing_submissions_of_one_key_make_one_task(self, engine: Engine) -> None:
        answers = await asyncio.gather(*(engine.add([new(payload=b"%d" % n)]) for n in range(8)))
        assert sorted(added.new for (added,) in answers) == [False] * 7 + [True]
        winner = next(n for n, (added,) in enumerate(answers) if added.new)
        assert (await stored(engine)).payload == b"%d" % winner

    async def test_racing_producers_all_land(self, engine: Engine) -> None:
        answers = await asyncio.gather(*(engine.add([new(n)]) for n in range(20)))
        assert answers == [[(task_id(n), True)] for n in range(20)]
        assert len(await engine.find(Filter(), limit=99)) == 20

    async def test_one_of_two_racing_settlements_wins(self, engine: Engine) -> None:
        await engine.add([new()])
        task = await claim_one(engine)
        answers = await asyncio.gather(engine.apply([complete(task)]), engine.apply([cancel(task.id)]))
        assert sorted(answers) == [[False], [True]]

    @pytest.mark.parametrize("seed", range(12))
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, seed)
