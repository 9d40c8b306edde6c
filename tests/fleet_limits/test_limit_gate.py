"""What a process asks of the store under limits of the fleet, and which of the claimed tasks it may start."""

import asyncio
import time

import pytest

from qo.client import Client
from qo.clock import boot_clock, system_clock
from qo.engines.memory import MemoryEngine
from qo.fleet_limits.limit_gate import LimitGate, RefusedStart
from qo.fleet_limits.limit_state import LimitState, tolerance
from qo.fleet_limits.rules import LimitRules, state_note
from qo.model import Limit, Note, Task, complete
from qo.notes import read
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new
from tests.conditions import forever, until

_ONE = Limit(concurrency=1)


def _gate(client: Client, rules: LimitRules) -> LimitGate:
    gate = LimitGate(client.engine, clock=boot_clock, store_time=system_clock)
    gate.set_rules(rules)
    return gate


async def _claimed(client: Client, groups: list[str | None], **fields: object) -> list[Task]:
    await client.engine.add([new(n, group=group, **fields) for n, group in enumerate(groups)])
    return await claim(client.engine, limit=len(groups), takes_groups=True, lease=600.0)


@pytest.mark.parametrize("declared", [{}, {"t": Limit(concurrency=50)}, {"t": Limit(concurrency=5, key="tenant")}])
@pytest.mark.parametrize("live", [{}, {"type:t": Limit()}])
async def test_claims_leave_out_a_full_value_whatever_the_limit_of_its_type_is(
    client: Client, declared: dict[str, Limit], live: dict[str, Limit]
) -> None:
    gate = _gate(client, LimitRules(declared, {**live, "key:tenant=a": _ONE}))
    first, second = await _claimed(client, ["tenant=a", "tenant=a"])
    assert (await gate.admit([first, second])).keys() == {first.id}
    request = gate.narrow(claim_request(types=("t",)))
    assert request is not None
    assert (request.group_limits["t tenant=a"], gate.is_blocking) == (0, True)
    assert gate.refusal(second) == RefusedStart()  # the next claim leaves it out, so it keeps its place


async def test_tasks_of_more_full_groups_than_a_claim_can_leave_out_wait(client: Client) -> None:
    gate = _gate(client, LimitRules({"t": Limit(concurrency=1, key="c")}, {}))
    groups: list[str | None] = [f"c={number}" for number in range(1500)]
    *tasks, late = await _claimed(client, [*groups, "c=1400"])
    assert late.id not in await gate.admit([*tasks, late])
    gate.ended([tasks[0]])
    began = time.process_time()
    request = gate.narrow(claim_request(types=("t",)))
    assert time.process_time() - began < 1.0  # it looks at each group once
    assert request is not None
    assert len(request.group_limits) == 1000
    assert request.group_limits["t c=1400"] == 0  # its tasks were in the way
    assert 0 < (gate.refusal(late).delay or 0.0) <= 2


class _SlowWrites(MemoryEngine):
    """Its clock goes on with each write of a note."""

    def __init__(self) -> None:
        self.time = ManualClock()
        super().__init__(clock=self.time)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        self.time.advance(0.3)
        return await super().write_note(name, data, expected=expected)


async def test_a_start_keeps_to_its_instant_although_a_second_limit_is_slow() -> None:
    engine = _SlowWrites()
    async with Client(engine) as client:
        gate = LimitGate(engine, clock=engine.time, store_time=engine.time)
        limit = Limit(rate=10)
        gate.set_rules(LimitRules({"t": limit}, {"queue:q": limit}))
        tasks = await _claimed(client, [None])
        assert await gate.admit(tasks) == {}  # the first write shows how slow they are
        before = engine.time()
        (admission,) = (await gate.admit(tasks)).values()
        assert engine.time() >= before + 0.6
        assert 0 <= gate.seconds_until(admission.start_at) <= 1.0
        assert admission.start_by == pytest.approx(admission.start_at + tolerance(limit))


class _SlowReads(_SlowWrites):
    async def read_note(self, name: str) -> Note | None:
        self.time.advance(0.1)
        return await super().read_note(name)


async def test_a_slow_store_is_polled_less_often_for_free_slots() -> None:
    engine = _SlowReads()
    async with Client(engine) as client:
        gate = LimitGate(engine, clock=engine.time, store_time=engine.time)
        gate.set_rules(LimitRules({"t": _ONE}, {}))
        assert len(await gate.admit(await _claimed(client, [None]))) == 1
        assert gate.narrow(claim_request(types=("t",))) is None
        assert gate.next_request_in(60.0) == pytest.approx(2.0)


async def test_tasks_under_two_rates_get_an_instant_that_suits_both(client: Client) -> None:
    clock = ManualClock()
    gate = LimitGate(client.engine, clock=clock, store_time=clock)
    gate.set_rules(LimitRules({"t": Limit(rate=10)}, {"queue:q": Limit(rate=25)}))
    tasks = await _claimed(client, [None] * 40)
    starts = []
    while tasks and clock() < 1_700_000_000 + 3:
        admitted = await gate.admit(tasks[:2])
        starts += [admission.start_at for admission in admitted.values()]
        assert all(admission.start_at <= admission.start_by for admission in admitted.values())
        tasks = [task for task in tasks if task.id not in admitted]
        clock.advance(0.05)
    assert len(starts) >= 25  # of 10 a second, in three seconds


async def test_a_task_without_a_slot_of_one_limit_gives_back_that_of_the_other(client: Client) -> None:
    gate = _gate(client, LimitRules({"t": Limit(concurrency=5)}, {"queue:q": _ONE}))
    first, second = await _claimed(client, [None, None])
    assert (await gate.admit([first, second])).keys() == {first.id}

    async def holds_one() -> bool:
        state = await read(client.engine, state_note("type:t"), LimitState)
        return state.holders[""].keys() == {first.id}

    await until(holds_one)
    await client.engine.apply([complete(first)])
    gate.ended([first])
    await gate.close()


async def test_a_task_that_was_submitted_without_its_group_counts_with_it(client: Client) -> None:
    gate = _gate(client, LimitRules({"t": Limit(concurrency=1, key="customer_id")}, {}))
    payload = b'{"customer_id":42}'
    first, second = await _claimed(client, ["customer_id=42", None], payload=payload)
    assert (await gate.admit([first])).keys() == {first.id}
    assert await gate.admit([second]) == {}
    assert gate.refusal(second) == RefusedStart(group="customer_id=42")  # so that the next claims can leave it out


@pytest.mark.parametrize("payload", [b"{}", b"[1]", b"\x00raw", b'{"customer_id":7}'])
async def test_only_tasks_without_the_argument_share_a_group(client: Client, payload: bytes) -> None:
    gate = _gate(client, LimitRules({"t": Limit(concurrency=1, key="customer_id")}, {}))
    tasks = await _claimed(client, [None, None], payload=payload)
    assert len(await gate.admit(tasks)) == 1


async def test_the_notes_of_a_slow_rate_stay_small_with_many_groups(client: Client) -> None:
    limit = Limit(concurrency=1, rate=1, per=3600, key="c")
    gate = _gate(client, LimitRules({"t": limit}, {}))
    tasks = await _claimed(client, [f"c={number}" for number in range(1500)])
    assert len(await gate.admit(tasks)) == 1500
    for task in tasks:
        await client.engine.apply([complete(task)])
    gate.ended(tasks)
    await gate.close()
    sizes = {note.name: len(note.data) for note in await client.engine.notes("slots/")}
    assert len(sizes) == 65  # the slots, and 64 parts of the starts
    assert sizes.pop(state_note("type:t")) < 100  # idle groups have left
    assert max(sizes.values()) < 3000


async def test_a_slow_rate_holds_beside_slots_in_another_note(client: Client) -> None:
    limit = Limit(concurrency=5, rate=1, per=3600, key="c")
    rules = LimitRules({"t": limit}, {})
    one, two = _gate(client, rules), _gate(client, rules)
    first, second, third, other = await _claimed(client, ["c=1", "c=1", "c=1", "c=2"])
    assert (await one.admit([first, second, other])).keys() == {first.id, other.id}
    assert await two.admit([third]) == {}
    request = two.narrow(claim_request(types=("t",)))
    assert request is not None
    assert request.group_limits["t c=1"] == 0
    await one.close()
    await two.close()
    state = await read(client.engine, state_note("type:t"), LimitState)
    assert {group: [*holders] for group, holders in state.holders.items()} == {"c=1": [first.id], "c=2": [other.id]}


async def test_a_limit_for_a_value_holds_for_tasks_whose_turns_depend_on_another_argument(client: Client) -> None:
    gate = _gate(client, LimitRules({}, {"key:customer_id=42": _ONE}))
    payload = b'{"customer_id":42,"tenant":"a"}'
    first, second = await _claimed(client, ["tenant=a", "tenant=a"], payload=payload)
    assert (await gate.admit([first, second])).keys() == {first.id}
    refusal = gate.refusal(second)
    assert refusal.group is None  # it keeps the group of its turns
    assert 0 < (refusal.delay or 0.0) <= 2  # claims cannot leave it out
    assert gate.has_delayed


async def test_a_delay_counts_from_the_write_of_the_release(client: Client) -> None:
    clock = ManualClock()
    gate = LimitGate(client.engine, clock=clock, store_time=lambda: 0.0)
    gate.set_rules(LimitRules({"t": Limit(concurrency=1, key="customer_id")}, {}))
    first, second = await _claimed(client, [None, None], payload=b"raw")
    assert (await gate.admit([first, second])).keys() == {first.id}
    gate.refusal(second)
    clock.advance(60)  # the release is not stored yet
    assert gate.has_delayed
    gate.ended([second])
    assert gate.has_delayed
    clock.advance(2)
    assert not gate.has_delayed
    await gate.close()


async def test_tasks_in_groups_of_an_earlier_key_move_to_those_of_the_new_key(client: Client) -> None:
    gate = _gate(client, LimitRules({"t": Limit(concurrency=1, key="customer_id")}, {}))
    payload = b'{"customer_id":42,"tenant":"a"}'
    first, second = await _claimed(client, ["tenant=a", "tenant=b"], payload=payload)
    assert len(await gate.admit([first, second])) == 1
    refusal = gate.refusal(second)
    assert refusal.group == "customer_id=42"
    assert refusal.delay  # code with the earlier key would move it back at once


class _Hanging(MemoryEngine):
    """Does not answer one write of the note of a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.asked = asyncio.Event()

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if self.hangs:
            self.hangs = False
            self.asked.set()
            await forever()
        return await super().write_note(name, data, expected=expected)


async def test_a_process_that_ends_while_it_frees_slots_frees_them() -> None:
    engine = _Hanging()
    async with Client(engine) as client:
        gate = _gate(client, LimitRules({"t": _ONE}, {}))
        (task,) = await _claimed(client, [None])
        assert await gate.admit([task])
        await engine.apply([complete(task)])
        engine.hangs = True
        gate.ended([task])
        await engine.asked.wait()
        await gate.close()
        assert (await read(engine, state_note("type:t"), LimitState)).holders == {}
