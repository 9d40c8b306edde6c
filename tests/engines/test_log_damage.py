"""Damaged objects of a log: each is named with what to do, live replicas heal it, and nothing is guessed."""

from collections.abc import Callable

import pytest

from qo.bucket import ANY, NEW
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log.checkpoint import CheckpointStore, DamagedCheckpoint
from qo.engines.replicated_log.doctor import examine_log
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.frame import decode_frame, encode_frame
from qo.engines.replicated_log.garbage import LogGarbage
from qo.engines.replicated_log.loader import DamagedLog
from qo.engines.replicated_log.log_meta import read_meta
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.record_store import DamagedRecord
from qo.errors import StorageError
from qo.model import Task, complete
from qo.reports import Finding
from qo.testing import ManualClock
from qo.testing.samples import claim, new
from tests.engines.log_checker import check_bucket
from tests.engines.test_log_compaction import Interrupted

YOUNG = LogOptions(block_size=4, image_threshold=1)  # nothing is a day old, so no record is deleted
OLD = LogOptions(block_size=4, image_threshold=1, min_record_age=0.0, trust=0.0)
MERGING = LogOptions(block_size=4, image_threshold=10**9, min_record_age=0.0, trust=0.0)


class Damaged:
    """A log with images, merged records and records, and a process whose replica contains all of it."""

    def __init__(self, options: LogOptions) -> None:
        self.clock = ManualClock()
        self.bucket = MemoryBucket(self.clock)
        self._options = options
        self._engines: list[ReplicatedLogEngine] = []
        self.live = self.process()

    def process(self, options: LogOptions | None = None) -> ReplicatedLogEngine:
        engine = ReplicatedLogEngine(
            self.bucket, options or self._options, clock=self.clock, elapsed=self.clock, wall=self.clock
        )
        self._engines.append(engine)
        return engine

    async def grow(self) -> "Damaged":
        for step in range(3):
            for name in range(10 * step, 10 * step + 9):
                await self.live.add([new(name)])
                if name % 3 == 0:
                    await self.live.apply([complete(task, b"1") for task in await claim(self.live, limit=1)])
            self.clock.advance(10)
            await self.live.repair()
        for name in range(100, 106):  # at least one block and one record after the newest image
            await self.live.add([new(name)])
        return self

    async def keys(self, part: str) -> list[str]:
        return [key async for key in self.bucket.keys("") if part in key]

    async def checkpoints(self) -> CheckpointStore:
        meta = await read_meta(self.bucket)
        assert meta is not None
        return CheckpointStore(self.bucket, meta.id, 0)

    async def spoil(self, key: str, how: Callable[[bytes], bytes] | None) -> None:
        blob = await self.bucket.get(key)
        assert blob is not None
        if how is None:
            await self.bucket.delete(key)
        else:
            await self.bucket.put(key, how(blob.data), expected=ANY)

    async def tasks(self, engine: ReplicatedLogEngine) -> list[Task]:
        return (await engine.snapshot()).tasks

    async def is_healed(self) -> bool:
        """Whether a newcomer has what the live replica has, after its next repair."""
        await self.live.add([new(999)])
        await self.live.repair()
        return await self.tasks(self.process()) == await self.tasks(self.live)

    async def findings(self) -> dict[str, Finding]:
        return {finding.name: finding for finding in await examine_log(self.bucket)}

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


def flipped(data: bytes) -> bytes:
    place = len(data) * 2 // 3
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


DAMAGE = pytest.mark.parametrize("how", [flipped, truncated, None], ids=["flipped", "truncated", "missing"])


@pytest.mark.parametrize("how", [flipped, truncated], ids=["flipped", "truncated"])
async def test_a_damaged_record_is_named_and_a_live_replica_heals_it(how: Callable[[bytes], bytes]) -> None:
    log = await Damaged(YOUNG).grow()
    await log.live.repair()
    await log.live.add([new(499)])  # in no image
    key = (await log.keys("/records/"))[-1]
    await log.spoil(key, how)
    newcomer = log.process()
    with pytest.raises(DamagedRecord, match=rf"{key} is damaged.*restore an older version.*running workers"):
        await log.tasks(newcomer)
    with pytest.raises(StorageError, match=key):
        await newcomer.add([new(500)])
    assert len(await log.keys("quarantine/log/00/")) == 1
    records = (await log.findings())["records"]
    assert records.ok is False
    assert key in records.detail
    assert await log.is_healed()
    assert await log.keys("quarantine/") == []
    assert await log.tasks(newcomer) == await log.tasks(log.live)
    await log.close()


@DAMAGE
async def test_a_damaged_merged_record_is_replaced_by_its_records(how: Callable[[bytes], bytes] | None) -> None:
    log = await Damaged(YOUNG).grow()
    for key in await log.keys("/merged/"):
        await log.spoil(key, how)
    assert await log.tasks(log.process()) == await log.tasks(log.live)
    assert (await log.findings())["merged"].ok is (how is None)
    await log.close()


@DAMAGE
async def test_a_damaged_image_part_is_replaced_by_the_older_image(how: Callable[[bytes], bytes] | None) -> None:
    log = await Damaged(OLD).grow()
    newest = (await (await log.checkpoints()).read()).images[0]
    (key,) = [key for key in await log.keys("/images/") if newest.token in key]
    await log.spoil(key, how)
    assert await log.tasks(log.process()) == await log.tasks(log.live)
    images = (await log.findings())["images"]
    assert images.ok is False
    assert key in images.detail
    assert await log.is_healed()
    assert newest.token not in {image.token for image in (await (await log.checkpoints()).read()).images}
    await check_bucket(log.bucket)
    await log.close()


@DAMAGE
async def test_two_damaged_images_are_named_and_healed(how: Callable[[bytes], bytes] | None) -> None:
    log = await Damaged(OLD).grow()
    for key in await log.keys("/images/"):
        await log.spoil(key, how)
    with pytest.raises(DamagedLog, match=r"images/.* (is missing|is damaged).*images/.*; restore an older version"):
        await log.tasks(log.process())
    assert await log.is_healed()
    await log.close()


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_missing_image_is_reported_unless_another_process_has_just_replaced_it(
    caplog: pytest.LogCaptureFixture, *, is_replaced: bool
) -> None:
    """The collector has read the checkpoint before the image disappears."""
    log = await Damaged(OLD).grow()
    oldest = (await log.keys("/images/"))[0]

    async def interrupt() -> None:
        if is_replaced:
            for name in range(200, 240):
                await log.live.add([new(name)])
            await log.live.repair()
        else:
            await log.spoil(oldest, None)

    bucket = Interrupted(log.bucket, "/images/", interrupt)
    log_id = oldest.split("/")[1]
    floor = (await (await log.checkpoints()).read()).floor
    moved = await LogGarbage(bucket, log_id, 0, min_record_age=0.0, min_step=1).move_floor()
    assert oldest not in await log.keys("/images/")
    assert is_replaced or moved.floor == floor
    assert ("parts of the image" in caplog.text) is not is_replaced
    await log.close()


@pytest.mark.parametrize("how", [flipped, None], ids=["flipped", "missing"])
async def test_a_damaged_merged_record_whose_records_were_deleted(how: Callable[[bytes], bytes] | None) -> None:
    log = await Damaged(OLD).grow()
    other = log.process(MERGING)
    for name in range(200, 212):
        await other.add([new(name)])
    log.clock.advance(10)
    await other.repair()
    checkpoint = await (await log.checkpoints()).read()
    newest = checkpoint.images[0].seq
    assert checkpoint.floor > newest + 4
    await log.tasks(log.live)  # its replica has what is about to be damaged
    for key in await log.keys("/merged/"):
        if int(key[-33:-17], 16) > newest:
            await log.spoil(key, how)
    with pytest.raises(
        DamagedLog, match=r"/merged/.* is missing or damaged.*; restore an older version of this object"
    ):
        await log.tasks(log.process())
    assert await log.is_healed()
    await log.close()


@DAMAGE
async def test_a_damaged_merged_record_is_replaced_by_smaller_ones(how: Callable[[bytes], bytes] | None) -> None:
    log = await Damaged(OLD).grow()
    other = log.process(MERGING)
    for name in range(200, 260):
        await other.add([new(name)])
    log.clock.advance(10)
    await other.repair()
    checkpoint = await (await log.checkpoints()).read()
    wide = [key for key in await log.keys("/merged/") if int(key[-16:], 16) - int(key[-33:-17], 16) >= 15]
    assert any(int(key[-16:], 16) < checkpoint.floor for key in wide), "nothing was deleted"
    for key in wide:
        await log.spoil(key, how)
    assert await log.tasks(log.process()) == await log.tasks(log.live)
    await log.close()


async def test_a_foreign_object_that_seems_to_be_an_endless_merged_record_is_ignored() -> None:
    log = await Damaged(YOUNG).grow()
    newest = (await (await log.checkpoints()).read()).images[0].seq
    place = (await log.keys("/merged/"))[0][:-33]
    for first in (1, newest + 1):
        await log.bucket.put(f"{place}{first:016x}-{2**63 - 1:016x}", b"foreign", expected=NEW)
    assert await log.tasks(log.process()) == await log.tasks(log.live)
    assert all(finding.ok for finding in (await log.findings()).values())
    await log.close()


@DAMAGE
async def test_a_damaged_checkpoint_is_named(how: Callable[[bytes], bytes] | None) -> None:
    log = await Damaged(YOUNG).grow()
    key = (await log.checkpoints()).key
    await log.spoil(key, how)
    with pytest.raises(DamagedCheckpoint, match=rf"{key} .*restore the newest version"):
        await log.tasks(log.process())
    (finding,) = await examine_log(log.bucket)
    assert finding.ok is False
    assert key in finding.detail
    await log.live.add([new(600)])  # its proof is young, so it needs no checkpoint
    await log.close()


@pytest.mark.parametrize("how", [flipped, truncated])
async def test_a_damaged_meta_object_is_named(how: Callable[[bytes], bytes]) -> None:
    log = await Damaged(YOUNG).grow()
    await log.spoil("log/meta.json", how)
    with pytest.raises(StorageError, match=r"log/meta.json is damaged.*restore an older version"):
        await log.tasks(log.process())
    (finding,) = await examine_log(log.bucket)
    assert finding.ok is False
    assert "log/meta.json" in finding.detail
    await log.close()


# --- doctor


@pytest.mark.parametrize("options", [YOUNG, OLD], ids=["with all records", "after deletions"])
async def test_doctor_verifies_a_whole_log(options: LogOptions) -> None:
    log = await Damaged(options).grow()
    findings = await log.findings()
    assert {name: finding.ok for name, finding in findings.items()} == dict.fromkeys(
        ("log", "records", "merged", "images", "submissions", "garbage", "counts", "cold segments"), True
    )
    assert "all lead to the same rows" in findings["images"].detail
    before = [key async for key in log.bucket.keys("")]
    await examine_log(log.bucket)
    assert before == [key async for key in log.bucket.keys("")]
    await log.close()


async def test_doctor_reports_that_there_is_no_log_yet() -> None:
    (finding,) = await examine_log(MemoryBucket(ManualClock()))
    assert finding == Finding("log", True, "there is no log yet; the first task creates it")


async def test_doctor_finds_a_record_that_does_not_follow_the_one_before() -> None:
    log = await Damaged(YOUNG).grow()
    key = (await log.keys("/records/"))[-3]
    await log.spoil(key, lambda data: _forged(key, data, previous="e" * 32))
    finding = (await log.findings())["records"]
    assert finding.ok is False
    assert f"{key} does not follow the record before it" in finding.detail
    await log.close()


async def test_doctor_finds_a_merged_record_that_differs_from_its_records() -> None:
    log = await Damaged(YOUNG).grow()
    key, other = (await log.keys("/merged/"))[:2]
    blob = await log.bucket.get(other)
    assert blob is not None
    _, body = decode_frame(other, blob.data)
    await log.spoil(key, lambda data: encode_frame(decode_frame(key, data)[0], body))
    finding = (await log.findings())["merged"]
    assert finding.ok is False
    assert f"{key} does not equal the records that it replaces" in finding.detail
    await log.close()


@pytest.mark.parametrize("options", [YOUNG, OLD], ids=["with all records", "after deletions"])
async def test_doctor_finds_an_image_that_differs_from_the_log(options: LogOptions) -> None:
    log = await Damaged(options).grow()
    key = (await log.keys("/images/"))[-1]
    other = (await log.keys("/images/"))[0]
    blob = await log.bucket.get(other)
    assert blob is not None
    _, body = decode_frame(other, blob.data)
    await log.spoil(key, lambda data: encode_frame(decode_frame(key, data)[0], body))
    finding = (await log.findings())["images"]
    assert finding.ok is False
    assert f"{key} and the parts after it do not equal a replay of the log" in finding.detail
    await log.close()


def _forged(key: str, data: bytes, **fields: str) -> bytes:
    header, body = decode_frame(key, data)
    return encode_frame(header._replace(**fields), body)  # type: ignore[arg-type]
