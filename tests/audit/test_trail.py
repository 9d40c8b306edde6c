"""The audit trail: bounded, fair, and never in the way of the action itself."""

import asyncio
import logging

import msgspec
import pytest

from qo.audit import AuditRecord, AuditTrail, compact_audit, new_record, read_audit
from qo.audit.archive import (
    DAY,
    MAX_DAYS_FULL,
    MAX_PER_DAY,
    MAX_PER_DAY_IN_ONE_OBJECT,
    PREFIX,
    RETENTION,
    UNVERIFIED,
    VERIFIED,
    AuditSeries,
)
from qo.audit.records import MAX_RECORD_SIZE, MAX_TASK_IDS, AuditNote, encode
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import ANY
from qo.monitor import Monitor
from qo.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.advance(DAY - clock.now % DAY)
    return clock


@pytest.fixture
def engine(clock: ManualClock) -> MemoryEngine:
    return MemoryEngine(clock)


def done(clock: ManualClock, who: str = "ops", *, after: float = 0.0, target: str = "") -> AuditRecord:
    return new_record(at=clock.now + after, actor="token", who=who, action="replay", target=target)


async def write(engine: MemoryEngine, *records: AuditRecord, series: AuditSeries = VERIFIED) -> None:
    name = f"{series.inbox}{len(await engine.notes(series.inbox))}"
    await engine.write_note(name, encode(records), expected=ANY)


async def test_a_busy_token_does_not_push_out_what_others_did(engine: MemoryEngine, clock: ManualClock) -> None:
    rare = [done(clock, "rare", after=n) for n in range(3)]
    busy = [done(clock, "busy", after=10 + n / 1000) for n in range(2 * MAX_PER_DAY)]
    await write(engine, *rare, *busy)
    await compact_audit(engine, clock.now + 60)
    page = await read_audit(engine, now=clock.now + 60, limit=10_000)
    kept = {record.id for record in page.records}
    assert {record.id for record in rare} <= kept
    assert busy[-1].id in kept and busy[0].id not in kept
    assert len(kept) <= MAX_PER_DAY and page.dropped == len(rare) + len(busy) - len(kept)


async def test_roles_that_may_only_add_records_displace_no_verified_record(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    """They can invent actors and times, so fairness between actors does not hold them."""
    real = [done(clock, "ops", after=-n * DAY) for n in range(MAX_DAYS_FULL + 2)]
    await write(engine, *real)
    await compact_audit(engine, clock.now + 60)
    for n in range(MAX_DAYS_FULL + 2):
        flood = [done(clock, f"{n}-{m}", after=-n * DAY + m / 1000) for m in range(MAX_PER_DAY)]
        await write(engine, *flood, series=UNVERIFIED)
    forged = msgspec.structs.replace(real[0], who="nobody", verified=True)
    await write(engine, forged, done(clock, "ops", after=1), series=UNVERIFIED)
    await write(engine, done(clock, "late"))
    await compact_audit(engine, clock.now + 60)
    page = await read_audit(engine, now=clock.now + 60, limit=100_000)
    assert {record.id for record in real} < {record.id for record in page.records if record.verified}
    others = [record for record in page.records if not record.verified]
    assert 0 < len(others) <= MAX_PER_DAY // 4 * MAX_DAYS_FULL
    assert {record.who for record in page.records if record.verified} == {"ops", "late"}


async def test_the_trail_is_bounded_by_number_and_age(engine: MemoryEngine, clock: ManualClock) -> None:
    for _ in range(MAX_DAYS_FULL + 3):
        await write(engine, *(done(clock, after=n / 100) for n in range(MAX_PER_DAY)))
        await compact_audit(engine, clock.now)
        clock.advance(DAY)
    days = [note.name for note in await engine.notes(PREFIX)]
    assert len(days) == MAX_DAYS_FULL
    page = await read_audit(engine, now=clock.now, limit=100_000)
    assert len(page.records) == MAX_DAYS_FULL * MAX_PER_DAY

    clock.advance(RETENTION + DAY)
    assert not (await read_audit(engine, now=clock.now, limit=10)).records  # too old to be shown, there or not
    await write(engine, done(clock, target="new"), done(clock, after=-RETENTION - DAY, target="too late"))
    await compact_audit(engine, clock.now)
    assert len(await engine.notes(PREFIX)) == 1
    assert [record.target for record in (await read_audit(engine, now=clock.now, limit=10)).records] == ["new"]


class _Brief(MemoryEngine):
    default_retention = DAY  # as in the bucket layouts `one` and `sqlite`


async def test_the_trail_is_short_where_every_write_carries_it(clock: ManualClock) -> None:
    engine = _Brief(clock)
    await write(engine, *(done(clock, after=n / 100) for n in range(MAX_PER_DAY)))
    await compact_audit(engine, clock.now)
    assert len((await read_audit(engine, now=clock.now + 60, limit=10_000)).records) == MAX_PER_DAY_IN_ONE_OBJECT


async def test_a_record_of_a_clock_that_is_ahead_leaves_like_any_other(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    await write(engine, done(clock, after=1000 * DAY))
    await compact_audit(engine, clock.now)
    clock.advance(RETENTION + 2 * DAY)
    await write(engine, done(clock))
    await compact_audit(engine, clock.now)
    assert len(await engine.notes(PREFIX)) == 1


async def test_pages_lead_through_all_months_and_name_each_action_once(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    trail = AuditTrail(engine, clock=clock)
    for n in range(9):
        await trail.record(done(clock, target=str(n)))
        if n % 4 == 0:
            await compact_audit(engine, clock.now)
        clock.advance(9 * DAY)
    seen: list[str] = []
    before, more = None, True
    while more:
        page = await read_audit(engine, now=clock.now, limit=2, before=before)
        seen += [record.target for record in page.records]
        before, more = (page.records[-1].at, page.records[-1].id), page.has_more
    assert seen == [str(n) for n in reversed(range(9))]
    recent = await read_audit(engine, now=clock.now, limit=10, since=clock.now - 20 * DAY)
    assert [record.target for record in recent.records] == ["8", "7"]


async def test_one_garbage_record_hides_none_of_its_note_and_newer_fields_stay(
    engine: MemoryEngine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    good = msgspec.to_builtins(done(clock, target="good"))
    records = [{"id": 5}, good | {"colour": "red"}, "text", good | {"id": "x" * 200}]
    await engine.write_note(f"{VERIFIED.inbox}1", msgspec.json.encode({"records": records}), expected=ANY)
    for _ in range(2):
        page = await read_audit(engine, now=clock.now + 1, limit=10)
        assert [record.target for record in page.records] == ["good"]
        assert page.unreadable == 3
        await compact_audit(engine, clock.now)
    (day,) = await engine.notes(PREFIX)
    assert b'"colour":"red"' in day.data
    assert caplog.text.count("cannot be read and is kept as it is") == 3  # each once, merged or not


async def test_records_that_cannot_be_read_are_bounded_like_an_actors(engine: MemoryEngine, clock: ManualClock) -> None:
    garbage = [{"garbage": n} for n in range(2 * MAX_PER_DAY)]
    stamp = f"{int((clock.now - DAY) * 1000):013d}"
    await engine.write_note(f"{VERIFIED.inbox}{stamp}-a", msgspec.json.encode({"records": garbage}), expected=ANY)
    await write(engine, done(clock, after=-DAY, target="good"))
    await compact_audit(engine, clock.now)
    assert len(await engine.notes(PREFIX)) == 1  # by the name of their note they are of that day, too
    page = await read_audit(engine, now=clock.now + 1, limit=10)
    assert [record.target for record in page.records] == ["good"]
    assert page.unreadable == MAX_PER_DAY - 1 and page.dropped == MAX_PER_DAY + 1


@pytest.mark.parametrize("series", [VERIFIED, UNVERIFIED])
async def test_large_records_are_replaced_by_short_ones_that_say_so(
    engine: MemoryEngine, clock: ManualClock, series: AuditSeries
) -> None:
    readable = msgspec.to_builtins(done(clock, "large", target="task 7")) | {"padding": "x" * MAX_RECORD_SIZE}
    unreadable = {"padding": "x" * 10 * MAX_RECORD_SIZE}
    small = msgspec.to_builtins(done(clock, "small")) | {"padding": "kept"}
    records = msgspec.json.encode({"records": [readable, unreadable, small]})
    await engine.write_note(f"{series.inbox}1", records, expected=ANY)
    await compact_audit(engine, clock.now + 1)
    (day,) = await engine.notes(PREFIX)
    assert len(day.data) < MAX_RECORD_SIZE and b'"padding":"kept"' in day.data
    page = await read_audit(engine, now=clock.now + 1, limit=10)
    by_action = {(record.who, record.action): record.target for record in page.records}
    assert "task 7" in by_action["large", "replay"] and "shortened" in by_action["large", "replay"]
    assert by_action["small", "replay"] == ""
    assert "not kept" in by_action["unknown", "audit.too_large"]


async def test_garbage_from_a_role_that_may_only_add_is_not_kept(engine: MemoryEngine, clock: ManualClock) -> None:
    for n in range(3):
        await engine.write_note(f"{UNVERIFIED.inbox}{n}", b"{" + b"x" * 10 * MAX_RECORD_SIZE, expected=ANY)
    await compact_audit(engine, clock.now)
    assert sum(len(note.data) for note in await engine.notes("")) < MAX_RECORD_SIZE
    page = await read_audit(engine, now=clock.now + 1, limit=10)
    assert [record.action for record in page.records] == ["audit.too_large"]  # the same bytes count once
    await engine.write_note(f"{UNVERIFIED.inbox}small", b"{", expected=ANY)
    await compact_audit(engine, clock.now)
    assert (await read_audit(engine, now=clock.now + 1, limit=10)).unreadable == 1


async def test_a_store_that_refuses_the_record_is_logged_and_nothing_is_raised(
    engine: MemoryEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object, **__: object) -> str:
        raise StorageError("the disk is full")

    monkeypatch.setattr(engine, "write_note", refuse)
    with caplog.at_level(logging.ERROR, "qo.audit"):
        await AuditTrail(engine, clock=clock).record(done(clock, target="queue mail"))
    (line,) = caplog.records
    assert "the disk is full" in line.message and "queue mail" in line.message
    assert line.__dict__["audit"]["who"] == "ops"


async def test_a_caller_that_leaves_takes_no_record_with_it(engine: MemoryEngine, clock: ManualClock) -> None:
    began, go_on, write_note = asyncio.Event(), asyncio.Event(), engine.write_note

    async def slow(name: str, data: bytes, *, expected: str) -> str:
        began.set()
        await go_on.wait()
        return await write_note(name, data, expected=expected)

    engine.write_note = slow  # type: ignore[method-assign]
    trail = AuditTrail(engine, clock=clock, random=lambda: 1.0)  # it never compacts by itself
    first = asyncio.create_task(trail.record(done(clock, target="first")))
    await began.wait()
    others = [asyncio.create_task(trail.record(done(clock, target="other"))) for _ in range(5)]
    first.cancel()
    await asyncio.wait([first])
    go_on.set()
    await asyncio.gather(*others)
    await trail.close()
    page = await read_audit(engine, now=clock.now + 1, limit=10)
    assert sorted(record.target for record in page.records) == ["first", *["other"] * 5]
    assert len(await engine.notes(VERIFIED.inbox)) == 2  # those that met were written together


async def test_the_monitor_compacts_the_trail(engine: MemoryEngine, clock: ManualClock) -> None:
    await write(engine, done(clock))
    await Monitor(Client(engine, clock=clock), id="m", clock=clock).check()
    assert not await engine.notes(VERIFIED.inbox)
    assert len(await engine.notes(PREFIX)) == 1


def test_a_record_takes_any_text_and_is_never_too_long() -> None:
    record = new_record(
        at=1.0, actor="cli", who="x" * 1000, action="a", target="\ud800" + "y" * 9000, task_ids=["i"] * 99
    )
    (raw,) = msgspec.json.decode(encode([record]), type=AuditNote).records
    assert msgspec.json.decode(raw, type=AuditRecord) == record
    assert len(record.task_ids) == MAX_TASK_IDS and len(raw) < 3000
