"""The contract of buckets: tests that every bucket must pass."""

import asyncio

import pytest

from qo.bucket import ANY, NEW, Bucket
from qo.buckets.own_writes import SUPERSEDED
from qo.errors import Conflict

BAD_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "../a",
    "a b",
    "a\\b",
    "a%2fb",
    "a=",
    "é",
    "a\0",
    "a" * 201,
)


async def listed(bucket: Bucket, prefix: str, after: str = "") -> list[str]:
    return [key async for key in bucket.keys(prefix, after=after)]


class BucketContract:
    """Subclass it and define a fixture `bucket` that returns an empty bucket."""

    async def test_a_blob_is_what_was_written(self, bucket: Bucket) -> None:
        for data in (b"", b"\x00\xff\r\n", b"x" * 100_000):
            version = await bucket.put("a/b", data, expected=ANY)
            blob = await bucket.get("a/b")
            assert blob is not None
            assert (blob.data, blob.version) == (data, version)

    async def test_a_missing_blob_is_none(self, bucket: Bucket) -> None:
        assert await bucket.get("nothing") is None
        await bucket.delete("nothing")

    async def test_a_create_conflicts_with_an_existing_blob(self, bucket: Bucket) -> None:
        await bucket.put("a", b"1", expected=NEW)
        with pytest.raises(Conflict):
            await bucket.put("a", b"2", expected=NEW)
        blob = await bucket.get("a")
        assert blob is not None
        assert blob.data == b"1"

    async def test_a_write_succeeds_only_with_the_current_version(self, bucket: Bucket) -> None:
        first = await bucket.put("a", b"1", expected=NEW)
        second = await bucket.put("a", b"2", expected=first)
        with pytest.raises(Conflict):
            await bucket.put("a", b"3", expected=first)
        assert second != first
        third = await bucket.put("a", b"3", expected=second)
        blob = await bucket.get("a")
        assert blob is not None
        assert (blob.data, blob.version) == (b"3", third)

    async def test_a_write_with_a_version_does_not_recreate_a_deleted_blob(self, bucket: Bucket) -> None:
        version = await bucket.put("a", b"1", expected=NEW)
        await bucket.delete("a")
        with pytest.raises(Conflict):
            await bucket.put("a", b"2", expected=version)
        assert await bucket.get("a") is None

    async def test_keys_under_a_prefix_are_listed_in_order(self, bucket: Bucket) -> None:
        for key in ("t/b", "t/a", "t/a/c", "u/a", "t0"):
            await bucket.put(key, b"x", expected=ANY)
        assert await listed(bucket, "t/") == ["t/a", "t/a/c", "t/b"]
        # After a key that is also a folder, SeaweedFS skips the folder. Layouts have no such keys.
        assert await listed(bucket, "t/", after="t/a/c") == ["t/b"]
        assert await listed(bucket, "none/") == []

    async def test_a_prefix_that_cannot_begin_a_key_lists_nothing(self, bucket: Bucket) -> None:
        await bucket.put("t/a/b", b"", expected=NEW)
        for prefix in ("/", "//", "/t", "/t/", "t//", "t//a", "t/a//b", "//t/a", "t/../t/", "./t/", "t/./a"):
            assert await listed(bucket, prefix) == [], prefix

    async def test_a_prefix_may_end_within_a_segment(self, bucket: Bucket) -> None:
        for key in ("t/a", "ta/b", "tb", "u"):
            await bucket.put(key, b"x", expected=ANY)
        assert await listed(bucket, "t") == ["t/a", "ta/b", "tb"]
        assert await listed(bucket, "ta") == ["ta/b"]
        assert await listed(bucket, "") == ["t/a", "ta/b", "tb", "u"]

    async def test_a_listing_can_start_after_a_key_that_does_not_exist(self, bucket: Bucket) -> None:
        for key in ("t/a/1", "t/a/3", "t/b/1", "u/1"):
            await bucket.put(key, b"x", expected=ANY)
        assert await listed(bucket, "t/", after="t/a/2") == ["t/a/3", "t/b/1"]
        assert await listed(bucket, "t/", after="t/aa") == ["t/b/1"]
        assert await listed(bucket, "t/", after="a") == ["t/a/1", "t/a/3", "t/b/1"]
        assert await listed(bucket, "t/", after="u") == []

    async def test_a_deleted_blob_is_gone_immediately(self, bucket: Bucket) -> None:
        for key in ("d/a", "d/b/c"):
            await bucket.put(key, b"1", expected=NEW)
        await bucket.delete("d/b/c")
        assert await bucket.get("d/b/c") is None
        assert await listed(bucket, "d/") == ["d/a"]
        assert await bucket.versions("d/b/c") == []
        await bucket.put("d/b/c", b"2", expected=NEW)
        assert await listed(bucket, "d/") == ["d/a", "d/b/c"]
        assert (await bucket.versions("d/b/c"))[-1] == await bucket.get("d/b/c")

    async def test_concurrent_deletions_remove_exactly_the_given_blobs(self, bucket: Bucket) -> None:
        names = [f"d/{n:02}/A:b.c-d_0" for n in range(40)]
        await asyncio.gather(*(bucket.put(name, b"", expected=NEW) for name in names))
        await asyncio.gather(*(bucket.delete(name) for name in ["d/nothing", *names[:30]]))
        assert await listed(bucket, "d/") == names[30:]
        assert [await bucket.get(name) for name in names[:30]] == [None] * 30

    async def test_keys_are_case_sensitive(self, bucket: Bucket) -> None:
        names = ["n/A:b.c-d_0", "n/Ab", "n/ab"]
        for name in names:
            await bucket.put(name, name.encode(), expected=NEW)
        assert sorted(await listed(bucket, "n/")) == names
        for name in names:
            blob = await bucket.get(name)
            assert blob is not None
            assert blob.data == name.encode()

    async def test_invalid_keys_are_rejected(self, bucket: Bucket) -> None:
        for key in BAD_KEYS:
            for call in (bucket.put(key, b"x", expected=ANY), bucket.get(key), bucket.delete(key)):
                with pytest.raises(ValueError, match="is not a key"):
                    await call

    async def test_a_large_blob_is_written_in_one_piece(self, bucket: Bucket) -> None:
        data = bytes(range(256)) * 24_000  # 6 MB: by default, drivers split a body of this size
        version = await bucket.put("large", data, expected=NEW)
        blob = await bucket.get("large")
        assert blob is not None
        assert (blob.data == data, blob.version) == (True, version)
        with pytest.raises(Conflict):
            await bucket.put("large", data, expected=NEW)

    async def test_an_unknown_version_is_a_conflict(self, bucket: Bucket) -> None:
        await bucket.put("a", b"1", expected=NEW)
        with pytest.raises(Conflict):
            await bucket.put("a", b"2", expected=SUPERSEDED)

    async def test_concurrent_increments_are_all_counted(self, bucket: Bucket) -> None:
        await bucket.put("counter", b"0 ", expected=NEW)

        async def count(writer: int) -> None:
            for turn in range(3):
                while True:
                    blob = await bucket.get("counter")
                    assert blob is not None
                    number = int(blob.data.split()[0]) + 1
                    try:
                        await bucket.put("counter", b"%d %d.%d" % (number, writer, turn), expected=blob.version)
                        break
                    except Conflict:
                        continue

        await asyncio.gather(*(count(writer) for writer in range(4)))
        blob = await bucket.get("counter")
        assert blob is not None
        assert blob.data.split()[0] == b"12"

    async def test_a_listing_of_several_pages_is_complete(self, bucket: Bucket) -> None:
        names = [f"many/{n:05}" for n in range(1_050)]  # more than one page of any store
        for start in range(0, len(names), 50):
            await asyncio.gather(*(bucket.put(name, b"", expected=ANY) for name in names[start : start + 50]))
        assert await listed(bucket, "many/") == names

    async def test_exactly_one_of_several_concurrent_creates_wins(self, bucket: Bucket) -> None:
        assert await _winners(bucket, [NEW] * 8) == 1

    async def test_exactly_one_of_several_concurrent_writes_wins(self, bucket: Bucket) -> None:
        version = await bucket.put("race", b"start", expected=NEW)
        assert await _winners(bucket, [version] * 8) == 1

    async def test_the_current_version_is_the_last_in_the_list(self, bucket: Bucket) -> None:
        version = await bucket.put("a", b"1", expected=NEW)
        await bucket.put("a", b"2", expected=version)
        kept = await bucket.versions("a")
        assert kept[-1] == await bucket.get("a")
        assert [blob.data for blob in kept] in ([b"2"], [b"1", b"2"])
        assert await bucket.versions("nothing") == []

    async def test_a_blob_has_the_time_of_its_write_by_the_bucket(self, bucket: Bucket) -> None:
        before = bucket.now()
        await bucket.put("a", b"1", expected=NEW)
        blob = await bucket.get("a")
        assert blob is not None
        assert before - 5 <= blob.written_at <= bucket.now() + 5


async def _winners(bucket: Bucket, expected: list[str]) -> int:
    async def write(n: int, version: str) -> bool:
        try:
            await bucket.put("race", b"%d" % n, expected=version)
        except Conflict:
            return False
        return True

    answers = await asyncio.gather(*(write(n, version) for n, version in enumerate(expected)))
    blob = await bucket.get("race")
    assert blob is not None
    assert answers[int(blob.data)]
    return sum(answers)
