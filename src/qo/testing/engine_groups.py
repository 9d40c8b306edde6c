"""Contract: tasks with a group, which claims exclude while the group is full, or take only up to a limit."""

import asyncio

from qo.engine import Engine
from qo.model import ClaimRequest, Filter, Status, amend, complete, release, set_priority
from qo.testing.clock import ManualClock
from qo.testing.limit_histories import LimitHistory
from qo.testing.samples import claim, claim_request, new, stored, task_id

_WAIT_LIMIT = 60.0  # seconds after which a call counts as hanging


class GroupContract:
    async def test_a_task_keeps_its_group_apart_from_its_needs(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, group="customer=a%20b", needs=("gpu", "ssd")), new(1)])
        for name, group, needs in ((0, "customer=a%20b", ("gpu", "ssd")), (1, None, ())):
            task = await stored(engine, name)
            assert (task.group, task.needs) == (group, needs)
        capabilities = frozenset({"gpu", "ssd"})
        first = await claim(engine, takes_groups=True, capabilities=capabilities)
        assert [(task.group, task.needs) for task in first] == [("customer=a%20b", ("gpu", "ssd")), (None, ())]
        assert await engine.apply([release(task, 5.0) for task in first]) == [True, True]
        clock.advance(10)
        again = await claim(engine, takes_groups=True, capabilities=capabilities)
        assert [task.group for task in again] == ["customer=a%20b", None]
        assert await engine.apply([complete(task) for task in again]) == [True, True]
        (done,) = await engine.find(Filter(statuses=(Status.COMPLETED,), types=("t",)), limit=1)
        assert done.group in {"customer=a%20b", None}

    async def test_a_worker_that_knows_no_groups_does_not_claim_their_tasks(self, engine: Engine) -> None:
        await engine.add([new(0, group="customer=1"), new(1)])
        assert [task.id for task in await claim(engine)] == [task_id(1)]
        assert [task.id for task in await claim(engine, takes_groups=True)] == [task_id(0)]

    async def test_a_worker_must_have_the_capabilities_that_a_task_with_a_group_needs(self, engine: Engine) -> None:
        await engine.add([new(0, group="customer=1", needs=("gpu",))])
        assert await claim(engine, takes_groups=True) == []
        assert len(await claim(engine, takes_groups=True, capabilities=frozenset({"gpu"}))) == 1

    async def test_a_claim_leaves_out_full_groups_of_a_type(self, engine: Engine) -> None:
        await engine.add([new(n, group="customer=1", priority=0) for n in range(60)])
        await engine.add([new(100, group="customer=2"), new(101, type="other", group="customer=1"), new(102)])
        full = {"t customer=1": 0}
        some = await claim(engine, takes_groups=True, group_limits=full)
        assert {task.id for task in some} == {task_id(n) for n in (100, 101, 102)}
        assert await claim(engine, takes_groups=True, types=("t",), group_limits=full) == []
        assert len(await claim(engine, takes_groups=True, types=("t",))) == 10

    async def test_a_claim_takes_at_most_so_many_tasks_of_a_group(self, engine: Engine) -> None:
        await engine.add([new(n, group="customer=1", priority=0, queue="xy"[n % 2]) for n in range(20)])
        await engine.add([new(100 + n, group="customer=2", priority=(5, 9)[n % 2]) for n in range(6)])
        await engine.add([new(200 + n) for n in range(6)])
        request = {"takes_groups": True, "per_group_limits": {"t": 2}, "types": ("t",)}
        tasks = await claim(engine, **request, limit=20)
        assert [task.group for task in tasks].count("customer=1") == 2
        assert [task.group for task in tasks].count("customer=2") == 2
        assert [task.group for task in tasks].count(None) == 6
        first = [task for task in tasks if task.group == "customer=1"]
        assert [task.id for task in first] == [task_id(0), task_id(1)]
        tasks = await claim(engine, **request, group_limits={"t customer=2": 3}, per_type_limits={"t": 4}, limit=20)
        assert [task.group for task in tasks] == ["customer=1"] * 2 + ["customer=2"] * 2

    async def test_the_limit_of_a_group_holds_in_a_claim_of_many_tasks(self, engine: Engine) -> None:
        for at in range(0, 300, 100):
            await engine.add([new(at + n, group=f"customer={n % 3}") for n in range(100)])
        request = {"takes_groups": True, "group_limits": {"t customer=0": 7}, "limit": 230}
        tasks = await claim(engine, **request)
        if len(tasks) < 100:  # an engine may return less than there is; it must return more the next time
            tasks += await claim(engine, **request | {"group_limits": {"t customer=0": 0}})
        assert [task.group for task in tasks].count("customer=0") <= 7
        assert len(tasks) > 100

    async def test_tasks_of_hundreds_of_groups_are_claimed_in_order(self, engine: Engine, clock: ManualClock) -> None:
        for at in range(0, 300, 100):
            await engine.add([new(at + n, group=f"customer={at + n}") for n in range(100)])
            clock.advance(1)
        full = {f"t customer={n}": 0 for n in range(150)}
        tasks = await claim(engine, takes_groups=True, types=("t",), limit=5, group_limits=full)
        assert [task.id for task in tasks] == [task_id(n) for n in range(150, 155)]
        tasks = await claim(engine, takes_groups=True, limit=5, per_group_limits={"t": 1})
        assert [task.id for task in tasks] == [task_id(n) for n in range(5)]

    async def test_a_task_that_moves_to_another_priority_keeps_its_group(self, engine: Engine) -> None:
        await engine.add([new(0, group="customer=1", priority=9)])
        assert await engine.apply([set_priority(task_id(0), 0)]) == [True]
        assert await claim(engine, takes_groups=True, group_limits={"t customer=1": 0}) == []
        (task,) = await claim(engine, takes_groups=True)
        assert (task.group, task.priority) == ("customer=1", 0)

    async def test_a_task_that_goes_back_with_a_group_moves_to_its_lane_and_keeps_its_place(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        capabilities = frozenset({"gpu"})
        await engine.add([new(0), new(1, needs=("gpu",)), new(2, group="customer=7", needs=("gpu",))])
        before = {name: await stored(engine, name) for name in range(3)}
        clock.advance(1)
        await engine.add([new(3, group="customer=1")])
        tasks = await claim(engine, takes_groups=True, capabilities=capabilities, limit=3)
        assert await engine.apply([release(task, None, group="customer=1") for task in tasks]) == [True] * 3
        for name, needs in ((0, ()), (1, ("gpu",)), (2, ("gpu",))):
            task = await stored(engine, name)
            assert (task.status, task.group, task.needs) == (Status.PENDING, "customer=1", needs)
            assert (task.rank, task.available_at) == (before[name].rank, before[name].available_at)
        everything = {"takes_groups": True, "capabilities": capabilities}
        assert await claim(engine, **everything, group_limits={"t customer=1": 0}) == []
        counts = await engine.count()
        assert sum(number for key, number in counts.items() if key.status is Status.PENDING) == 4
        assert sum(number for key, number in counts.items() if key.status is not Status.PENDING) == 0
        tasks = await claim(engine, **everything, limit=10)
        assert [task.id for task in tasks] == [task_id(n) for n in range(4)]
        assert {task.group for task in tasks} == {"customer=1"}
        assert await engine.apply([complete(task) for task in tasks]) == [True] * 4

    async def test_a_replaced_task_is_in_the_group_of_its_new_payload(self, engine: Engine) -> None:
        await engine.add([new(0, group="customer=1", needs=("gpu",), priority=9)])
        other = new(0, group="customer=2", needs=("gpu",), payload=b'{"customer":2}')
        assert await engine.apply([amend(task_id(0), other)]) == [True]
        everything = {"takes_groups": True, "capabilities": frozenset({"gpu"})}
        assert await claim(engine, **everything, group_limits={"t customer=2": 0}) == []
        (task,) = await claim(engine, **everything, group_limits={"t customer=1": 0})
        assert (task.group, task.needs, task.payload) == ("customer=2", ("gpu",), b'{"customer":2}')

    async def test_a_group_comes_only_with_a_change_whose_guard_holds(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0)])
        (task,) = await claim(engine)
        assert await engine.apply([release(task)]) == [True]
        clock.advance(1)
        (other,) = await claim(engine)
        assert await engine.apply([release(task, None, group="customer=1")]) == [False]
        assert (await stored(engine, 0)).group is None
        assert await engine.apply([complete(other)]) == [True]

    async def test_waiting_does_not_end_for_the_tasks_of_a_full_group(self, engine: Engine) -> None:
        await engine.add([new(n, group="customer=1") for n in range(3)])
        full = claim_request(takes_groups=True, types=("t",), group_limits={"t customer=1": 0})
        assert await engine.claim(full) == []
        # A late notification of the submission may end a wait.
        assert any([await _waits(engine, full) for _ in range(3)])
        async with asyncio.timeout(_WAIT_LIMIT):
            await engine.wait(claim_request(takes_groups=True, types=("t",)), 30.0)

    async def test_a_wait_for_groups_does_not_use_an_empty_claim_without_them(self, engine: Engine) -> None:
        await engine.add([new(group="customer=1")])
        assert await claim(engine, types=("t",)) == []
        async with asyncio.timeout(_WAIT_LIMIT):
            await engine.wait(claim_request(takes_groups=True, types=("t",)), 600.0)
        assert await claim(engine, takes_groups=True, types=("t",), group_limits={"t customer=1": 0}) == []
        async with asyncio.timeout(_WAIT_LIMIT):
            await engine.wait(claim_request(takes_groups=True, types=("t",)), 600.0)


class FleetLimitContract:
    async def test_a_random_history_of_workers_keeps_to_the_limits(self, engine: Engine, clock: ManualClock) -> None:
        await LimitHistory(engine, clock, seed=1).run(steps=40)


async def _waits(engine: Engine, request: ClaimRequest) -> bool:
    waiting = asyncio.create_task(engine.wait(request, 0.3))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    await asyncio.wait_for(waiting, _WAIT_LIMIT)
    return not done
