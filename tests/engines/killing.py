"""Real processes that race on one store or are killed at random, and the checks of the store afterwards."""

import asyncio
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from qo.engine import Engine
from qo.engines import open_engine
from qo.ids import new_token
from qo.model import UNFINISHED, ClaimRequest, Event, Filter, Status, complete, expire
from tests.conditions import delay, wait_until
from tests.engines.busy_process import Opener, start, start_at_once

PROCESSES = 4
DEADLINE = 120.0  # seconds until everything acknowledged must be completed
_PAGE = 500


def kills(number: int) -> int:
    """The number of kills: `number` in `make test`, a multiple of it in `make torture`, or QO_KILLS."""
    return int(os.environ.get("QO_KILLS") or number * int(os.environ.get("QO_TORTURE", "1")))


def new_dice() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    return random.Random(seed)


def until_busy(log: Path, process: BaseProcess) -> None:
    def is_busy() -> bool:
        assert process.is_alive(), "a process ended by itself"
        return log.exists() and log.stat().st_size > 0

    wait_until(is_busy)


def kill(process: BaseProcess) -> None:
    process.kill()
    assert ended(process) == -signal.SIGKILL, "a process ended by itself"


def ended(process: BaseProcess) -> int | None:
    """The exit code of a process that ends by itself."""
    process.join(60)
    code = process.exitcode
    process.close()
    return code


class Told(NamedTuple):
    """The acknowledgements that the processes received."""

    added: set[str]
    completed: list[tuple[str, int]]  # task and attempt


def race(url: str, folder: Path, racers: int, rounds: int) -> Told:
    """Run processes that start at the same moment and end by themselves."""
    logs = [folder / f"{n}.log" for n in range(racers)]
    assert [ended(process) for process in start_at_once(url, logs, rounds)] == [0] * racers
    return told(logs)


async def kill_again_and_again(
    url: str, folder: Path, number: int, *, within: float = 0.06, opener: Opener = open_engine
) -> Told:
    """Run four processes, and repeatedly kill one at a random moment and start another."""
    dice = new_dice()
    logs = [folder / f"{n}.log" for n in range(number + PROCESSES)]
    workers = [(start(url, log, opener=opener), log) for log in logs[:PROCESSES]]
    try:
        for process, log in workers:
            until_busy(log, process)
        for log in logs[PROCESSES:]:
            workers.append((start(url, log, opener=opener), log))  # it starts while the others run
            await delay(dice.uniform(0.0, within))  # any moment
            victim, its_log = workers.pop(dice.randrange(PROCESSES))
            until_busy(its_log, victim)
            kill(victim)
        for process, log in workers:
            until_busy(log, process)
    finally:
        for process, _ in workers:
            kill(process)
    return told(logs)


def told(logs: list[Path]) -> Told:
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    return Told(
        {line[1] for line in lines if line[0] == "added"},
        [(line[1], int(line[2])) for line in lines if line[0] == "completed"],
    )


async def check(url: str, told: Told) -> None:
    """Check that everything acknowledged is stored, complete the rest, and check that each history is complete."""
    engine = open_engine(url)
    await engine.open()
    try:
        done = {task_id for task_id, _ in told.completed}
        assert len(told.completed) == len(done), "a task was completed twice"
        found = {task.id: task for page in _pages(sorted(told.added | done)) for task in await engine.get(page) if task}
        assert not told.added - found.keys(), "an acknowledged task is lost"
        lost = [task_id for task_id in done if found[task_id].status is not Status.COMPLETED]
        assert lost == [], "an acknowledged completion is lost"
        await finish(engine)
        attempts = dict(told.completed)
        for page in _pages(sorted(told.added)):
            for task_id, events in zip(page, await asyncio.gather(*map(engine.history, page)), strict=True):
                _check_history(events)
                assert events[-1].attempt == attempts.get(task_id, events[-1].attempt), "another attempt completed it"
    finally:
        await engine.close()


def _check_history(events: list[Event]) -> None:
    ends = [event for event in events if event.status is Status.COMPLETED]
    assert len(ends) == 1, events
    assert events[-1].status is Status.COMPLETED, events
    claims = [event.attempt for event in events if event.status is Status.RUNNING]
    assert claims == list(range(1, len(claims) + 1)), events


async def finish(engine: Engine) -> None:
    """Complete the remaining tasks as a worker and a monitor would."""
    until = time.monotonic() + DEADLINE
    left = Filter(statuses=tuple(UNFINISHED))
    while await engine.find(left, limit=1):
        assert time.monotonic() < until, f"not done: {await engine.find(left, limit=10)}"
        lost = await engine.find(Filter(expired_for=0.0), limit=_PAGE)
        await engine.apply([expire(task, random=0.5, grace=0.0) for task in lost])
        tasks = await engine.claim(ClaimRequest(worker_id="last", lease_id=new_token(), limit=_PAGE))
        await engine.apply([complete(task) for task in tasks])
        if not lost and not tasks:
            await engine.wait(ClaimRequest(worker_id="last", lease_id=new_token(), limit=1), 0.02)


def _pages(ids: list[str]) -> list[list[str]]:
    return [ids[at : at + _PAGE] for at in range(0, len(ids), _PAGE)]
