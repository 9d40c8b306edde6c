"""A whole queue in one object of the caller's own: `qo.connect(storage)`."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest

import qo
from qo.client import Client
from qo.sync import connect as connect_sync
from qo.testing import S3Server

MODES = pytest.mark.parametrize("mode", ["group", "direct"])


class PlainStorage:
    """Two methods, as a user writes them."""

    def __init__(self) -> None:
        self.content, self.version, self.writes = b"", 0, 0

    async def read(self) -> tuple[bytes, str | None]:
        return self.content, str(self.version) if self.version else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.writes += 1
        if if_match is not None and if_match != str(self.version):
            raise qo.Conflict("written by someone else")
        self.content, self.version = content, self.version + 1
        return str(self.version)


async def round_trip(client: Client) -> None:
    await client.enqueue("send_email", b'{"to": "alice@example.com"}')
    await client.enqueue("send_email", b'{"to": "bob@example.com"}')
    tasks = await client.dequeue("send_email", batch_size=2)
    assert [task.payload for task in tasks] == [b'{"to": "alice@example.com"}', b'{"to": "bob@example.com"}']
    for task in tasks:
        async with qo.HeartbeatManager(client, task.id):
            await client.ack(task.id)


@MODES
async def test_any_object_with_read_and_write_will_do(mode: Any) -> None:
    storage = PlainStorage()
    assert isinstance(storage, qo.ObjectStorage)
    async with qo.connect(storage, mode=mode) as client:
        await round_trip(client)
    async with qo.connect(storage, mode=mode) as client:
        assert (await client.stats())["completed"] == 2


async def test_calls_at_once_share_a_write_in_group_mode_and_not_in_direct_mode() -> None:
    writes = {}
    for mode in ("group", "direct"):
        storage = PlainStorage()
        async with qo.connect(storage, mode=mode) as client:
            await client.enqueue("t")
            before = storage.writes
            await asyncio.gather(*(client.engine.add([client.new_task("t", b"1")]) for _ in range(10)))
            writes[mode] = storage.writes - before
    assert writes["group"] <= 2 and writes["direct"] == 10


def test_code_without_an_event_loop_may_bring_a_storage_too() -> None:
    with connect_sync(qo.InMemoryStorage()) as client:
        client.enqueue("t", 1)
        [task] = client.dequeue()
        client.ack(task)


@pytest.mark.parametrize(
    ("storage", "options"), [(42, {}), (None, {}), (object(), {}), (PlainStorage(), {"mode": "fast"})]
)
def test_what_is_no_storage_is_refused(storage: Any, options: dict[str, Any]) -> None:
    with pytest.raises(qo.InvalidSetting, match=r"neither a URL nor a storage|group"):
        qo.connect(storage, **options)


async def test_a_memory_storage_begins_with_what_another_ended_with() -> None:
    first = qo.InMemoryStorage()
    async with qo.connect(first) as client:
        submitted = await client.enqueue("t", {"n": 1})
    content, _ = await first.read()
    async with qo.connect(qo.InMemoryStorage(initial_content=content)) as client:
        task = await client.get(submitted.id)
        assert task is not None and qo.decode(task.payload) == {"n": 1}
    async with qo.connect(qo.InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}')) as client:
        with pytest.raises(qo.StorageError, match="does not hold a queue"):
            await client.enqueue("t")


async def test_the_state_of_a_queue_can_be_read() -> None:
    for storage in (qo.InMemoryStorage(), "memory://"):
        async with qo.connect(storage) as client:
            low = await client.enqueue("a", b"raw", priority=9)
            high = await client.enqueue("b", priority=0)
            held = await client.enqueue("c")
            await client.dequeue("c")
            state = await client.read_state()
            assert len(state.tasks) == 3 and [task.id for task in state.running()] == [held.id]
            assert [task.id for task in state.pending()] == [high.id, low.id]
            assert [task.payload for task in state.pending("a")] == [b"raw"]
            assert state.find(high.id) is not None and state.find("nobody") is None
            if storage != "memory://":
                before = state.version
                await client.enqueue("d")
                after = (await client.read_state()).version
                assert before is not None and after is not None and after > before


@pytest.mark.parametrize("priority", [10, -1, 100])
async def test_a_priority_beyond_the_ten_levels_is_explained(priority: int) -> None:
    async with qo.connect("memory://") as client:
        with pytest.raises(qo.InvalidTask, match=r"0\.\.9 \(0 goes first\); map a wider scale"):
            await client.enqueue("report", b"payload", priority=priority)  # type: ignore[arg-type]


class Broken:
    async def read(self) -> tuple[bytes, str | None]:
        raise OSError("the disk is on fire")

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        raise OSError(f"{len(content)} {if_match}")


async def test_an_error_of_the_storage_is_the_cause_of_ours() -> None:
    with pytest.raises(qo.StorageError) as caught:
        await qo.connect(Broken()).open()
    assert isinstance(caught.value.cause, OSError)


class Early(PlainStorage):
    def write(self, content: bytes, if_match: str | None = None) -> Any:
        raise OSError(f"{len(content)} {if_match}")


class Plain(PlainStorage):
    def read(self) -> Any:
        return self.content, None


class Bare(PlainStorage):
    async def read(self) -> Any:
        return self.content


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        (Early(), "whether the write succeeded"),
        (Plain(), "`async def read`"),
        (Bare(), "must return the content and its version"),
    ],
)
async def test_a_storage_that_violates_the_interface_gets_a_clear_error(storage: Any, says: str) -> None:
    with pytest.raises(qo.StorageError, match=says):
        async with asyncio.timeout(30), qo.connect(storage) as client:
            await client.enqueue("t")


# --- S3, with a session of the caller's


def session() -> Any:
    return boto3.Session(aws_access_key_id="any", aws_secret_access_key="any", region_name="us-east-1")


async def test_a_boto_session_of_the_callers() -> None:
    async with S3Server() as server:

        def storage() -> qo.S3Storage:
            return qo.S3Storage("bucket", "queues/jobs.json", session=session(), endpoint_url=server.endpoint)

        clients = [await qo.connect(storage()).open() for _ in range(4)]
        await asyncio.gather(*(each.enqueue("t", n) for n, each in enumerate(clients)))  # the first write is a race too
        tasks = await clients[0].dequeue(batch_size=9)
        assert sorted(qo.decode(task.payload) for task in tasks) == [0, 1, 2, 3]
        for each in clients:
            await each.close()
        async with qo.connect(storage()) as client:
            assert (await client.stats())["running"] == 4
        missing = qo.S3Storage("missing", "jobs.json", session=session(), endpoint_url=server.endpoint)
        with pytest.raises(qo.StorageError, match="NoSuchBucket"):
            await qo.connect(missing).open()


async def test_a_session_of_another_kind_is_refused() -> None:
    class AsyncSession:
        def client(self, *_: Any, **__: Any) -> object:
            return object()

    with pytest.raises(qo.InvalidSetting, match=r"not a boto3\.Session"):
        qo.S3Storage("bucket", "key", session=AsyncSession())


# --- Google, with a client of the caller's


class GoogleError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"{code} conditionNotMet")
        self.code = code


class Google:
    """As much of google.cloud.storage.Client as is needed: bucket, get_blob, blob, generations."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, int]] = {}

    def bucket(self, name: str) -> "Google":
        self.exists = name == "my-bucket"
        return self

    def get_blob(self, name: str) -> "GoogleBlob | None":
        return GoogleBlob(self, name, self.blobs[name][1]) if name in self.blobs else None

    def blob(self, name: str) -> "GoogleBlob":
        return GoogleBlob(self, name, None)


class GoogleBlob:
    def __init__(self, client: Google, name: str, generation: int | None) -> None:
        self._client, self._name, self.generation = client, name, generation

    def download_as_bytes(self, *, if_generation_match: int | None) -> bytes:
        content, generation = self._client.blobs[self._name]
        if generation != if_generation_match:
            raise GoogleError(412)
        return content

    def upload_from_string(
        self, data: bytes, *, content_type: str, retry: None, if_generation_match: int | None = None
    ) -> None:
        assert content_type == "application/json" and retry is None
        if not self._client.exists:
            raise GoogleError(404)
        _, generation = self._client.blobs.get(self._name, (b"", 0))
        if if_generation_match is not None and if_generation_match != generation:
            raise GoogleError(412)
        self.generation = generation + 1
        self._client.blobs[self._name] = data, self.generation


async def test_a_google_client_of_the_callers() -> None:
    client = Google()
    clients = [await qo.connect(qo.GCSStorage("my-bucket", "jobs.json", client=client)).open() for _ in range(4)]
    await asyncio.gather(*(each.enqueue("t", n) for n, each in enumerate(clients)))
    assert len(await clients[0].dequeue(batch_size=9)) == 4
    for each in clients:
        await each.close()


async def test_a_google_bucket_that_does_not_exist_is_named() -> None:
    async with qo.connect(qo.GCSStorage("missing", "jobs.json", client=Google())) as client:
        with pytest.raises(qo.Refused, match="the bucket missing does not exist; create it"):
            async with asyncio.timeout(30):
                await client.enqueue("t")


def test_a_missing_google_client_is_reported() -> None:
    with pytest.raises(qo.InvalidSetting, match="pip install google-cloud-storage"):
        qo.GCSStorage("my-bucket", "jobs.json")


@MODES
@pytest.mark.parametrize("kind", [str, Path])
async def test_one_file_holds_a_queue(mode: Any, kind: type, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "queue.json"
    async with qo.connect(qo.LocalFileSystemStorage(kind(path)), mode=mode) as client:
        await round_trip(client)
    assert json.loads(path.read_bytes().strip())["version"] > 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o660)
    async with qo.connect(qo.LocalFileSystemStorage(path), mode=mode) as client:
        assert (await client.stats())["completed"] == 2
        await client.enqueue("t")
    assert path.stat().st_mode & 0o777 == 0o660


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_file_that_another_process_wrote_is_not_overwritten(tmp_path: Path) -> None:
    storage = qo.LocalFileSystemStorage(tmp_path / "queue.json")
    assert await storage.read() == (b"", None)
    first = await storage.create(b"one")
    assert await storage.read() == (b"one", first)
    with pytest.raises(qo.Conflict):
        await storage.create(b"other")
    second = await storage.write(b"two", first)
    with pytest.raises(qo.Conflict):
        await storage.write(b"three", first)
    assert await storage.read() == (b"two", second)
    assert names(tmp_path) == ["queue.json", "queue.json.lock"]


def test_processes_share_one_file(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, qo\n"
        "async def main():\n"
        "    async with qo.connect(qo.LocalFileSystemStorage(sys.argv[1])) as client:\n"
        "        for number in range(20):\n"
        "            await client.enqueue('t', {'n': number})\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "queue.json"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(3)]
    assert [process.wait(timeout=100) for process in processes] == [0, 0, 0]
    with connect_sync(qo.LocalFileSystemStorage(path)) as client:
        assert client.stats()["pending"] == 60


def test_a_directory_is_no_file_for_a_queue(tmp_path: Path) -> None:
    with pytest.raises(qo.QoError, match="is a directory"):
        qo.LocalFileSystemStorage(tmp_path)
    with pytest.raises(qo.QoError, match="is not a regular file"):
        qo.LocalFileSystemStorage("/dev/zero")
