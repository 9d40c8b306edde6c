"""Fifty schedulers in five processes, killed and frozen while the clocks change: one task for each fire time."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from qo.client import Client
from qo.clock import Clock, instant, system_clock
from qo.engines.memory import MemoryEngine
from qo.model import Filter
from qo.schedules.fire_times import fires_between
from qo.schedules.schedule import task_id_of
from qo.schedules.schedule_notes import read_schedules
from tests.conditions import delay, until
from tests.torture.schedule_program import SCHEDULERS, engine_of, fast_clock, scheduler
from tests.torture.stores import STORES, store_url

START = instant("2026-10-24T22:10:00Z")  # in Berlin, clocks are set back at 01:00 UTC
SPAN = 5 * 3600.0  # seconds
IS_LONG = bool(os.environ.get("QO_TORTURE"))
DURATION = 30.0 if IS_LONG else 4.0  # seconds in which the span passes
SPEED = SPAN / DURATION
PROCESSES = 5
PROGRAM = Path(__file__).with_name("schedule_program.py")


class SpanClock:
    """Stands still until the span begins: starting a server takes longer than the span on a busy machine."""

    def __init__(self) -> None:
        self._run: Clock = lambda: START

    def begin(self) -> float:
        """Let the time pass. Returns the system's time, for the clocks of other processes."""
        began = system_clock()
        self._run = fast_clock(START, began, SPEED)
        return began

    def __call__(self) -> float:
        return self._run()


@pytest.fixture
def clock() -> SpanClock:
    return SpanClock()


@pytest.fixture(params=STORES if IS_LONG else ("sqlite",))
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: SpanClock) -> Iterator[str]:
    with store_url(request.param, request, tmp_path, clock=clock) as url:
        yield url


def start(url: str, began: float) -> "Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    words = [sys.executable, str(PROGRAM), url, str(START), str(began), str(SPEED)]
    return Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def play(url: str, began: float, dice: random.Random) -> None:
    processes = [start(url, began) for _ in range(PROCESSES)]
    try:
        while system_clock() - began < DURATION:
            await delay(dice.uniform(0.1, 0.5))
            place = dice.randrange(PROCESSES)
            if dice.random() < 0.5:
                processes[place].send_signal(signal.SIGSTOP)
                await delay(dice.uniform(0.0, 0.3))
                processes[place].send_signal(signal.SIGCONT)
            else:
                processes[place].kill()
                processes[place].wait()
                processes[place] = start(url, began)
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def play_in_memory(client: Client, clock: Clock, began: float, dice: random.Random) -> None:
    """The same in one process: schedulers are cancelled anywhere and started again."""
    tasks = [asyncio.create_task(scheduler(client, clock).run()) for _ in range(PROCESSES * SCHEDULERS)]
    try:
        while system_clock() - began < DURATION:
            await delay(dice.uniform(0.0, 0.02))
            place = dice.randrange(len(tasks))
            tasks[place].cancel()
            tasks[place] = asyncio.create_task(scheduler(client, clock).run())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_fire_time_has_one_task_even_if_schedulers_die(store: str, clock: SpanClock, seed: int) -> None:
    async with Client(engine_of(store, clock), clock=clock) as client:
        await check(client, clock, lambda began: play(store, began, random.Random(seed)))


async def test_every_fire_time_has_one_task_in_memory(clock: SpanClock, seed: int) -> None:
    async with Client(MemoryEngine(clock), clock=clock) as client:
        await check(client, clock, lambda began: play_in_memory(client, clock, began, random.Random(seed)))


async def check(client: Client, clock: SpanClock, playing: Callable[[float], Awaitable[None]]) -> None:
    schedules, options = client.schedules, {"task": "report", "catch_up": "all"}
    await schedules.add("fixed", cron="30 2 * * *", timezone="Europe/Berlin", **options)  # type: ignore[arg-type]
    await schedules.add("rhythm", cron="*/10 * * * *", timezone="Europe/Berlin", **options)  # type: ignore[arg-type]
    await schedules.add("interval", every=300, **options)  # type: ignore[arg-type]
    first = {note.schedule.name: note.decided_until for note in await read_schedules(client.engine)}
    await playing(clock.begin())
    last = scheduler(client, clock)

    async def is_done() -> bool:
        await last.check()
        return not any(note.pending for note in await read_schedules(client.engine))

    await until(is_done)
    notes = await read_schedules(client.engine)
    expected = [
        task_id_of(note.schedule.name, at)
        for note in notes
        for at in fires_between(note.schedule, first[note.schedule.name], note.decided_until)
    ]
    assert len(notes) == 3 and len(expected) > 60
    found = [task.id for task in await client.engine.find(Filter(), limit=10_000)]
    assert sorted(found) == sorted(expected)
