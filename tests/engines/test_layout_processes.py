"""Real processes on one object, in the layouts that keep everything in one: races from the start, and kills."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Self

import pytest

from qo.engine import Engine
from qo.engines import open_engine
from qo.ids import new_lease_id
from qo.model import Filter, Status
from tests.servers.process import KEYS, S3Place

SCRIPT = Path(__file__).with_name("layout_worker.py")
SOURCE = Path(__file__).parents[2] / "src"
LAYOUTS = ["one", "sqlite"]
RACERS = 16
KILLS = int(os.environ.get("QO_KILLS", "8"))  # `QO_KILLS=200` for the whole proof
ENDLESS = 10**9


class Crowd:
    """Processes on one store, and what they said."""

    def __init__(self, url: str, folder: Path, number: int, rounds: int = ENDLESS) -> None:
        self.url, self._folder, self._number = url, folder, number
        environment = os.environ | {"PYTHONPATH": str(SOURCE)} | KEYS
        command = [sys.executable, str(SCRIPT), url, str(folder), str(number), str(rounds)]
        self._parent = subprocess.Popen(command, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in set(self.told("ready")) - set(self.told("done")):  # if a test failed on its way
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self._parent.wait(60)

    def told(self, word: str, name: str = "*") -> list[str]:
        lines = [line.split() for log in self._folder.glob(f"{name}.log") for line in log.read_text().splitlines()]
        return [line[1] for line in lines if line[0] == word]

    def wait_for(self, number: int, word: str) -> None:
        deadline = time.monotonic() + 120
        while len(self.told(word)) < number:
            assert time.monotonic() < deadline, f"{len(self.told(word))} of {number} are {word}"
            time.sleep(0.005)

    def begin(self, *names: int) -> None:
        self.wait_for(self._number, "ready")
        for name in names:
            (self._folder / f"{name}.go").write_bytes(b"")

    def kill(self, name: int) -> None:
        (pid,) = self.told("ready", str(name))
        assert self.told("done", str(name)) == []
        os.kill(int(pid), signal.SIGKILL)

    def end(self) -> None:
        assert self._parent.wait(120) == 0


async def check(engine: Engine, crowd: Crowd) -> None:
    """Everything that was acknowledged is there, and was finished once."""
    stored = {task.id: task for task in await engine.find(Filter(), limit=100_000)}
    added, completed = crowd.told("added"), crowd.told("completed")
    assert not set(added) - stored.keys(), "an acknowledged task is lost"
    assert [each for each, times in Counter(completed).items() if times > 1] == [], "a task was completed twice"
    assert {stored[each].status for each in completed} <= {Status.COMPLETED}
    for each in completed[:50]:
        assert [event.status for event in await engine.history(each)] == ["pending", "running", "completed"]
    await engine.close()


async def race(url: str, folder: Path, rounds: int) -> None:
    with Crowd(url, folder, RACERS, rounds) as crowd:
        crowd.begin(*range(RACERS))
        crowd.wait_for(RACERS, "done")
        crowd.end()
    assert len(crowd.told("added")) == 2 * RACERS * rounds
    await check(open_engine(url), crowd)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_of_sixteen_processes_on_a_fresh_store_none_loses_a_task(layout: str, tmp_path: Path) -> None:
    await race(f"file://{tmp_path}/store?layout={layout}", tmp_path, rounds=2)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_of_sixteen_processes_on_a_fresh_bucket_none_loses_a_task(
    layout: str, tmp_path: Path, seaweed: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    await race(f"{seaweed.url('plain', new_lease_id())}&layout={layout}", tmp_path, rounds=1)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_nothing_acknowledged_is_lost_when_processes_are_killed(layout: str, tmp_path: Path) -> None:
    """Three processes write without a pause; again and again one is killed and another takes its place."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    dice = random.Random(seed)
    with Crowd(f"file://{tmp_path}/store?layout={layout}", tmp_path, KILLS + 3) as crowd:
        at_work = [0, 1, 2]
        crowd.begin(*at_work)
        for name in range(3, KILLS + 3):
            crowd.wait_for(len(crowd.told("added")) + dice.randint(1, 12), "added")
            crowd.kill(at_work.pop(dice.randrange(3)))
            at_work.append(name)
            crowd.begin(name)
        for name in at_work:
            crowd.kill(name)
        crowd.end()
    await check(open_engine(crowd.url), crowd)
