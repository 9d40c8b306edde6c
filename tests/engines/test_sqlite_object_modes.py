"""Modes `durable` and `local`: when a call returns, what reads see, conflicts, and a bucket that does not respond."""

import asyncio
import logging

import pytest

from qo.bucket import NEW
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engines import open_engine
from qo.engines.layouts import parse
from qo.engines.sqlite_object import DurabilityMode, SqliteObjectEngine
from qo.errors import Conflict, InvalidSetting, OutcomeUnknown, StorageError
from qo.model import Filter, Status
from qo.testing.samples import claim, claim_request, new, stored, task_id
from tests.conditions import TIMEOUT
from tests.engines.fast_time import pass_time, run
from tests.engines.gated_bucket import GatedBucket

INF = float("inf")


async def names(engine: SqliteObjectEngine) -> set[str]:
    return {task.id for task in await engine.find(Filter(), limit=999)}


# --- durable


async def test_a_durable_call_returns_when_the_bucket_has_it_and_reads_do_not_see_it_before() -> None:
    bucket = GatedBucket(MemoryBucket())
    engine = SqliteObjectEngine(bucket)
    await engine.add([new(0)])
    bucket.gate.clear()
    bucket.arrived.clear()
    adding = asyncio.create_task(engine.add([new(1)]))
    await bucket.arrived.wait()
    assert await names(engine) == {task_id(0)}
    assert sum((await engine.count()).values()) == 1
    assert await engine.history(task_id(1)) == []
    assert not adding.done()
    bucket.gate.set()
    assert await adding == [(task_id(1), True)]
    assert await names(engine) == {task_id(0), task_id(1)}


async def test_a_claim_does_not_see_what_the_bucket_does_not_have() -> None:
    bucket = GatedBucket(MemoryBucket())
    engine = SqliteObjectEngine(bucket)
    await engine.open()
    bucket.gate.clear()
    adding = asyncio.create_task(engine.add([new()]))
    await bucket.arrived.wait()
    claiming = asyncio.create_task(claim(engine))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not claiming.done()
    bucket.gate.set()
    await adding
    assert [task.id for task in await claiming] == [task_id(0)]


async def test_one_flush_serves_all_waiting_calls() -> None:
    bucket = CountingBucket(MemoryBucket())
    engine = SqliteObjectEngine(bucket, interval=INF)
    adding = [asyncio.create_task(engine.add([new(n)])) for n in range(20)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert "put" not in bucket.requests and not any(each.done() for each in adding)
    await engine.flush()
    assert bucket.requests["put"] == 1 and all(each.done() for each in adding)
    await engine.flush()  # nothing waits
    assert bucket.requests["put"] == 1


def test_an_interval_combines_calls_and_a_volume_does_not_wait_for_it() -> None:
    async def paced() -> None:
        loop, bucket = asyncio.get_running_loop(), CountingBucket(MemoryBucket())
        engine = SqliteObjectEngine(bucket, interval=10.0, volume=5)
        await engine.add([new("first")])
        begun = loop.time()
        await asyncio.gather(*(engine.add([new(n)]) for n in range(3)))
        assert loop.time() - begun == pytest.approx(10, abs=0.1)
        assert bucket.requests["put"] == 2
        begun = loop.time()
        await asyncio.gather(*(engine.add([new(10 + n)]) for n in range(5)))
        assert loop.time() - begun < 0.1
        assert bucket.requests["put"] == 3

    run(paced())


async def test_a_conflict_is_raised_if_retries_are_off_and_the_next_call_succeeds() -> None:
    bucket = MemoryBucket()
    one, other = (SqliteObjectEngine(bucket, retries_conflicts=False) for _ in range(2))
    await one.open()
    await other.open()
    await one.add([new(0)])
    answers = await asyncio.gather(
        other.add([new(1)]), other.add([new(2)]), other.write_note("n", b"", expected=NEW), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Conflict] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert await names(other) == {task_id(0)}
    assert await other.add([new(1)]) == [(task_id(1), True)]
    assert await names(one) == {task_id(0), task_id(1)}


async def test_an_outdated_engine_that_finds_nothing_downloads_again_instead_of_raising_a_conflict() -> None:
    bucket = MemoryBucket()
    one, other = (SqliteObjectEngine(bucket, retries_conflicts=False) for _ in range(2))
    await other.open()
    await one.add([new()])
    assert await claim(other) != []


async def test_a_download_that_is_older_than_an_upload_is_ignored() -> None:
    bucket = GatedBucket(MemoryBucket())
    engine = SqliteObjectEngine(bucket, retries_conflicts=False)
    await engine.add([new(0)])
    bucket.read_answers.clear()
    bucket.read.clear()
    looking = asyncio.create_task(names(engine))
    await bucket.read.wait()
    await engine.add([new(1)])
    bucket.read_answers.set()
    assert await looking == {task_id(0), task_id(1)}
    await engine.add([new(2)])  # on the uploaded state, not on the downloaded one


async def test_an_upload_that_is_older_than_a_download_is_ignored() -> None:
    store = MemoryBucket()
    bucket = GatedBucket(store)
    engine = SqliteObjectEngine(bucket, retries_conflicts=False)
    await engine.open()
    bucket.write_answers.clear()
    adding = asyncio.create_task(engine.add([new(0)]))
    await bucket.written.wait()
    await SqliteObjectEngine(store).add([new(1)])
    assert await names(engine) == {task_id(0), task_id(1)}
    bucket.write_answers.set()
    assert await adding == [(task_id(0), True)]
    await engine.add([new(2)])  # on the downloaded state
    assert len(await names(engine)) == 3


def test_a_write_whose_response_was_lost_is_recognised_under_later_writes() -> None:
    async def overtaken() -> None:
        store = MemoryBucket()
        bucket = GatedBucket(store)
        engine = SqliteObjectEngine(bucket, retries_conflicts=False)
        await engine.open()
        bucket.write_answers.clear()
        adding = asyncio.create_task(engine.add([new(0)]))
        await bucket.written.wait()
        await SqliteObjectEngine(store).add([new(1)])
        bucket.is_cut = True
        bucket.write_answers.set()
        assert await adding == [(task_id(0), True)]
        bucket.is_cut = False
        assert await names(engine) == {task_id(0), task_id(1)}

    run(overtaken())


def test_calls_are_retried_until_the_bucket_responds_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def outage() -> None:
        bucket = GatedBucket(MemoryBucket())
        engine = SqliteObjectEngine(bucket, retry_timeout=INF)
        await engine.add([new(0)])
        bucket.is_cut = True
        adding = [asyncio.create_task(engine.add([new(n)])) for n in range(1, 4)]
        await pass_time(3600)
        assert not any(each.done() for each in adding)
        assert await names(engine) == {task_id(0)}
        late = asyncio.create_task(engine.add([new(4)]))
        bucket.is_cut = False
        await asyncio.gather(*adding, late)
        assert len(await names(engine)) == 5

    with caplog.at_level(logging.WARNING):
        run(outage())
    assert len([record for record in caplog.records if "could not be written; retrying" in record.message]) == 1


def test_a_call_fails_after_the_retry_timeout_and_its_changes_are_dropped() -> None:
    async def outage() -> None:
        store = MemoryBucket()
        bucket = GatedBucket(store)
        engine = SqliteObjectEngine(bucket, retry_timeout=5)
        await engine.add([new(0)])
        bucket.is_cut = True
        with pytest.raises(OutcomeUnknown):
            await engine.add([new(1)])
        assert await names(engine) == {task_id(0)}
        bucket.is_cut = False
        assert await engine.add([new(1)]) == [(task_id(1), True)]

    run(outage())


def test_closing_waits_for_a_dead_bucket_only_so_long() -> None:
    async def outage() -> None:
        bucket = GatedBucket(MemoryBucket())
        engine = SqliteObjectEngine(bucket, retry_timeout=INF)
        bucket.is_cut = True
        under_way = asyncio.create_task(engine.add([new(0)]))
        await bucket.arrived.wait()
        waiting = asyncio.create_task(engine.add([new(1)]))
        await asyncio.sleep(0)
        await engine.close()
        answers = await asyncio.gather(under_way, waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [OutcomeUnknown, StorageError]

    run(outage())


async def test_closing_waits_for_a_download_whose_caller_was_cancelled() -> None:
    bucket = GatedBucket(MemoryBucket())
    engine = SqliteObjectEngine(bucket)
    bucket.read_answers.clear()
    looking = asyncio.create_task(names(engine))
    await bucket.read.wait()
    looking.cancel()
    closing = asyncio.create_task(engine.close())
    await asyncio.wait([looking])
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    bucket.read_answers.set()
    await closing
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- local


async def test_a_local_call_returns_immediately_and_reads_see_it() -> None:
    store = MemoryBucket()
    engine = SqliteObjectEngine(store, mode=DurabilityMode.LOCAL, interval=INF)
    await engine.open()
    await engine.add([new()])
    assert (await stored(engine)).status is Status.PENDING
    assert len(await claim(engine)) == 1
    assert await store.get("queue.sqlite") is None
    await engine.flush()
    assert (await stored(SqliteObjectEngine(store))).status is Status.RUNNING


def test_local_changes_follow_within_the_interval() -> None:
    async def paced() -> None:
        store = MemoryBucket()
        bucket = CountingBucket(store)
        engine = SqliteObjectEngine(bucket, mode=DurabilityMode.LOCAL)
        await engine.add([new("first")])
        await pass_time(0.1)
        for n in range(50):
            await engine.add([new(n)])
        await pass_time(1)
        assert len(await names(SqliteObjectEngine(store))) == 51
        assert bucket.requests["put"] == 2

    run(paced())


async def test_what_is_written_during_a_flush_goes_with_the_next() -> None:
    store = MemoryBucket()
    bucket = GatedBucket(store)
    engine = SqliteObjectEngine(bucket, mode=DurabilityMode.LOCAL, interval=INF)
    await engine.add([new(0)])
    bucket.gate.clear()
    flushing = asyncio.create_task(engine.flush())
    await bucket.arrived.wait()
    await engine.add([new(1)])
    bucket.gate.set()
    await flushing
    assert await names(SqliteObjectEngine(store)) == {task_id(0)}
    await engine.close()
    assert await names(SqliteObjectEngine(store)) == {task_id(0), task_id(1)}
    assert engine.lost == 0


async def test_a_conflict_loses_the_local_changes_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryBucket()
    engine = SqliteObjectEngine(store, mode=DurabilityMode.LOCAL, interval=INF)
    await engine.open()
    await SqliteObjectEngine(store).add([new(9)])
    await engine.add([new(0)])
    await engine.add([new(1)])
    with pytest.raises(Conflict):
        await engine.flush()
    assert engine.lost == 2
    assert "2 unsynced changes are lost" in caplog.text
    assert await names(engine) == {task_id(9)}
    await engine.add([new(0)])
    await engine.flush()
    assert await names(SqliteObjectEngine(store)) == {task_id(0), task_id(9)}


async def test_a_waiting_local_engine_sees_what_others_wrote() -> None:
    store = MemoryBucket()
    engine = SqliteObjectEngine(store, mode=DurabilityMode.LOCAL)
    await engine.open()
    await SqliteObjectEngine(store).add([new()])
    async with asyncio.timeout(TIMEOUT):
        while not await claim(engine):
            await engine.wait(claim_request(), 5)
    await engine.close()


def test_closing_reports_changes_that_a_dead_bucket_never_got() -> None:
    async def outage() -> None:
        bucket = GatedBucket(MemoryBucket())
        engine = SqliteObjectEngine(bucket, mode=DurabilityMode.LOCAL)
        bucket.is_cut = True
        await engine.add([new()])
        await engine.close()
        assert engine.lost == 1

    run(outage())


# --- by URL


async def test_a_url_sets_mode_interval_and_volume(tmp_path: object) -> None:
    url = f"file://{tmp_path}?layout=sqlite&mode=local&interval=inf&volume=2"
    engine = open_engine(url)
    await engine.open()
    await engine.add([new(0)])
    reader = open_engine(f"file://{tmp_path}?layout=sqlite")
    assert await reader.get([task_id(0)]) == [None]
    await engine.close()
    assert (await reader.get([task_id(0)])) != [None]
    await reader.close()
    assert parse("s3://b/p?layout=sqlite&mode=durable&region=x", {}) == (
        "sqlite",
        {"mode": "durable"},
        "s3://b/p?region=x",
    )


@pytest.mark.parametrize("option", ["mode=group", "interval=soon", "interval=-1", "interval=nan", "volume=0", "page=1"])
def test_an_invalid_option_is_refused(tmp_path: object, option: str) -> None:
    with pytest.raises(InvalidSetting, match=option.partition("=")[0]):
        open_engine(f"file://{tmp_path}?layout=sqlite&{option}")
