"""Files and folders that qo creates belong to their owner alone, unless the folder is set up for a group."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qo.buckets.folder.bucket import FolderBucket
from qo.client import connect

LARGE = "x" * 300_000


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(root: Path) -> dict[str, int]:
    return {path.relative_to(root).as_posix(): stat.S_IMODE(path.lstat().st_mode) for path in root.rglob("*")}


@pytest.mark.parametrize(("mask", "file"), [(0, 0o600), (0o022, 0o600), (0o277, 0o400)])
async def test_a_database_its_log_and_its_shared_memory_are_private(tmp_path: Path, mask: int, file: int) -> None:
    if file != 0o600 and os.geteuid():  # only root can write a file that its owner cannot write
        mask, file = 0o177, 0o600
    with umask(mask):
        async with connect(f"sqlite:///{tmp_path}/qo.db") as client:
            await client.enqueue("t")
            assert modes(tmp_path) == dict.fromkeys(("qo.db", "qo.db-wal", "qo.db-shm"), file)


async def test_a_database_behind_a_link_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "qo.db").symlink_to(tmp_path / "there" / "real.db")
    with umask(0):
        async with connect(f"sqlite:///{tmp_path}/qo.db") as client:
            await client.enqueue("t")
            assert set(modes(tmp_path / "there").values()) == {0o600}


async def test_an_existing_database_keeps_its_mode_and_its_log_has_the_same(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    path.touch()
    path.chmod(0o660)
    with umask(0o077):
        async with connect(f"sqlite:///{path}") as client:
            await client.enqueue("t")
            assert set(modes(tmp_path).values()) == {0o660}


@pytest.mark.parametrize("layout", ["tasks", "one", "sqlite", "log"])
async def test_a_folder_and_everything_in_it_is_private(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "above" / "bucket"
    with umask(0):
        async with connect(f"file://{root}?layout={layout}&versions=true") as client:
            submitted = await client.enqueue("t", LARGE)
            (task,) = await client.dequeue("t")
            await client.ack(task, LARGE)
            await client.controls.pause()
            assert len(await submitted.result()) == len(LARGE)
    for name, mode in modes(tmp_path).items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), name


async def test_a_folder_of_a_group_is_shared_with_that_group_only(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    root.mkdir()
    root.chmod(0o2770)
    with umask(0o007):
        bucket = FolderBucket(root, versions=True)
        version = await bucket.put("a/b", b"1", expected="new")
        await bucket.put("a/b", b"2", expected=version)
    for name, mode in modes(root).items():
        assert mode & 0o777 == (0o770 if (root / name).is_dir() else 0o660), name
