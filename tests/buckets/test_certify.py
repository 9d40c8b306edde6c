"""`qo doctor` on buckets: good stores pass, and stores that ignore conditions are refused with a clear error."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.bucket import ANY, NEW, Blob, Bucket
from qo.buckets import open_bucket
from qo.buckets.certify import certify
from qo.buckets.folder.bucket import FolderBucket
from qo.buckets.memory import MemoryBucket
from qo.errors import Conflict, StorageError
from qo.reports import Finding
from qo.testing import ManualClock, S3Server
from tests.servers.process import S3Place


async def examined(bucket: Bucket, url: str = "test://", **settings: str) -> dict[str, Finding]:
    findings = await certify(bucket, url, races=5, environ=settings)
    return {finding.name: finding for finding in findings}


def wrong(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.ok is False}


async def left(bucket: Bucket) -> list[str]:
    return [key async for key in bucket.keys("")]


async def test_a_good_store_passes_and_is_not_changed(tmp_path: Path) -> None:
    for bucket in (MemoryBucket(), FolderBucket(tmp_path, versions=True)):
        await bucket.put("tasks/mine", b"1", expected=NEW)
        findings = await examined(bucket)
        assert {finding.ok for finding in findings.values()} == {True}
        assert await left(bucket) == ["tasks/mine"]


async def test_a_store_without_versions_is_refused_unless_that_is_allowed() -> None:
    async with S3Server() as server:
        bucket = open_bucket(server.url)
        strict = await examined(bucket, server.url)
        lenient = await examined(bucket, server.url, QO_ALLOW_NO_VERSIONING="1")
    assert wrong(strict) == {"versioning"}
    assert "QO_ALLOW_NO_VERSIONING" in strict["versioning"].detail
    assert wrong(lenient) == set()
    assert lenient["versioning"].ok is None


async def test_a_folder_without_versions_gets_advice_how_to_keep_them(tmp_path: Path) -> None:
    findings = await examined(FolderBucket(tmp_path), f"file://{tmp_path}")
    assert wrong(findings) == set()
    assert "versions=true" in findings["versioning"].detail


async def test_google_passes_though_its_old_versions_are_not_read(google: str) -> None:
    findings = await examined(open_bucket(google), google)
    assert wrong(findings) == set()
    assert "gs://" in findings["versioning"].detail


class IgnoresNew(MemoryBucket):
    """If-None-Match is accepted and ignored."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await super().put(key, data, expected=ANY if expected == NEW else expected)


class IgnoresVersions(MemoryBucket):
    """If-Match is accepted and ignored."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await super().put(key, data, expected=expected if expected in (NEW, ANY) else ANY)


class ChecksThenWrites(MemoryBucket):
    """Conditions are checked a moment before the write: right for one caller, wrong in a race."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        blob = await self.get(key)
        if expected not in (ANY, blob.version if blob else NEW):
            raise Conflict(key)
        await asyncio.sleep(0)
        return await super().put(key, data, expected=ANY)


class Recreates(MemoryBucket):
    """If-Match on a missing key creates it."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        missing = await self.get(key) is None
        return await super().put(key, data, expected=ANY if missing and expected != NEW else expected)


class ForgetsToList(MemoryBucket):
    """Listings lag behind."""

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        found = [key async for key in super().keys(prefix, after=after)]
        for key in found[: max(len(found) - 1, min(len(found), 1))]:
            yield key


class ReadOnly(MemoryBucket):
    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        raise StorageError(f"these credentials may not write {key}, {len(data)} bytes for {expected}")


class Keeper(MemoryBucket):
    async def delete(self, key: str) -> None:
        raise StorageError(f"these credentials may not delete {key}")


@pytest.mark.parametrize(
    ("bucket", "names"),
    [
        (IgnoresNew(), {"creation"}),
        (IgnoresVersions(), {"compare-and-set", "stale writes", "missing objects"}),
        (ChecksThenWrites(), {"creation", "compare-and-set"}),
        (Recreates(), {"missing objects"}),
        (ForgetsToList(), {"listing"}),
        (ReadOnly(), {"write"}),
        (Keeper(), {"delete"}),
    ],
)
async def test_a_store_that_cannot_be_trusted_is_refused(bucket: Bucket, names: set[str]) -> None:
    findings = await examined(bucket)
    assert wrong(findings) == names
    for name in names:
        assert len(findings[name].detail) > 20


async def test_a_wrong_clock_is_reported() -> None:
    clock = ManualClock()
    for distance, ok in ((0.0, True), (10.0, None), (600.0, False)):
        store = ManualClock(clock() + distance)
        findings = await certify(MemoryBucket(store), "test://", races=1, clock=clock, environ={})
        assert next(finding for finding in findings if finding.name == "clock").ok is ok


class Breaks(MemoryBucket):
    async def versions(self, key: str) -> list[Blob]:
        raise StorageError(f"{key}: no such call")


async def test_a_request_that_the_store_does_not_support_is_a_finding() -> None:
    findings = await examined(Breaks())
    assert wrong(findings) == {"versioning"}


async def test_our_own_s3_passes() -> None:
    async with S3Server() as server:
        findings = await certify(open_bucket(server.url), server.url, environ={"QO_ALLOW_NO_VERSIONING": "true"})
    assert [finding.name for finding in findings if not finding.ok] == ["versioning"]
    assert all(finding.ok is not False for finding in findings)


@pytest.mark.usefixtures("keys")
async def test_seaweed_passes(seaweed: S3Place, prefix: str) -> None:
    bucket = open_bucket(seaweed.url("plain", prefix))
    assert wrong(await examined(bucket)) == {"versioning"}
    assert await left(bucket) == []


@pytest.mark.usefixtures("keys")
async def test_ministack_passes_with_versions(ministack: S3Place, prefix: str) -> None:
    findings = await examined(open_bucket(ministack.url("versioned", prefix)))
    assert {finding.ok for finding in findings.values()} == {True}


@pytest.mark.usefixtures("keys")
async def test_rclone_which_ignores_conditions_is_refused(rclone: S3Place, prefix: str) -> None:
    findings = await examined(open_bucket(rclone.url("plain", prefix)), QO_ALLOW_NO_VERSIONING="1")
    assert {"creation", "compare-and-set"} <= wrong(findings)
    assert "If-None-Match" in findings["creation"].detail


async def test_a_missing_bucket_is_one_finding() -> None:
    async with S3Server() as server:
        findings = await examined(open_bucket(server.url.replace("s3://bucket", "s3://nowhere")))
    assert [finding.ok for finding in findings.values()] == [False]
    assert "there is no bucket" in findings["write"].detail
