"""A folder bucket loses no acknowledged write in a power cut."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from qo.bucket import ANY, NEW
from qo.buckets.folder.bucket import FolderBucket
from tests.buckets.power_cut import Disk
from tests.conditions import delay

CUTS = int(os.environ.get("QO_CUTS", "20"))
WRITERS, TURNS = 6, 12


class Writer:
    """Writes and deletes its own keys. Acknowledged changes must last; a change in progress may."""

    def __init__(self, bucket: FolderBucket, number: int, dice: random.Random) -> None:
        self._bucket, self._dice, self._number = bucket, dice, number
        self.told: dict[str, bytes | None] = {}
        self.asked: dict[str, bytes | None] = {}

    async def turn(self, turn: int) -> None:
        key = self._dice.choice([f"a/{self._dice.randrange(2)}/{self._number}", f"b/{self._number}/c"])
        data = None if self._dice.random() < 0.3 else b"%d.%d" % (self._number, turn)
        self.asked[key] = data
        if data is None:
            await self._bucket.delete(key)
        else:
            await self._bucket.put(key, data, expected=ANY if self.told.get(key) else NEW)
        self.told[key] = data
        del self.asked[key]


@pytest.mark.parametrize("versions", [False, True], ids=["", "with versions"])
async def test_acknowledged_writes_outlast_a_power_cut(tmp_path: Path, *, versions: bool) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    dice = random.Random(seed)
    cuts = 0
    while cuts < CUTS:
        cuts += await _cut_again_and_again(tmp_path / str(cuts), dice, versions=versions)


async def _cut_again_and_again(folder: Path, dice: random.Random, *, versions: bool) -> int:
    """While several write at once; how often."""
    root, copies = folder / "disk" / "bucket", 0
    root.parent.mkdir(parents=True)
    disk, bucket = Disk(root.parent), FolderBucket(root, versions=versions)
    writers = [Writer(bucket, number, random.Random(dice.random())) for number in range(WRITERS)]

    async def write(writer: Writer) -> None:
        for turn in range(TURNS):
            await writer.turn(turn)

    with disk.watched():
        writing = [asyncio.create_task(write(writer)) for writer in writers]
        while not all(task.done() for task in writing):
            await delay(dice.random() / 200)  # any moment
            copies += 1
            copy = folder / f"copy{copies}"
            known = disk.after_a_cut(copy, dice, lambda: [(dict(w.told), dict(w.asked)) for w in writers])
            await check(FolderBucket(copy / root.name, versions=versions), known)
        await asyncio.gather(*writing)
    return copies


async def check(bucket: FolderBucket, known: list[tuple[dict[str, bytes | None], dict[str, bytes | None]]]) -> None:
    for told, asked in known:
        for key in told.keys() | asked.keys():
            blob = await bucket.get(key)
            data = None if blob is None else blob.data
            assert data in [told.get(key), *([asked[key]] if key in asked else [])], key
            if blob is not None:
                assert (await bucket.versions(key))[-1] == blob


async def test_a_folder_that_another_writer_made_may_not_be_durable_yet(tmp_path: Path) -> None:
    """The other writer died, or has not flushed yet, so each writer makes the folder durable itself."""
    root = tmp_path / "disk" / "bucket"
    root.parent.mkdir()
    disk = Disk(root.parent)
    with disk.watched():
        root.mkdir()
        (root / "a").mkdir()
        (root / "a" / "b").mkdir()
        await FolderBucket(root).put("a/b/c", b"1", expected=NEW)
    for seed in range(20):
        copy = tmp_path / f"copy{seed}"
        disk.after_a_cut(copy, random.Random(seed), lambda: None)
        blob = await FolderBucket(copy / "bucket").get("a/b/c")
        assert blob is not None
        assert blob.data == b"1"
