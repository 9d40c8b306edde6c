"""A `local` store owns its object: whoever else would write it is refused, with the reason, and nothing is lost."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import qo
from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.engines.sqlite_object.stored_image import NOTE, Owner, term_of
from qo.testing import ManualClock
from tests.engines.gated_bucket import GatedBucket

INF = float("inf")
TERM = term_of(1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryBucket:
    return MemoryBucket(clock)


async def local(bucket: MemoryBucket | GatedBucket, clock: ManualClock) -> qo.S3Store:
    return await qo.S3Store.create(bucket, mode="local", interval=INF, clock=clock)


async def test_another_writer_is_refused_and_a_reader_is_not(bucket: MemoryBucket, clock: ManualClock) -> None:
    store = await local(bucket, clock)
    submitted = await store.enqueue("t")
    await store.flush()
    await store.enqueue("t")
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        with pytest.raises(qo.Refused, match=rf"belongs to a store in mode `local` \(process {os.getpid()} on "):
            await other.enqueue("t")
        with pytest.raises(qo.Refused, match="mode `local`"):
            await other.dequeue()
        assert await other.get(submitted.id) is not None
    rival = await local(bucket, clock)
    with pytest.raises(qo.Refused, match="mode `local`"):
        await rival.enqueue("t")
    await rival.close()
    await store.close()
    assert store.lost == 0


async def test_a_closed_store_gives_up_ownership_immediately(bucket: MemoryBucket, clock: ManualClock) -> None:
    for n in range(3):
        store = await local(bucket, clock)
        await store.enqueue("t")
        if n != 1:  # with and without something to flush at the end
            await store.flush()
        await store.close()
        assert store.lost == 0
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        assert len(await other.dequeue(batch_size=9)) == 3


async def test_a_store_that_fell_silent_makes_room_after_its_term(bucket: MemoryBucket, clock: ManualClock) -> None:
    store = await local(bucket, clock)
    await store.enqueue("t")
    await store.flush()
    clock.advance(TERM)
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        await other.enqueue("t")
    await store.enqueue("t")  # which reads first what the other wrote
    await store.close()
    assert store.lost == 0
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        assert (await other.stats())["pending"] == 3


async def test_a_bucket_that_is_away_does_not_hold_up_a_local_call(bucket: MemoryBucket, clock: ManualClock) -> None:
    gated = GatedBucket(bucket)
    store = await local(gated, clock)
    await store.enqueue("t")
    await store.flush()
    clock.advance(TERM)
    gated.is_cut = True
    await store.enqueue("t")
    assert (await store.stats())["pending"] == 2
    gated.is_cut = False
    await store.close()
    assert store.lost == 0


async def test_a_store_whose_process_has_exited_gives_up_ownership_immediately(
    bucket: MemoryBucket, clock: ManualClock
) -> None:
    async with await qo.S3Store.create(bucket, clock=clock) as first:
        await first.enqueue("t")
    store = await local(bucket, clock)
    await store.enqueue("t")
    await store.flush()
    note = await store.engine.read_note(NOTE)
    assert note is not None
    owner = msgspec.json.decode(note.data, type=Owner)
    ended = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", ""])
    await asyncio.to_thread(ended.wait)
    data = msgspec.json.encode(msgspec.structs.replace(owner, id="another", pid=ended.pid))
    async with await qo.S3Store.create(MemoryBucket(clock), clock=clock) as other:
        await other.engine.write_note(NOTE, data, expected=ANY)
        await other.enqueue("t")
        await other.engine.write_note(NOTE, b"not JSON", expected=ANY)  # what nobody can read protects nobody
        await other.enqueue("t")


async def test_qo_monitor_beside_a_local_store_is_refused_with_the_reason(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    store = await qo.S3Store.create(url, mode="local", interval=INF)
    await store.enqueue("t")
    await store.flush()
    await store.enqueue("t")
    for options in (["--once"], []):
        arguments = ["-m", "qo", "monitor", "--url", f"{url}?layout=sqlite", *options]
        monitor = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=subprocess.PIPE)
        _, said = await monitor.communicate()
        assert monitor.returncode != 0
        assert b"belongs to a store in mode `local`" in said
    await store.close()
    assert store.lost == 0
    async with qo.connect(f"{url}?layout=sqlite") as client:
        assert (await client.stats())["pending"] == 2


async def test_a_store_that_is_only_dropped_makes_room_too(bucket: MemoryBucket, clock: ManualClock) -> None:
    store = await local(bucket, clock)
    await store.enqueue("t")
    await store.flush()
    del store
    gc.collect()
    async with asyncio.timeout(20):
        while not await is_free(bucket, clock):
            await asyncio.sleep(0)
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        assert len(await other.dequeue()) == 1


async def is_free(bucket: MemoryBucket, clock: ManualClock) -> bool:
    async with await qo.S3Store.create(bucket, clock=clock) as other:
        return await other.engine.read_note(NOTE) is None
