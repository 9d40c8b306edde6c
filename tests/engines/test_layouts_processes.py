"""Processes killed on a bucket: whatever was acknowledged is found, by its index alone, and finished once."""

from pathlib import Path

import pytest

from qo.ids import new_lease_id
from tests.engines.killing import check, kill_again_and_again, kills
from tests.servers.process import KEYS, S3Place

KILLS = kills()
PLENTY = 3 * KILLS  # tasks at least: no process is killed before it added some

# Nobody looks behind the index (`hybrid` would, once in a while), and nobody sweeps: what it lacked would be lost.
TASKS = "index_mode=index-only"


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize("layout", ["layout=one", f"layout=tasks&{TASKS}", f"layout=tasks&{TASKS}&versions=true"])
async def test_killed_processes_lose_nothing_in_a_folder(layout: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket?{layout}"
    told = await kill_again_and_again(url, tmp_path, KILLS)
    assert len(told.added) >= PLENTY
    await check(url, told)


@pytest.mark.timeout(60 + 10 * KILLS)
async def test_killed_processes_lose_nothing_on_seaweed(
    seaweed: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    url = f"{seaweed.url('plain', new_lease_id())}&{TASKS}"
    told = await kill_again_and_again(url, tmp_path, KILLS, within=0.2)
    assert len(told.added) >= PLENTY
    await check(url, told)
