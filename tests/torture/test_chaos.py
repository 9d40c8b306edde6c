"""Producers, workers and monitors, killed and frozen at random: nothing acknowledged is lost, nothing completes twice.

`tests/engines/test_*_processes.py` kill on every engine. Here some are also frozen, for less or for more than a lease.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest

from qo.engines import open_engine
from tests.conditions import delay, until
from tests.engines import busy_process
from tests.engines.killing import DEADLINE, check, ended, told
from tests.engines.killing_workers import QUICK, Worker, start_qo, until_done
from tests.engines.killing_workers import start as start_worker
from tests.torture.stores import STORES, store_url

SHORT = ("sqlite", "folder-tasks")  # in `make test`, where the other files kill on all engines
ROUNDS = 6
MOST_ROUNDS = 150  # a minute and a half on each engine
ROLES = ("producer", "producer", "producer", "worker", "worker", "monitor")
LEASE = 1.0  # seconds, of a worker (QUICK) and twice that of a producer's own claims
_MONITOR = QUICK[QUICK.index("--check-interval") :]
_PAUSE = 0.05  # seconds a producer holds what it claimed: most freezes meet it with a lease that then runs out


class Actor(NamedTuple):
    role: str
    process: BaseProcess | Worker
    log: Path


@pytest.fixture(params=STORES if os.environ.get("QO_TORTURE") else SHORT)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url(request.param, request, tmp_path) as url:
        yield url


async def test_kills_and_freezes_lose_nothing_and_repeat_nothing(
    store: str, tmp_path: Path, scale: int, seed: int
) -> None:
    stage = Stage(store, tmp_path, random.Random(seed))
    try:
        await stage.play(min(ROUNDS * scale, MOST_ROUNDS))
        await stage.finish()
    finally:
        stage.clear()
    said = told(stage.logs)
    assert len(said.added) >= 3, "no producer was acknowledged anything"
    await check(store, said)


class Stage:
    """Who is at work. What happens to whom, and for how long, comes from the dice alone."""

    def __init__(self, url: str, folder: Path, dice: random.Random) -> None:
        self._url, self._folder, self._dice = url, folder, dice
        self.logs: list[Path] = []
        self._actors = [self._start(role) for role in ROLES]

    def _start(self, role: str) -> Actor:
        log = self._folder / f"{len(self.logs)}.log"
        self.logs.append(log)
        log.touch()
        match role:
            case "producer":
                return Actor(role, busy_process.start(self._url, log, pause=_PAUSE), log)
            case "worker":
                return Actor(role, start_worker(self._url, self._folder, slow=1.5 * LEASE), log)
        return Actor(role, start_qo(self._url, self._folder, "monitor", *_MONITOR), log)

    async def play(self, rounds: int) -> None:
        await self._until_acknowledged()
        for _ in range(rounds):
            await delay(self._dice.uniform(0.0, 0.3))  # any moment
            place = self._dice.randrange(len(self._actors))
            if self._dice.random() < 0.4:
                self._kill(self._actors[place])
                self._actors[place] = self._start(self._actors[place].role)
            else:
                await self._freeze(self._actors[place])

    async def _until_acknowledged(self) -> None:
        producers = [actor for actor in self._actors if actor.role == "producer"]
        await until(lambda: all(actor.log.stat().st_size for actor in producers))

    def _kill(self, actor: Actor) -> None:
        _assert_alive(actor)
        for pid in _family(actor):  # the supervisor of a worker first: it would replace the other
            _send(pid, signal.SIGKILL)
        _wait(actor, -signal.SIGKILL)

    async def _freeze(self, actor: Actor) -> None:
        """Mostly for longer than its lease, so that others take over and it wakes up too late."""
        pids = _family(actor)
        long = self._dice.random() < 0.75
        seconds = LEASE * (self._dice.uniform(1.2, 1.8) if long else self._dice.uniform(0.0, 0.4))
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        try:
            await delay(seconds)
        finally:
            for pid in pids:
                _send(pid, signal.SIGCONT)
        _assert_alive(actor)

    async def finish(self) -> None:
        """The producers leave without a word; workers and monitors do what is left, and end when asked."""
        await self._until_acknowledged()
        for actor in [actor for actor in self._actors if actor.role == "producer"]:
            self._kill(actor)
            self._actors.remove(actor)
        engine = open_engine(self._url)
        await engine.open()
        try:
            await until_done(engine)
        finally:
            await engine.close()
        for actor in list(self._actors):
            _signal(actor, signal.SIGTERM)
            await asyncio.to_thread(_wait, actor, 0, -signal.SIGTERM)  # one that has just started does not listen yet
            self._actors.remove(actor)

    def clear(self) -> None:
        for actor in self._actors:
            for pid in _family(actor):
                _send(pid, signal.SIGKILL)
            _wait(actor)


def _family(actor: Actor) -> list[int]:
    """The process and its children: a worker may run its handlers in one."""
    pid = actor.process.pid or 0
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, children.read_text().split() if children.exists() else [])]


def _signal(actor: Actor, number: signal.Signals) -> None:
    _assert_alive(actor)
    _send(actor.process.pid or 0, number)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # a child that has just ended


def _assert_alive(actor: Actor) -> None:
    process = actor.process
    code = process.exitcode if isinstance(process, BaseProcess) else process.poll()
    assert code is None, f"a {actor.role} ended by itself with {code}"


def _wait(actor: Actor, *expected: int) -> None:
    code = ended(actor.process) if isinstance(actor.process, BaseProcess) else actor.process.wait(DEADLINE)
    assert not expected or code in expected, f"a {actor.role} ended with {code}"
