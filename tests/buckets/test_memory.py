import pytest

from qo.bucket import ANY, Bucket
from qo.buckets import open_bucket
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.s3_store import PrefixedBucket
from qo.testing import BucketContract, Faults, FaultyBucket


class TestMemory(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return open_bucket("memory://")


class TestPrefixed(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return PrefixedBucket(MemoryBucket(), "/deep/below/")


class TestCounting(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return CountingBucket(MemoryBucket())


class TestFaultyWithoutFaults(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return FaultyBucket(MemoryBucket(), Faults(0))


class TestSlow(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return FaultyBucket(MemoryBucket(), Faults(7, slow=0.5))


async def test_requests_are_counted_by_kind() -> None:
    bucket = CountingBucket(MemoryBucket())
    for number in range(1001):
        await bucket.put(f"a/{number:04}", b"", expected=ANY)
    await bucket.get("a/0000")
    await bucket.versions("a/0000")
    assert [key async for key in bucket.keys("a/")] == [f"a/{number:04}" for number in range(1001)]
    assert [key async for key in bucket.keys("b/")] == []
    await bucket.delete("a/0000")
    assert bucket.requests == {"put": 1001, "get": 1, "versions": 1, "list": 3, "delete": 1}
