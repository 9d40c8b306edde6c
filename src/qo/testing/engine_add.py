"""The contract of `add`, and of unique tasks: keys that are unique until a task starts, and replaced tasks."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from qo.engine import Engine
from qo.errors import BadBatch, InvalidSetting
from qo.model import Added, Filter, RetryPolicy, Status, after_error, amend, cancel, complete, release, replay
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id


class AddContract:
    async def test_an_added_task_is_pending_with_the_given_fields(self, engine: Engine, clock: ManualClock) -> None:
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

    async def test_optional_fields_of_a_batch_stay_with_their_tasks(self, engine: Engine, clock: ManualClock) -> None:
        traced, keyed = new(1, run_at=clock.now + 5, trace_id="tr"), new(2, idempotency_key="k", timeout=7.5)
        batch = [new(0), traced, keyed, new(3)]
        await engine.add(batch)
        tasks = [await stored(engine, number) for number in range(4)]
        for field in ("trace_id", "idempotency_key", "timeout"):
            assert [getattr(task, field) for task in tasks] == [getattr(described, field) for described in batch]
        assert [task.available_at > clock.now for task in tasks] == [False, True, False, False]

    async def test_adding_without_an_event_loop_stores_the_same(self, engine: Engine) -> None:
        """If the engine supports it. Threads and the event loop add at the same time."""
        if not engine.adds_directly:
            with pytest.raises(InvalidSetting, match="only on an event loop"):
                engine.add_directly([new(0)])
            return
        first, repeated = new(0, payload=b"1"), new(0, payload=b"2")
        assert engine.add_directly([first, new(1)]) == [(task_id(0), True), (task_id(1), True)]
        assert engine.add_directly([repeated]) == [(task_id(0), False)]
        with pytest.raises(BadBatch):
            engine.add_directly([first, repeated])
        threads = [asyncio.to_thread(engine.add_directly, [new(number)]) for number in range(10, 20)]
        answers = await asyncio.gather(*threads, *(engine.add([new(number)]) for number in range(20, 30)))
        assert sorted(answer for (answer,) in answers) == sorted((task_id(number), True) for number in range(10, 30))
        assert sum((await engine.count()).values()) == 22
        assert (await stored(engine)).payload == b"1"

    async def test_a_task_added_without_an_event_loop_equals_one_added_on_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """Each shape first and later in its lane, and the tasks of both kinds in one order."""
        if not engine.adds_directly:
            return
        policy = RetryPolicy(initial=2, max=9, multiplier=3, jitter=0, timeout_growth=1.5)
        shapes: list[dict[str, Any]] = [
            {"payload": b'{"a":1}', "trace_id": "tr", "timeout": 7.5, "max_retries": 9, "retry": policy},
            {"delay": 5.0},
            {"run_at": clock.now - 60, "priority": 0, "needs": ("gpu", "ssd")},
        ]
        for number, shape in enumerate(shapes * 2):
            on_loop, directly = new(f"a{number}", **shape), new(f"b{number}", **shape)
            await engine.add([on_loop])
            assert engine.add_directly([directly]) == [(directly.id, True)]
            one, other = await stored(engine, f"a{number}"), await stored(engine, f"b{number}")
            assert replace(one, id=other.id) == other
            assert await engine.history(one.id) == await engine.history(other.id)
            clock.advance(1)
        clock.advance(10)
        assert sum((await engine.count()).values()) == 4 * len(shapes)
        claimed = await claim(engine, capabilities=frozenset({"gpu", "ssd"}), limit=20)
        order = [f"{kind}{number}" for number in (2, 5, 0, 3, 1, 4) for kind in "ab"]
        assert [task.id for task in claimed] == [task_id(name) for name in order]

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

    async def test_a_type_may_look_like_a_path_or_an_address(self, engine: Engine) -> None:
        types = ["a/b", "a", "a/../b", "x@y+z", "Mail", "mail", "b" * 255, "b" * 254, "c" + "/@" * 127]
        await engine.add([new(number, type=type_) for number, type_ in enumerate(types)])
        assert [(await stored(engine, number)).type for number in range(len(types))] == types
        for number, type_ in enumerate(types):
            (found,) = await engine.find(Filter(types=(type_,)), limit=9)
            task = await claim_one(engine, types=(type_, "d" * 255), per_type_limits={type_: 1})
            assert (found.id, task.id, task.type) == (task_id(number), task_id(number), type_)
            assert await engine.apply([complete(task)]) == [True]
            assert len(await engine.history(task.id)) == 3
        counted = {lane.type: number for lane, number in (await engine.count()).items() if number}
        assert counted == dict.fromkeys(types, 1)

    async def test_a_task_with_a_run_at_is_due_at_that_instant(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(run_at=clock.now + 7.25, delay=99)])
        task = await stored(engine)
        assert (task.available_at, task.run_at) == (clock.now + 7.25,) * 2
        assert await claim(engine) == []
        clock.advance(7.25)
        assert len(await claim(engine)) == 1

    async def test_run_at_is_kept_through_retries(self, engine: Engine, clock: ManualClock) -> None:
        asked = clock.now + 7.25
        await engine.add([new(0, run_at=asked), new(1)])
        assert (await stored(engine, 1)).run_at is None
        clock.advance(10)
        await engine.apply([after_error(task, "boom", random=0.5) for task in await claim(engine)])
        first, second = [await stored(engine, number) for number in (0, 1)]
        assert (first.run_at, second.run_at) == (asked, None)
        assert first.available_at > clock.now
        clock.advance(10)
        await engine.apply([complete(task) for task in await claim(engine)])
        assert (await stored(engine)).run_at == asked

    async def test_a_key_creates_another_task_once_its_window_is_over_and_its_task_has_finished(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 100.0}
        await engine.add([new(payload=b"1", **keyed)])
        clock.advance(100)
        assert await engine.add([new(payload=b"2", next_id=task_id(2), **keyed)]) == [(task_id(0), False)]
        await engine.apply([complete(await claim_one(engine), b"done")])
        clock.advance(1)
        assert await engine.add([new(payload=b"3", next_id=task_id(3), **keyed), new(9)]) == [
            (task_id(3), True),
            (task_id(9), True),
        ]
        first, second = await stored(engine), await stored(engine, 3)
        assert (first.payload, first.result, first.status) == (b"1", b"done", Status.COMPLETED)
        assert (second.payload, second.status, second.attempt, second.version) == (b"3", Status.PENDING, 0, 1)
        assert (second.result, second.completed_at, second.lease_id) == (None, None, None)
        assert len(await engine.history(task_id(0))) == 3 and len(await engine.history(task_id(3))) == 1
        for again in (3, 4):  # a repeat after a lost response, and a new submission
            assert await engine.add([new(payload=b"3", next_id=task_id(again), **keyed)]) == [(task_id(3), False)]
        assert [task.payload for task in await claim(engine, limit=1)] == [b"3"]

    async def test_the_last_task_under_a_key_holds_it_even_if_the_first_is_deleted(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 100.0}

        async def submit(number: int) -> tuple[str, bool]:
            ((last, is_new),) = await engine.add([new(next_id=task_id(number), **keyed)])
            return last, is_new

        assert await submit(1) == (task_id(0), True)
        for number in (2, 3):
            await engine.apply([complete(await claim_one(engine))])
            clock.advance(100)
            assert await submit(number) == (task_id(number), True)
        assert await engine.delete([task_id(0), task_id(2)]) == [True, True]
        assert await submit(4) == (task_id(3), False)
        await engine.apply([complete(await claim_one(engine))])
        clock.advance(100)
        assert await submit(5) == (task_id(5), True)
        await engine.apply([complete(await claim_one(engine))])
        assert await engine.delete([task_id(5)]) == [True]
        last, is_new = await submit(6)
        assert is_new and (await submit(7)) == (last, False)
        assert (await engine.get([task_id(3)]))[0] is not None

    async def test_concurrent_submissions_after_the_window_create_one_task(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 100.0}
        await engine.add([new(**keyed)])
        await engine.apply([complete(await claim_one(engine))])
        clock.advance(100)
        answers = await asyncio.gather(*(engine.add([new(next_id=task_id(n), **keyed)]) for n in range(1, 9)))
        assert sorted(added.new for (added,) in answers) == [False] * 7 + [True]
        (running,) = await claim(engine)
        assert running.id != task_id(0) and {added.id for (added,) in answers} == {running.id}

    async def test_a_submission_repeated_after_its_window_creates_no_second_task(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 10.0}
        await engine.add([new(**keyed)])
        for number in (1, 1, 2, 2):
            await engine.apply([complete(task) for task in await claim(engine)])
            clock.advance(10)
            answer = await engine.add([new(payload=b"%d" % number, next_id=task_id(number), **keyed)])
            assert answer[0].id == task_id(number)
        assert await claim(engine) == []
        assert sum((await engine.count()).values()) == 3
        assert [(await stored(engine, number)).payload for number in (1, 2)] == [b"1", b"2"]
        assert len(await engine.history(task_id(2))) == 3

    async def test_a_replayed_task_runs_next_to_the_later_task_under_its_key(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 10.0}
        await engine.add([new(payload=b"1", **keyed)])
        await engine.apply([cancel(task_id(0))])
        clock.advance(10)
        await engine.add([new(payload=b"2", next_id=task_id(1), **keyed)])
        assert await engine.apply([replay(task_id(0))]) == [True]
        assert await engine.add([new(next_id=task_id(2), **keyed)]) == [(task_id(1), False)]
        clock.advance(1)
        assert {task.payload for task in await claim(engine)} == {b"1", b"2"}


class UniquenessContract:
    async def test_a_key_that_is_unique_until_the_start_is_free_once_the_task_runs(self, engine: Engine) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "unique:k", "window": 0.0, "until_started": True}
        assert await engine.add([new(1, next_id=task_id(11), **keyed)]) == [Added(task_id(1), new=True)]
        assert await engine.add([new(1, next_id=task_id(12), **keyed)]) == [Added(task_id(1), new=False)]
        first = await claim_one(engine)
        assert await engine.add([new(1, next_id=task_id(13), **keyed)]) == [Added(task_id(13), new=True)]
        assert await engine.add([new(1, next_id=task_id(14), **keyed)]) == [Added(task_id(13), new=False)]
        await engine.apply([complete(first)])
        assert await engine.add([new(1, next_id=task_id(15), **keyed)]) == [Added(task_id(13), new=False)]
        second = await claim_one(engine)
        assert (second.id, second.idempotency_key) == (task_id(13), "unique:k")
        assert await engine.add([new(1, next_id=task_id(16), **keyed)]) == [Added(task_id(16), new=True)]

    async def test_a_task_that_waits_again_keeps_its_key(self, engine: Engine) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "unique:k", "window": 0.0, "until_started": True}
        await engine.add([new(1, next_id=task_id(11), **keyed)])
        await engine.apply([after_error(await claim_one(engine), "boom", random=0.5)])
        assert await engine.add([new(1, next_id=task_id(12), **keyed)]) == [Added(task_id(1), new=False)]

    async def test_a_window_keeps_the_key_after_the_start(self, engine: Engine, clock: ManualClock) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "unique:k", "window": 10.0, "until_started": True}
        await engine.add([new(1, next_id=task_id(11), **keyed)])
        await claim_one(engine)
        assert await engine.add([new(1, next_id=task_id(12), **keyed)]) == [Added(task_id(1), new=False)]
        clock.advance(10)
        assert await engine.add([new(1, next_id=task_id(13), **keyed)]) == [Added(task_id(13), new=True)]

    async def test_a_waiting_task_gets_the_payload_priority_and_time_of_another(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(1, payload=b'{"n":1}', delay=60.0), new(2, priority=5)])
        latest = new(1, payload=b'{"n":2}', priority=0, ageing=3.0)
        assert await engine.apply([amend(task_id(1), latest)]) == [True]
        task = await stored(engine, 1)
        assert (task.payload, task.priority, task.available_at) == (b'{"n":2}', 0, clock.now)
        assert (task.id, task.status, task.attempt) == (task_id(1), Status.PENDING, 0)
        assert [each.id for each in await claim(engine)] == [task_id(1), task_id(2)]

    async def test_replaced_tasks_wait_anew(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(1, delay=60.0)])
        clock.advance(59)
        assert await engine.apply([amend(task_id(1), new(1, delay=60.0, payload=b"2"))]) == [True]
        clock.advance(59)
        assert await claim(engine) == []
        clock.advance(1)
        assert [task.payload for task in await claim(engine)] == [b"2"]

    async def test_a_task_that_runs_or_has_ended_is_not_replaced(self, engine: Engine) -> None:
        await engine.add([new(1, payload=b"1")])
        task = await claim_one(engine)
        assert await engine.apply([amend(task.id, new(1, payload=b"2"))]) == [False]
        await engine.apply([complete(task)])
        assert await engine.apply([amend(task.id, new(1, payload=b"2"))]) == [False]
        assert (await stored(engine, 1)).payload == b"1"
        assert await engine.apply([amend(task_id(9), new(9))]) == [False]

    async def test_a_replaced_task_that_is_claimed_has_the_new_payload(self, engine: Engine) -> None:
        await engine.add([new(1, payload=b"1")])
        await engine.apply([release(await claim_one(engine))])
        await engine.apply([amend(task_id(1), new(1, payload=b"2"))])
        assert (await claim_one(engine)).payload == b"2"
