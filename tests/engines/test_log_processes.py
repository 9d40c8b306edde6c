"""Processes that write, merge, collect and are killed, and power cuts: nothing acknowledged is lost.

`test_layouts_processes.py` kills processes that compact as rarely as in production. Here every process compacts all the
time, so most kills meet a merge, an image or a deletion. Afterwards an independent reader checks the log.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from qo.bucket import Bucket
from qo.buckets import open_bucket
from qo.buckets.folder.bucket import FolderBucket
from qo.engine import Engine
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.ids import new_token
from qo.model import Filter, Status, complete
from qo.testing.samples import claim, new
from tests.buckets.power_cut import Disk
from tests.conditions import delay
from tests.engines.busy_process import Opener
from tests.engines.compacting_log import (
    cold_log,
    compacting_log,
    open_cold_log,
    open_cold_log_in_shards,
    open_compacting_log,
    shared_cold_log,
    shared_cold_log_in_shards,
    shared_compacting_log,
)
from tests.engines.killing import check, kill_again_and_again, kills, new_dice
from tests.engines.log_checker import check_bucket
from tests.servers.process import KEYS, S3Place

TORTURE = int(os.environ.get("QO_TORTURE", "0"))
KILLS = kills(4)
CUTS = 10 * max(1, TORTURE)
WRITERS, ROUNDS = 3, 8
OPENERS: dict[str, Opener] = {"blocks": open_compacting_log, "segments": open_cold_log}
# How processes use the log, and how a copy of it is read after a power cut.
LOGS: dict[str, tuple[Callable[[Bucket], Engine], Callable[[Bucket], Engine]]] = {
    "blocks": (shared_compacting_log, compacting_log),
    "segments": (shared_cold_log, cold_log),
}
if TORTURE:
    OPENERS["segments in shards"] = open_cold_log_in_shards
    LOGS["segments in shards"] = shared_cold_log_in_shards, ReplicatedLogEngine


@pytest.fixture(params=["folder", "seaweed"] if TORTURE else ["folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return f"file://{tmp_path}/bucket"
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    seaweed: S3Place = request.getfixturevalue("seaweed")
    return seaweed.url("plain", new_token())


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize("log", OPENERS)
async def test_killed_compactors_lose_nothing(place: str, tmp_path: Path, log: str) -> None:
    url = f"{place}{'&' if '?' in place else '?'}layout=log"
    told = await kill_again_and_again(url, tmp_path, KILLS, within=0.2, opener=OPENERS[log])
    assert len(told.added) >= 3 * KILLS
    await check_bucket(open_bucket(place))
    await check(url, told)
    await check_bucket(open_bucket(place))


class Acknowledged:
    """What the writers were told before the power cut."""

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.completed: set[str] = set()

    def copy(self) -> "Acknowledged":
        twin = Acknowledged()
        twin.added, twin.completed = set(self.added), set(self.completed)
        return twin


@pytest.mark.parametrize("log", LOGS)
async def test_acknowledged_tasks_outlast_a_power_cut(tmp_path: Path, log: str) -> None:
    dice, cuts = new_dice(), 0
    while cuts < CUTS:
        cuts += await _cut_again_and_again(tmp_path / str(cuts), dice, *LOGS[log])


async def _cut_again_and_again(
    folder: Path, dice: random.Random, use: Callable[[Bucket], Engine], reopen: Callable[[Bucket], Engine]
) -> int:
    """Cut the power while several processes write and compact. Returns how often."""
    root, copies = folder / "disk" / "bucket", 0
    root.parent.mkdir(parents=True)
    disk, told = Disk(root.parent), Acknowledged()

    async def work(number: int) -> None:
        engine = use(FolderBucket(root))
        for n in range(ROUNDS):
            await _turn(engine, 100 * number + n, told)
        await engine.close()

    with disk.watched():
        working = [asyncio.create_task(work(number)) for number in range(WRITERS)]
        while not all(task.done() for task in working):
            await delay(dice.random() / 10)  # any moment
            copies += 1
            copy = folder / f"copy{copies}"
            known = disk.after_a_cut(copy, dice, told.copy)
            await _check_copy(FolderBucket(copy / root.name), known, reopen)
        await asyncio.gather(*working)
    return copies


async def _turn(engine: Engine, number: int, told: Acknowledged) -> None:
    told.added.update(added.id for added in await engine.add([new(number)]))
    for task in await claim(engine, limit=1):
        if await engine.apply([complete(task)]) == [True]:
            told.completed.add(task.id)


async def _check_copy(bucket: FolderBucket, told: Acknowledged, reopen: Callable[[Bucket], Engine]) -> None:
    await check_bucket(bucket)
    engine = reopen(bucket)
    found = {task.id: task for task in await engine.find(Filter(), limit=999)}
    assert told.added <= found.keys()
    assert all(found[task_id].status is Status.COMPLETED for task_id in told.completed)
    await engine.close()
