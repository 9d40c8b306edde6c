"""The cloud bucket on real servers and on our own: its contract, and its error messages."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.bucket import ANY, NEW, Bucket
from qo.buckets import open_bucket
from qo.buckets.address import parse_address
from qo.buckets.cloud import StoreClock, least_offset
from qo.clock import system_clock
from qo.errors import InvalidSetting, ObjectTooLarge, OutcomeUnknown, StorageError
from qo.testing import BucketContract, Faults, Latency, ManualClock, S3Server
from qo.testing.s3_server import Request, S3Answer, S3Objects
from tests.servers.azurite import ACCOUNT, KEY
from tests.servers.process import S3Place


@pytest.fixture
async def server() -> AsyncIterator[S3Server]:
    async with S3Server() as server:
        yield server


class TestOurServer(BucketContract):
    @pytest.fixture
    def bucket(self, server: S3Server) -> Bucket:
        return open_bucket(server.url)


class TestBelowAPrefix(BucketContract):
    @pytest.fixture
    def bucket(self, server: S3Server) -> Bucket:
        return open_bucket(server.url.replace("/?", "/team/queue/?"))


@pytest.mark.usefixtures("keys")
class TestSeaweed(BucketContract):
    @pytest.fixture
    def bucket(self, seaweed: S3Place, prefix: str) -> Bucket:
        return open_bucket(seaweed.url("plain", prefix))


@pytest.mark.usefixtures("keys")
class TestSeaweedWithVersions(BucketContract):
    @pytest.fixture
    def bucket(self, seaweed: S3Place, prefix: str) -> Bucket:
        return open_bucket(seaweed.url("versioned", prefix))


@pytest.mark.usefixtures("keys")
class TestMinistack(BucketContract):
    @pytest.fixture
    def bucket(self, ministack: S3Place, prefix: str) -> Bucket:
        return open_bucket(ministack.url("plain", prefix))


@pytest.mark.usefixtures("keys")
class TestMinistackWithVersions(BucketContract):
    @pytest.fixture
    def bucket(self, ministack: S3Place, prefix: str) -> Bucket:
        return open_bucket(ministack.url("versioned", prefix))


class TestGoogle(BucketContract):
    @pytest.fixture
    def bucket(self, google: str) -> Bucket:
        return open_bucket(google)


class TestAzure(BucketContract):
    @pytest.fixture
    def bucket(self, azurite: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        return open_bucket(f"az://plain/{prefix}?endpoint={azurite}")


async def test_every_call_names_a_missing_bucket(server: S3Server) -> None:
    bucket = open_bucket(server.url.replace("s3://bucket", "s3://nowhere"))
    with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
        await bucket.get("a")
    for expected in (NEW, ANY, '"etag"'):
        with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
            await bucket.put("a", b"", expected=expected)
    with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
        [key async for key in bucket.keys("a/")]
    with pytest.raises(StorageError, match="there is no bucket 'nowhere'"):
        await bucket.delete("a")


async def test_a_store_that_cannot_be_reached_has_not_applied_the_write() -> None:
    bucket = open_bucket("s3://bucket/?endpoint=http://127.0.0.1:9&anonymous=true")
    with pytest.raises(StorageError, match="cannot be reached at http") as caught:
        await bucket.put("a", b"", expected=NEW)
    assert not isinstance(caught.value, OutcomeUnknown)


@pytest.mark.usefixtures("keys")
async def test_wrong_credentials_are_reported_as_such(
    seaweed: S3Place, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    bucket = open_bucket(seaweed.url("plain", prefix))
    with pytest.raises(StorageError, match="does not accept the credentials"):
        await bucket.put("a", b"", expected=NEW)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(StorageError, match="does not accept the credentials"):
        await open_bucket(seaweed.url("plain", prefix)).get("a")


async def test_a_lost_response_to_a_write_is_an_unknown_outcome_and_to_a_read_is_not(server: S3Server) -> None:
    bucket = open_bucket(server.url)
    server.faults = Faults(1, lost_response=1.0)
    with pytest.raises(OutcomeUnknown):
        await bucket.put("a", b"1", expected=NEW)
    with pytest.raises(StorageError) as caught:
        await bucket.get("a")
    assert not isinstance(caught.value, OutcomeUnknown)
    server.faults = Faults(1)
    blob = await bucket.get("a")
    assert blob is not None
    assert blob.data == b"1"


@pytest.mark.parametrize("ending", ["closed", "reset"])
async def test_a_connection_that_ends_during_a_write_leaves_its_outcome_unknown(ending: str) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if ending == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            await reader.readuntil(b"value")
        writer.transport.abort()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        bucket = open_bucket(f"s3://bucket/?endpoint=http://127.0.0.1:{port}&anonymous=true", clock=system_clock)
        with pytest.raises(OutcomeUnknown, match="did not confirm"):
            await bucket.put("a", b"value", expected=NEW)


async def test_a_response_that_takes_too_long_is_an_unknown_outcome(server: S3Server) -> None:
    bucket = open_bucket(f"{server.url}&timeout=0.2")
    server.latency = Latency(put=0.5)
    with pytest.raises(OutcomeUnknown):
        await bucket.put("a", b"1", expected=NEW)


class Refusing(S3Objects):
    """Refuses the first writes with a status, then behaves."""

    def __init__(self, status: int, times: int) -> None:
        super().__init__("bucket")
        self.status, self.times = status, times

    def answer(self, request: Request) -> S3Answer:
        if request.method != "PUT" or not self.times:
            return super().answer(request)
        self.times -= 1
        return self.refusal(self.status)


async def test_an_object_that_is_too_large_for_the_store_is_refused_as_such() -> None:
    async with S3Server(objects=Refusing(413, 1)) as server:
        bucket = open_bucket(server.url)
        with pytest.raises(ObjectTooLarge, match="refuses large because of its size"):
            await bucket.put("large", b"value", expected=NEW)


@pytest.mark.parametrize("status", [409, 429])
async def test_a_write_that_the_store_did_not_decide_is_retried(status: int) -> None:
    """S3 responds 409, Google and R2 429, during another write of the key. Neither says which write won."""
    async with S3Server(objects=Refusing(status, 3)) as server:
        bucket = open_bucket(server.url)
        version = await bucket.put("a", b"1", expected=NEW)
        assert await bucket.put("a", b"2", expected=version)
        assert server.requests == 5


async def test_a_server_error_leaves_the_outcome_of_a_write_unknown() -> None:
    async with S3Server(objects=Refusing(503, 1)) as server:
        with pytest.raises(OutcomeUnknown, match="did not confirm"):
            await open_bucket(server.url).put("a", b"1", expected=NEW)
        assert server.requests == 1, "the driver tried again on its own"


async def test_the_bucket_uses_the_clock_of_the_store() -> None:
    clock = ManualClock(system_clock() + 3600)
    async with S3Server(clock=clock) as server:
        bucket = open_bucket(server.url)
        await bucket.put("a", b"", expected=NEW)
        assert abs(bucket.now() - clock()) < 2
        given = open_bucket(server.url, clock=lambda: 17.0)
        await given.get("a")
        assert given.now() == 17.0


async def test_times_follow_the_store_after_the_local_clock_is_set() -> None:
    wall, elapsed = ManualClock(system_clock()), ManualClock(50.0)
    async with S3Server() as server:
        clock = StoreClock(parse_address(server.url), wall, elapsed)
        await asyncio.to_thread(clock.refresh)
        before = clock.now()
        assert not clock.was_set()
        wall.advance(601)
        elapsed.advance(1)
        assert clock.now() == pytest.approx(before + 1)
        assert clock.was_set()
        assert not clock.is_stale
        await asyncio.to_thread(clock.refresh)
        assert abs(clock.now() - before) < 60
        elapsed.advance(61)
        assert clock.is_stale


@pytest.mark.parametrize(
    ("sent", "date", "received", "offset"),
    [
        (100.2, 100, 100.4, 0.0),  # the same second
        (100.9, 101, 101.1, 0.0),  # the second changed on the way
        (100.2, 105, 100.4, 4.6),  # the store is at least this far ahead
        (100.2, 90, 100.4, -9.2),  # the store is at least this far behind
    ],
)
def test_the_smallest_offset_that_explains_a_date_is_used(
    sent: float, date: float, received: float, offset: float
) -> None:
    assert least_offset(sent, date, received) == pytest.approx(offset)


def test_an_address_takes_defaults_from_the_environment() -> None:
    environ = {"S3_BUCKET": "tasks", "S3_ENDPOINT": "http://localhost:3902/", "S3_REGION": "garage"}
    address = parse_address("s3:///team/", environ)
    assert (address.bucket, address.prefix, address.endpoint, address.region) == (
        "tasks",
        "team",
        "http://localhost:3902",
        "garage",
    )
    given = parse_address("s3://other/a/b?endpoint=https://s3.example.com&region=eu-west-1&layout=one", environ)
    assert (given.bucket, given.prefix) == ("other", "a/b")
    assert (given.endpoint, given.region) == ("https://s3.example.com", "eu-west-1")


def test_settings_of_the_environment_that_a_driver_refuses_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for url, variables, problem in (
        ("s3://b", {"AWS_PROFILE": "missing", "AWS_CONFIG_FILE": str(tmp_path / "none")}, "check AWS_PROFILE"),
        (
            "s3://b",
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "a b"},
            "region 'a b' is not",
        ),
        (
            "gs://b",
            {"GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "none")},
            "gs://b cannot be opened; check its credentials",
        ),
        ("az://b?account=a", {"AZURE_STORAGE_ACCOUNT_KEY": "!"}, "az://b cannot be opened; check its credentials"),
    ):
        with monkeypatch.context() as patched:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "S3_REGION"):
                patched.delenv(name, raising=False)
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(InvalidSetting, match=problem) as refusal:
                open_bucket(url)
            assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/", "must not contain credentials"),
        ("s3://b/?endpoint=ftp://x", "not an http"),
        ("s3://b/?endpoint=http://[::1", "not an http"),
        ("s3://b/?endpoint=http://h:port", "not an http"),
        ("s3://b/?endpoint=http://", "not an http"),
        ("az://b", r"needs the name of a storage account: add \?account=NAME"),
        ("s3://b/?connections=many", "not a number"),
        ("s3://b/?timeout=nan", "not a number"),
        ("ftp://b", "is not a bucket"),
    ],
)
def test_an_invalid_url_is_refused(url: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("S3_BUCKET", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidSetting, match=problem):
        open_bucket(url)


def test_the_error_for_missing_credentials_explains_how_to_set_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match="set AWS_ACCESS_KEY_ID"):
        open_bucket("s3://bucket/")
