"""The folder bucket: its contract, and the effects of other processes and of power cuts."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from qo.bucket import ANY, NEW, Bucket
from qo.buckets import open_bucket
from qo.buckets.folder.bucket import FolderBucket
from qo.errors import Conflict, InvalidSetting, StorageError
from qo.model import DAMAGED
from qo.testing import BucketContract

WRITER = Path(__file__).with_name("folder_writer.py")


class TestFolder(BucketContract):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Bucket:
        return open_bucket(f"file://{tmp_path}/queue")


class TestFolderWithVersions(BucketContract):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Bucket:
        return open_bucket(f"file://{tmp_path}/queue?versions=true&layout=tasks")


def run_writers(folder: Path, command: str, number: int) -> list[str]:
    writers = [
        subprocess.Popen([sys.executable, str(WRITER), str(folder), command, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(number)
    ]
    return [writer.communicate(timeout=60)[0].strip() for writer in writers]


def kill_a_writer(folder: Path) -> tuple[int, int]:
    """Its process id, and the last number whose write was acknowledged."""
    command = [sys.executable, str(WRITER), str(folder), "forever", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        told += map(int, writer.stdout.read().split("\n")[:-1])
        return writer.pid, told[-1]


async def test_eight_processes_count_together_and_lose_nothing(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path, versions=True)
    await bucket.put("counter", b"0", expected=NEW)
    assert run_writers(tmp_path, "count", 8) == ["25"] * 8
    blob = await bucket.get("counter")
    assert blob is not None
    assert blob.data.split()[0] == b"200"
    kept = await bucket.versions("counter")
    assert [int(blob.data.split()[0]) for blob in kept] == list(range(201))


async def test_eight_processes_create_each_key_once(tmp_path: Path) -> None:
    winners = sum(int(text) for text in run_writers(tmp_path, "create", 8))
    assert winners == 50


async def test_folders_that_appear_and_disappear_disturb_no_write(tmp_path: Path) -> None:
    """Deleting the last blob of a folder removes the folder, while other processes are about to write there."""
    assert run_writers(tmp_path, "churn", 4) == ["done"] * 4
    assert [path.name for path in tmp_path.iterdir()] == [".qo"]  # noqa: ASYNC240 - blocks only the test


async def test_a_killed_writer_leaves_old_or_new_content_and_its_temp_files_are_removed(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    await bucket.put("counter", b"0", expected=NEW)
    for _ in range(5):
        process, acknowledged = kill_a_writer(tmp_path)
        blob = await FolderBucket(tmp_path).get("counter")
        assert blob is not None
        assert acknowledged <= int(blob.data.split()[0]) <= acknowledged + 1
    temp_file = tmp_path / ".qo" / "temp" / f"{os.uname().nodename}-{process}-0000000100000000"
    temp_file.write_bytes(b"half")
    await FolderBucket(tmp_path).put("other", b"", expected=ANY)
    assert list(temp_file.parent.iterdir()) == []


async def test_a_temp_file_of_a_live_process_is_left_alone(tmp_path: Path) -> None:
    await FolderBucket(tmp_path).put("a", b"", expected=ANY)
    temp_file = tmp_path / ".qo" / "temp" / f"{os.uname().nodename}-{os.getppid()}-0000000100000000"
    temp_file.write_bytes(b"half")
    await FolderBucket(tmp_path).put("b", b"", expected=ANY)
    assert temp_file.exists()
    os.utime(temp_file, (0, 0))
    await FolderBucket(tmp_path).put("c", b"", expected=ANY)
    assert not temp_file.exists()


async def test_foreign_files_are_neither_listed_nor_touched(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    await bucket.put("tasks/a", b"", expected=ANY)
    (tmp_path / "tasks" / "README").write_text("mine")
    (tmp_path / "tasks" / "empty").mkdir()
    assert [key async for key in bucket.keys("")] == ["tasks/a"]
    await bucket.delete("tasks/a")
    assert (tmp_path / "tasks" / "README").exists()


@pytest.mark.parametrize("damage", [b"", b"hello", b"qo1 " + b"x" * 54, "flip"])
async def test_a_damaged_file_is_marked_and_can_be_replaced(tmp_path: Path, damage: bytes | str) -> None:
    bucket = FolderBucket(tmp_path)
    await bucket.put("a", b"some data", expected=NEW)
    path = tmp_path / "a="
    content = path.read_bytes()
    path.write_bytes(damage if isinstance(damage, bytes) else content[:-1] + b"A")
    blob = await bucket.get("a")
    assert blob is not None
    assert blob.data == DAMAGED + (damage if isinstance(damage, bytes) else b"some datA")
    assert [key async for key in bucket.keys("")] == ["a"]
    with pytest.raises(Conflict):
        await bucket.put("a", b"", expected=NEW)
    await bucket.put("a", b"mended", expected=blob.version)
    mended = await bucket.get("a")
    assert mended is not None and mended.data == b"mended"


async def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("not a directory")
    with pytest.raises(StorageError, match="not a directory"):
        await FolderBucket(tmp_path / "queue").put("a", b"", expected=NEW)


async def test_a_bucket_opened_before_a_fork_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, pid = FolderBucket(tmp_path), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(StorageError, match="forked"):
        await bucket.get("a")


@pytest.mark.parametrize("url", ["file://relative/path", "file:///", "file://"])
def test_a_url_must_name_a_directory(url: str) -> None:
    with pytest.raises(InvalidSetting, match="does not name a directory"):
        open_bucket(url)


async def test_a_cancelled_caller_leaves_a_whole_blob_or_none(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    for number in range(20):
        write = asyncio.ensure_future(bucket.put(f"k/{number}", b"x" * 10_000, expected=NEW))
        await asyncio.sleep(0)
        write.cancel()
        await asyncio.gather(write, return_exceptions=True)
    async for key in bucket.keys("k/"):
        blob = await bucket.get(key)
        assert blob is None or len(blob.data) == 10_000


async def test_keys_are_listed_in_byte_order(tmp_path: Path) -> None:
    dice = random.Random(11)
    keys = {
        "/".join("".join(dice.choices("aB0_-.:", k=dice.randint(1, 3))) for _ in range(dice.randint(1, 3)))
        for _ in range(300)
    }
    keys = {key for key in keys if not {".", ".."} & set(key.split("/"))}
    bucket = FolderBucket(tmp_path)
    await asyncio.gather(*(bucket.put(key, b"", expected=NEW) for key in keys))
    for prefix in ("", "a", "a/", "a-", "B0", "0/", "_:/"):
        for after in ("", "a", "a-", "a/0", "B", "zzz", *dice.sample(sorted(keys), 10)):
            wanted = sorted(key for key in keys if key.startswith(prefix) and key > after)
            assert [key async for key in bucket.keys(prefix, after=after)] == wanted, (prefix, after)
    await asyncio.gather(*(bucket.delete(key) for key in keys))
    assert [path.name for path in tmp_path.iterdir()] == [".qo"]  # noqa: ASYNC240 - blocks only the test


async def test_a_creation_does_not_overwrite_an_existing_object(tmp_path: Path) -> None:
    first, second = FolderBucket(tmp_path), FolderBucket(tmp_path)
    version = await first.put("a", b"1", expected=NEW)
    with pytest.raises(Conflict):
        await second.put("a", b"2", expected=NEW)
    await second.put("a", b"2", expected=version)
    with pytest.raises(Conflict):
        await first.put("a", b"3", expected=version)
