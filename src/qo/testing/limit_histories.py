"""Random histories of workers under fleet limits.

Running tasks are counted here, independently of the notes of the limits.

Several processes claim, settle and lose tasks on one store, die with and without a supervisor, and come back. A task
counts as running from its admission to the end of its handler, regardless of the store.
"""

import random
from collections import Counter

from qo.clock import Clock
from qo.engine import Engine
from qo.fleet_limits.known_limit import repair_limits
from qo.fleet_limits.limit_gate import LimitGate
from qo.fleet_limits.limit_state import LimitState, tolerance
from qo.fleet_limits.rules import LimitRules, state_note
from qo.model import (
    FINISHED,
    Filter,
    Limit,
    NewTask,
    Task,
    after_error,
    cancel,
    complete,
    expire,
    release,
    renew,
    with_group,
)
from qo.notes import read_or
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_request

_LEASE, _GRACE = 30.0, 5.0  # seconds
_CUSTOMERS = 3
_DEATHS = 0.05  # of the claims: the worker dies before, or after, it has slots
LIMIT = Limit(concurrency=2, key="customer")
QUEUE_LIMIT = Limit(rate=4, per=10.0)


class _LimitedProcess:
    """A worker: its gate, and the attempts whose handlers run in it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.gate = LimitGate(engine, clock=clock, store_time=clock)
        self.gate.set_rules(LimitRules({"t": LIMIT}, {"queue:q": QUEUE_LIMIT}))
        self.runs: dict[str, Task] = {}


class LimitHistory:
    def __init__(self, engine: Engine, clock: ManualClock, seed: int, *, processes: int = 3) -> None:
        self._engine, self._clock = engine, clock
        self._dice = random.Random(seed)  # noqa: S311 - repeatable random numbers
        self._processes = [_LimitedProcess(engine, clock) for _ in range(processes)]
        self._ids: list[str] = []
        self._gates = [process.gate for process in self._processes]
        self._starts: list[float] = []

    async def run(self, *, steps: int) -> None:
        """Random steps, then everything is worked off. Raises AssertionError."""
        actions = [self._submit, self._work, self._work, self._work, self._end, self._end, self._end, self._pass_time]
        rare = [self._cancel, self._die, self._report_crash, self._repair, self._expire]
        for _ in range(steps):
            await self._dice.choice(actions if self._dice.random() < 0.8 else rare)()
            await self._check()
        await self._work_off()
        for gate in self._gates:
            await gate.close()

    async def _submit(self) -> None:
        """Some tasks are submitted without their group, as before the limit had a key."""
        tasks = []
        for _ in range(self._dice.randrange(1, 6)):
            customer = self._dice.randrange(_CUSTOMERS)
            group = f"customer={customer}" if self._dice.random() < 0.7 else None
            payload = b'{"customer":%d}' % customer
            self._ids.append(f"{self._dice.getrandbits(32):08x}-{len(self._ids):04x}-8000-8000-000000000000")
            tasks.append(
                NewTask(
                    id=self._ids[-1],
                    queue="q" if self._dice.random() < 0.5 else "other",
                    type="t",
                    payload=payload,
                    needs=with_group((), group),
                    max_retries=1000,
                )
            )
        await self._engine.add(tasks)

    async def _work(self) -> None:
        """Claim and start tasks, or die in between."""
        process = self._dice.choice(self._processes)
        gate = process.gate
        await gate.refresh(("t",))
        request = claim_request(types=("t",), limit=self._dice.randrange(1, 8), lease=_LEASE, is_prefetch=True)
        narrowed = gate.narrow(request)
        if narrowed is None:
            return
        tasks = await self._engine.claim(narrowed)
        dies_before, dies_after = self._dice.random() < _DEATHS, self._dice.random() < _DEATHS
        admitted = {} if dies_before else await gate.admit(tasks)
        self._starts += [admission.start_at for admission in admitted.values() if admission.is_timed]
        if dies_before or dies_after:
            await self._restart(process)
            return
        back = [task for task in tasks if task.id not in admitted]
        await self._engine.apply([gate.refusal(task).release(task) for task in back])
        gate.ended(back)
        process.runs |= {task.id: task for task in tasks if task.id in admitted}

    async def _end(self) -> None:
        """Settle a run; sometimes its worker dies before the slot is free."""
        process = self._dice.choice(self._processes)
        if not process.runs:
            return
        task = process.runs.pop(self._dice.choice(sorted(process.runs)))
        outcome = self._dice.random()
        change = complete(task)
        if outcome < 0.2:
            change = after_error(task, "no", random=0.0, after=0.0)
        elif outcome < 0.3:
            change = release(task, None)
        await self._engine.apply([change])
        if self._dice.random() < 0.1:
            await self._restart(process)
            return
        process.gate.ended([task])
        if self._dice.random() < 0.7:
            await process.gate.release()

    async def _pass_time(self) -> None:
        await self._advance(self._dice.choice([0.1, 0.5, 2.0]))

    async def _advance(self, seconds: float) -> None:
        """Let time pass for live workers, which renew their leases and stop what they have lost."""
        self._clock.advance(seconds)
        for process in self._processes:
            runs = list(process.runs.values())
            answers = await self._engine.apply([renew(task, _LEASE) for task in runs]) if runs else []
            for task, is_held in zip(runs, answers, strict=True):
                if not is_held:
                    del process.runs[task.id]
                    process.gate.ended([task])

    async def _cancel(self) -> None:
        if self._ids:
            await self._engine.apply([cancel(self._dice.choice(self._ids))])

    async def _die(self) -> None:
        await self._restart(self._dice.choice(self._processes))

    async def _restart(self, process: _LimitedProcess) -> None:
        """Its leases stay until they expire, and its slots until another process finds that the attempts have ended."""
        successor = _LimitedProcess(self._engine, self._clock)
        self._processes[self._processes.index(process)] = successor
        self._gates.append(successor.gate)

    async def _report_crash(self) -> None:
        """A supervisor reports the tasks of a dead worker immediately."""
        process = self._dice.choice(self._processes)
        runs = list(process.runs.values())
        await self._restart(process)
        if runs:
            await self._engine.apply([after_error(task, "crash", random=0.0, after=0.0) for task in runs])

    async def _repair(self) -> None:
        await repair_limits(self._engine, self._clock())

    async def _expire(self) -> None:
        for _ in range(6):
            await self._advance(_LEASE / 4)
        expired = await self._engine.find(Filter(expired_for=_GRACE), limit=1000)
        if expired:
            await self._engine.apply([expire(task, grace=_GRACE, random=0.0) for task in expired])

    async def _check(self) -> None:
        running: Counter[str] = Counter()
        for process in self._processes:
            running.update(task.payload.decode() for task in process.runs.values())
        assert all(number <= LIMIT.concurrency for number in running.values()), running
        state = await read_or(self._engine, state_note("type:t"), LimitState, LimitState())
        assert all(len(holders) <= LIMIT.concurrency for holders in state.holders.values()), state
        starts = sorted(self._starts)
        window = QUEUE_LIMIT.per + tolerance(QUEUE_LIMIT)  # a start may be late by the tolerance
        most = int(QUEUE_LIMIT.rate)
        assert all(later - first >= window - 1e-3 for first, later in zip(starts, starts[most:], strict=False))

    async def _work_off(self) -> None:
        """No slot is lost: everything ends."""
        for _ in range(100 + 20 * len(self._ids)):
            await self._work()
            for process in self._processes:
                for task in list(process.runs.values()):
                    await self._engine.apply([complete(task)])
                    process.gate.ended([task])
                process.runs.clear()
                await process.gate.release()
            await self._advance(0.5)
            await self._check()
            if self._dice.random() < 0.1:
                await self._expire()
            left = [task for task in await self._engine.get(self._ids) if task is None or task.status not in FINISHED]
            if not left:
                return
        raise AssertionError(f"{len(left)} tasks never ran, such as {left[0]!r}")
