"""A monitor frees the slots that crashed workers left, and keeps those of running attempts."""

import msgspec
import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.fleet_limits.known_limit import repair_limits
from qo.fleet_limits.limit_gate import LimitGate
from qo.fleet_limits.limit_state import CANCEL_GRACE, Holder, LimitState
from qo.fleet_limits.rules import LimitRules, state_note
from qo.model import ANY, Limit, cancel, complete, renew
from qo.monitor import Monitor, MonitorSettings
from qo.notes import read
from qo.testing import ManualClock
from qo.testing.samples import claim, new, task_id


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_sweep_removes_the_holders_whose_attempts_are_over(client: Client) -> None:
    await client.engine.add([new(n, group="customer=1") for n in range(4)])
    tasks = await claim(client.engine, takes_groups=True, lease=600.0)
    holders = {task.id: Holder(task.attempt, "w1") for task in tasks}
    holders[task_id(9)] = Holder(1, "gone")  # its task was deleted
    state = LimitState(scope="type:t", holders={"customer=1": holders})
    await client.engine.write_note(state_note("type:t"), msgspec.json.encode(state), expected=ANY)
    done, _, cancelled, _ = tasks
    assert await client.engine.apply([complete(done), cancel(cancelled.id)]) == [True, True]
    await Monitor(client, MonitorSettings(), id="m").check_once()
    left = (await read(client.engine, state_note("type:t"), LimitState)).holders["customer=1"]
    # The handler of a cancelled task may still run for some seconds.
    assert left.keys() == {task.id for task in tasks if task is not done}


async def test_the_slots_of_a_dead_worker_are_removed_with_its_leases(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), clock=clock) as client:
        monitor = Monitor(client, MonitorSettings(grace=0.0), id="m", clock=clock, elapsed=clock)
        await monitor.check()  # the next sweep is in half an hour
        await client.engine.add([new(n, group="customer=1") for n in range(2)])
        dead, alive = await claim(client.engine, takes_groups=True, lease=30.0)
        gate = LimitGate(client.engine, clock=clock, store_time=clock)
        gate.set_rules(LimitRules({"t": Limit(concurrency=2, key="customer")}, {}))
        await gate.admit([dead, alive])
        clock.advance(20.0)
        await monitor.check()
        assert await client.engine.apply([renew(alive, 60.0)]) == [True]
        clock.advance(20.0)
        await monitor.check()
        left = (await read(client.engine, state_note("type:t"), LimitState)).holders["customer=1"]
        assert left.keys() == {alive.id}


async def test_the_slot_of_a_cancelled_task_is_free_after_its_handler_must_have_ended(clock: ManualClock) -> None:
    async with Client(MemoryEngine(clock), clock=clock) as client:
        await client.engine.add([new(0, group="customer=1")])
        (task,) = await claim(client.engine, takes_groups=True, lease=600.0)
        gates = [LimitGate(client.engine, clock=clock, store_time=clock) for _ in range(2)]
        for gate in gates:
            gate.set_rules(LimitRules({"t": Limit(concurrency=1, key="customer")}, {}))
        holder, other = gates
        assert (await holder.admit([task])).keys() == {task.id}
        assert await client.engine.apply([cancel(task.id)]) == [True]
        await client.engine.add([new(1, group="customer=1")])
        (waiting,) = await claim(client.engine, takes_groups=True, lease=600.0)
        clock.advance(CANCEL_GRACE - 1.0)
        assert await other.admit([waiting]) == {}
        assert await repair_limits(client.engine, clock()) == 0
        clock.advance(1.0)
        assert (await other.admit([waiting])).keys() == {waiting.id}
        assert await holder.admit([task]) == {}  # its own slot has gone to the other


async def test_a_sweep_removes_the_starts_of_an_unused_limit(client: Client) -> None:
    now = await client.engine.now()
    states = {
        "rate:1:t": LimitState(scope="rate:1:t", next_at={"customer=1": now - 100, "customer=2": now - 61}),
        "rate:2:t": LimitState(scope="rate:2:t", next_at={"customer=3": now - 100, "customer=4": now + 100}),
    }
    for scope, state in states.items():
        await client.engine.write_note(state_note(scope), msgspec.json.encode(state), expected=ANY)
    await Monitor(client, MonitorSettings(), id="m").check_once()
    assert (await read(client.engine, state_note("rate:1:t"), LimitState)).next_at == {}
    assert len((await read(client.engine, state_note("rate:2:t"), LimitState)).next_at) == 2  # a worker will do it
