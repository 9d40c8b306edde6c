"""Processes on a bucket, racing or killed: what was acknowledged is found, by its index alone, and finished once.

`make torture ONLY=layouts` does it with every layout on every bucket.
"""

import os
from pathlib import Path

import pytest

from qo.ids import new_token
from tests.engines.killing import check, kill_again_and_again, kills, race
from tests.engines.killing_workers import kill_workers
from tests.servers.process import KEYS, S3Place

RACERS = 16
KILLS = kills(4)
WORKERS = kills(2)
MIN_TASKS = 3 * KILLS  # so that no process is killed before it has added some

# Nobody looks behind the index (`hybrid` would, once in a while), and nobody sweeps: what it lacked would be lost.
OPTIONS = {
    "tasks": "layout=tasks&index_mode=index-only",
    "one": "layout=one",
    "sqlite": "layout=sqlite",
    "log": "layout=log",
}
SHARDED = "layout=log&shards=4"
EVERY = bool(os.environ.get("QO_TORTURE"))  # other tests cover the remaining combinations on other buckets
IN_A_FOLDER = [*OPTIONS.values(), SHARDED, *([f"{OPTIONS['tasks']}&versions=true"] if EVERY else [])]
if EVERY:
    OPTIONS["log in shards"] = SHARDED
KILLED_ON_SEAWEED = list(OPTIONS) if EVERY else ["tasks"]
# test_chaos.py kills workers of `tasks` in a folder.
WORKERS_IN_A_FOLDER = list(OPTIONS) if EVERY else ["one", "sqlite", "log"]


@pytest.fixture
def bucket(seaweed: S3Place, monkeypatch: pytest.MonkeyPatch) -> str:
    """On SeaweedFS, and empty."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return seaweed.url("plain", new_token())


@pytest.mark.parametrize("layout", OPTIONS)
async def test_sixteen_processes_on_a_new_folder_lose_no_task(layout: str, tmp_path: Path) -> None:
    await _race(f"file://{tmp_path}/bucket?{OPTIONS[layout]}", tmp_path, rounds=2)


@pytest.mark.parametrize("layout", OPTIONS)
async def test_sixteen_processes_on_a_new_bucket_lose_no_task(layout: str, tmp_path: Path, bucket: str) -> None:
    await _race(f"{bucket}&{OPTIONS[layout]}", tmp_path, rounds=1)


async def _race(url: str, folder: Path, rounds: int) -> None:
    told = race(url, folder, RACERS, rounds)
    assert len(told.added) == 3 * RACERS * rounds
    await check(url, told)


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize("options", IN_A_FOLDER)
async def test_killed_processes_lose_nothing_in_a_folder(options: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket?{options}"
    told = await kill_again_and_again(url, tmp_path, KILLS)
    assert len(told.added) >= MIN_TASKS
    await check(url, told)


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize("layout", KILLED_ON_SEAWEED)
async def test_killed_processes_lose_nothing_on_seaweed(layout: str, tmp_path: Path, bucket: str) -> None:
    url = f"{bucket}&{OPTIONS[layout]}"
    told = await kill_again_and_again(url, tmp_path, KILLS, within=0.2)
    assert len(told.added) >= MIN_TASKS
    await check(url, told)


@pytest.mark.timeout(180 + 10 * WORKERS)
@pytest.mark.parametrize("layout", WORKERS_IN_A_FOLDER)
async def test_another_worker_finishes_the_tasks_of_killed_workers_once_in_a_folder(
    layout: str, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/bucket?{OPTIONS[layout]}"
    await check(url, await kill_workers(url, tmp_path, WORKERS))


@pytest.mark.timeout(180 + 10 * WORKERS)
@pytest.mark.parametrize("layout", KILLED_ON_SEAWEED)
async def test_another_worker_finishes_the_tasks_of_killed_workers_once_on_seaweed(
    layout: str, tmp_path: Path, bucket: str
) -> None:
    url = f"{bucket}&{OPTIONS[layout]}"
    await check(url, await kill_workers(url, tmp_path, WORKERS))
