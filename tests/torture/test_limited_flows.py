"""Limits together with workflows, replays, cancellations, schedules, limits set at run time and `dequeue`.

Meanwhile workers are killed with -9 and frozen. What runs at a time is measured by a file to which handlers write.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import qo
from qo.client import Client, connect
from qo.errors import LeaseLost, WrongStatus
from qo.fleet_limits.rules import KEY
from qo.model import UNFINISHED, Filter, Limit, Status, WorkflowStatus, cancel
from tests.conditions import delay, until
from tests.engines.killing_workers import Worker, children, end, start_qo
from tests.torture.limited_flow_app import CHARGES, CUSTOMERS, STEPS, app, charge, flow, work
from tests.torture.test_limits import IS_LONG, most_at_once, store

__all__ = ["store"]  # a fixture

_MONITOR = ("--check-interval", "0.2", "--expiry-grace", "0.1")
_QUICK = ("--lease", "4", "--heartbeat", "0.2", "--poll", "0.1")
_MAX_FREEZE = 1.0  # seconds: a worker that is frozen for longer than its lease may run on for a moment
_FLOW_SIZE = 6


class _Fleet:
    """Workers with monitors, or workers and a monitor, and a client to whose tasks everything happens."""

    def __init__(self, client: Client, url: str, folder: Path, dice: random.Random) -> None:
        self.client, self._url, self._folder, self._dice = client, url, folder, dice
        self.log = folder / "lines.txt"
        self.flows: list[str] = []
        self._monitor = start_qo(url, folder, "monitor", *_MONITOR) if dice.random() < 0.5 else None
        self.workers = [self._start() for _ in range(3 if IS_LONG else 2)]

    @property
    def processes(self) -> list[Worker]:
        return self.workers if self._monitor is None else [*self.workers, self._monitor]

    def _start(self) -> Worker:
        monitor = _MONITOR if self._monitor is None else ("--no-monitor",)
        words = ("worker", "tests.torture.limited_flow_app:app", *_QUICK, *monitor, "--concurrency", "6")
        return start_qo(self._url, self._folder, *words, FLOW_LOG=str(self.log))

    async def submit(self) -> None:
        number = self._dice.randint(5, 20)
        await self.client.submit_many([charge.describe(self._dice.randrange(CUSTOMERS)) for _ in range(number)])
        self.flows.append((await self.client.workflows.submit("limited", flow(_FLOW_SIZE).planned)).graph.id)

    async def act(self) -> None:
        actions: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.kill, self._freeze, self._cancel, self._replay, self._limit,
        )  # fmt: skip
        await self._dice.choice(actions)()

    async def kill(self) -> None:
        doomed = self.workers.pop(0)
        pids = (doomed.pid, *children(doomed.pid))
        await asyncio.to_thread(end, doomed, signal.SIGKILL)
        for pid in pids:
            self._write("killed", pid)
        self.workers.append(self._start())

    async def _freeze(self) -> None:
        frozen = self._dice.choice(self.workers)
        pids = (frozen.pid, *children(frozen.pid))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await delay(self._dice.uniform(0.0, _MAX_FREEZE))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    async def _cancel(self) -> None:
        # The slot of a cancelled task whose worker was killed is free only after 90 seconds.
        statuses = tuple(UNFINISHED) if IS_LONG else (Status.PENDING,)
        tasks = await self.client.engine.find(Filter(statuses=statuses), limit=100)
        chosen = self._dice.sample(tasks, min(3, len(tasks)))
        await self.client.apply([cancel(task.id) for task in chosen])

    async def _replay(self) -> None:
        start = self._dice.choice(((), (0,), (3,), (2 * _FLOW_SIZE,)))
        with suppress(WrongStatus):
            await self.client.workflows.replay(self._dice.choice(self.flows), start)

    async def _limit(self) -> None:
        limit = self._dice.choice((Limit(concurrency=1), None))
        await self.client.controls.limit_fleet(f"{KEY}customer=0", limit)

    def _write(self, *words: object) -> None:
        with self.log.open("ab", buffering=0) as file:
            file.write((" ".join(map(str, words)) + "\n").encode())

    async def are_all_done(self) -> bool:
        return not await self.client.engine.find(Filter(statuses=tuple(UNFINISHED)), limit=1)


async def _consume(client: Client) -> None:
    """Until cancelled."""
    while True:
        for task in await client.dequeue("charge", batch_size=3, wait=0.5):
            await work(f"charge-{qo.decode(task.payload)['customer']}", 0.05)
            with suppress(LeaseLost):  # it was cancelled
                await client.ack(task)


async def test_limits_hold_whatever_happens_to_tasks_and_workflows(
    store: str, tmp_path: Path, scale: int, seed: int, monkeypatch: Any
) -> None:
    dice, rounds = random.Random(seed), 10 * scale if IS_LONG else 2
    monkeypatch.setattr("tests.torture.limited_flow_app.LOG", tmp_path / "lines.txt")  # of this process
    async with connect(store) as client, connect(store) as other:
        fleet = _Fleet(client, store, tmp_path, dice)
        consuming: asyncio.Task[None] | None = None
        try:
            await client.schedules.add(
                "often", task="charge", every=1.0, kwargs={"customer": 1}, options={"fair_by": "customer"}
            )
            await fleet.submit()
            await until(fleet.log.exists)  # the workers have declared the limits, which this process has not
            consuming = asyncio.create_task(_consume(other))
            for _ in range(rounds):
                await fleet.submit()
                await delay(dice.uniform(0.0, 0.5))
                await fleet.act()
            await fleet.kill()
            await client.schedules.remove("often")
            await until(fleet.are_all_done)
            ended = {await client.workflows.status(id) for id in fleet.flows}
            assert WorkflowStatus.RUNNING not in ended and WorkflowStatus.COMPLETED in ended
        finally:
            for process in fleet.processes:
                await asyncio.to_thread(end, process, signal.SIGKILL)
            if consuming is not None:
                consuming.cancel()
                with suppress(asyncio.CancelledError):
                    await consuming
    _check(fleet.log.read_text().splitlines())


def _check(lines: list[str]) -> None:
    allowed = {"charge": CHARGES, "step": STEPS}
    for key, most in most_at_once(lines).items():
        assert most <= allowed[key.partition("-")[0]], f"{most} of {key} ran at once"


def test_the_app_has_the_limits_that_are_checked() -> None:
    limits = {handler.type: handler.options.limit for handler in app.registry}
    assert [limits[name].concurrency for name in ("charge", "step")] == [CHARGES, STEPS]  # type: ignore[union-attr]
