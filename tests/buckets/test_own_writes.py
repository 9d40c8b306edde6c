"""The compare-and-set write: its answer is right, whatever request or response is lost."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from qo.bucket import ANY, NEW, Blob, Bucket
from qo.buckets.memory import MemoryBucket
from qo.buckets.own_writes import SUPERSEDED, put_document
from qo.errors import Conflict, OutcomeUnknown, Refused, StorageError
from qo.testing import Faults, FaultyBucket
from qo.testing.clock import simulate

KEPT = 8


def document(write: str, before: bytes | None, nonce: str = "") -> bytes:
    """A document as `put_document` requires: a version, the last eight write ids, and a nonce from the creation."""
    old: Any = json.loads(before) if before else {"version": 0, "writes": [], "nonce": nonce}
    return json.dumps(
        {"version": old["version"] + 1, "writes": [write, *old["writes"]][:KEPT], "nonce": old["nonce"]}
    ).encode()


def recognise(write: str, version: int, nonce: str | None = None) -> Callable[[bytes], bool | None]:
    def is_ours(data: bytes) -> bool | None:
        found = json.loads(data)
        if nonce is not None:
            return bool(found["nonce"] == nonce)
        if write in found["writes"]:
            return True
        return None if found["version"] >= version + KEPT else False

    return is_ours


class Writers:
    """Many writers of one document. The answers to each are compared with the content of the store."""

    def __init__(self, store: MemoryBucket, bucket: Bucket, chance: Callable[[], float]) -> None:
        self.store, self.bucket, self.chance = store, bucket, chance
        self.landed: set[str] = set()
        self.lost: set[str] = set()
        self.unknown: set[str] = set()
        self.numbers = count()

    async def write(self, turns: int) -> None:
        version: str | None = None
        blob: Blob | None = None
        for _ in range(turns):
            if version is None or version == SUPERSEDED or blob is None:
                blob = await self._read()
            version = await self._send(blob)
            blob = None

    async def _read(self) -> Blob | None:
        while True:
            try:
                return await self.bucket.get("doc")
            except StorageError:
                continue

    async def _send(self, blob: Blob | None) -> str | None:
        write = f"w{next(self.numbers)}"
        data = document(write, blob.data if blob else None, nonce=write)
        is_ours = recognise(write, json.loads(data)["version"], None if blob else write)
        expected = blob.version if blob else NEW
        try:
            version = await put_document(
                self.bucket, "doc", data, expected=expected, is_ours=is_ours, retry_timeout=20, random=self.chance
            )
        except Conflict:
            self.lost.add(write)
        except OutcomeUnknown:
            self.unknown.add(write)
        except StorageError:
            self.lost.add(write)
        else:
            self.landed.add(write)
            return version
        return None

    async def truth(self) -> set[str]:
        return {json.loads(blob.data)["writes"][0] for blob in await self.store.versions("doc")}


async def history(seed: int) -> tuple[int, int, int]:
    faults = Faults(seed, lost_request=0.11, lost_response=0.11, late=0.11, refused=0.1, slow=0.1)
    store = MemoryBucket()
    bucket = FaultyBucket(store, faults)
    writers = Writers(store, bucket, faults.dice.random)
    await asyncio.gather(*(writers.write(4) for _ in range(4)))
    await bucket.settle()
    truth = await writers.truth()
    assert writers.landed <= truth, "told that it landed, and it did not"
    assert not writers.lost & truth, "told that it was lost, and it landed"
    return len(writers.landed), len(writers.lost), len(writers.unknown)


def test_every_answer_is_right_while_one_response_in_three_is_lost() -> None:
    landed = lost = unknown = 0
    for seed in range(1_000):
        try:
            told = simulate(history(seed), seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        landed, lost, unknown = landed + told[0], lost + told[1], unknown + told[2]
    assert landed > 3_000
    assert lost > 3_000
    assert unknown < landed / 100


def test_a_seed_repeats_a_run() -> None:
    assert simulate(history(3), 3) == simulate(history(3), 3)


class Scripted(MemoryBucket):
    """Responds to writes from a list: each entry says whether the write is applied, and what is raised."""

    def __init__(self, *script: tuple[bool, Exception | None]) -> None:
        super().__init__()
        self.script = list(script)
        self.puts = 0

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self.puts += 1
        done, error = self.script.pop(0) if self.script else (True, None)
        version = await super().put(key, data, expected=expected) if done else ""
        if error is not None:
            raise error
        return version


LOST = OutcomeUnknown("no answer")
BUSY = StorageError("busy")


def put(bucket: Bucket, data: bytes, expected: str, is_ours: Callable[[bytes], bool | None]) -> str:
    return simulate(put_document(bucket, "doc", data, expected=expected, is_ours=is_ours, retry_timeout=10), 0)


def test_a_write_whose_response_was_lost_is_found_and_not_repeated() -> None:
    bucket = Scripted((True, LOST))
    assert put(bucket, b"1", NEW, lambda _: False) == "1"
    assert bucket.puts == 1


def test_a_refused_write_is_sent_again() -> None:
    bucket = Scripted((False, BUSY), (False, BUSY), (True, None))
    assert put(bucket, b"1", NEW, lambda _: False) == "1"


def test_a_store_that_keeps_refusing_has_not_applied_the_write() -> None:
    with pytest.raises(StorageError, match="busy") as caught:
        put(Scripted(*[(False, BUSY)] * 100), b"1", NEW, lambda _: False)
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_lost_response_and_then_none_is_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown):
        put(Scripted((False, LOST), *[(False, BUSY)] * 100), b"1", NEW, lambda _: False)


def test_a_conflict_at_the_first_attempt_is_final_and_costs_no_read() -> None:
    bucket = Scripted()
    simulate(bucket.put("doc", b"theirs", expected=NEW), 0)
    with pytest.raises(Conflict):
        put(bucket, b"1", NEW, lambda _: pytest.fail("there was no suspect"))


def test_a_write_that_another_process_has_replaced_since_is_superseded() -> None:
    bucket = Scripted((True, LOST))

    def is_ours(data: bytes) -> bool:
        return b"ours" in data

    async def scene() -> str:
        with pytest.raises(OutcomeUnknown):
            await bucket.put("doc", b"ours", expected=NEW)
        await bucket.put("doc", b"theirs on ours", expected="1")
        bucket.script = [(False, LOST)]
        return await put_document(bucket, "doc", b"ours", expected=NEW, is_ours=is_ours)

    assert simulate(scene(), 0) == SUPERSEDED
    with pytest.raises(Conflict):
        put(bucket, b"next", SUPERSEDED, is_ours)


@pytest.mark.parametrize("answer", [None, "gone"])
def test_an_undecidable_outcome_is_reported_at_once(answer: str | None) -> None:
    bucket = Scripted()
    version = simulate(bucket.put("doc", b"0", expected=NEW), 0)
    if answer == "gone":
        simulate(bucket.delete("doc"), 0)
    else:
        simulate(bucket.put("doc", b"far ahead", expected=version), 0)
    bucket.script = [(False, LOST)]
    with pytest.raises(OutcomeUnknown):
        put(bucket, b"1", version, lambda _: None)


def test_an_unconditional_write_is_repeated() -> None:
    bucket = Scripted((False, LOST), (True, LOST), (True, None))
    put(bucket, b"1", ANY, lambda _: pytest.fail("nothing to recognise"))
    assert bucket.puts == 3


class Guarded(MemoryBucket):
    """Raises these, one after the other, for the first writes."""

    def __init__(self, *errors: StorageError) -> None:
        super().__init__()
        self.errors = list(errors)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return await super().put(key, data, expected=expected)


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([Refused("no")], Refused),
        ([StorageError("away"), Refused("no")], Refused),
        ([OutcomeUnknown("lost"), Refused("no")], OutcomeUnknown),
    ],
)
def test_a_refusal_is_reported_immediately_unless_an_earlier_attempt_may_have_been_applied(
    errors: list[StorageError], told: type[StorageError]
) -> None:
    async def write() -> None:
        bucket = Guarded(*errors, StorageError("asked again"))
        with pytest.raises(StorageError) as caught:
            await put_document(bucket, "a", b"1", expected=NEW, is_ours=b"1".__eq__)
        assert type(caught.value) is told
        assert len(bucket.errors) == 1

    simulate(write(), seed=1)
