"""The contract of the audit trail: each action is kept once, even if several processes write and merge concurrently."""

import asyncio
import json

import msgspec

from qo.audit import AuditTrail, compact_audit, new_record, read_audit
from qo.audit.archive import PREFIX, UNVERIFIED, VERIFIED
from qo.damage import QUARANTINE
from qo.engine import Engine
from qo.model import ADMIN_NOTES, ANY
from qo.testing.clock import ManualClock
from qo.testing.engine_notes import NotesContract

_DAY = 86_400.0


class AuditContract(NotesContract):
    def audited(self, engine: Engine) -> Engine:
        """The engine that stores the trail. For an engine over HTTP, this is the server's engine."""
        return engine

    async def test_the_trail_loses_no_action_and_shows_each_once(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(_DAY - clock.now % _DAY)
        below = self.audited(engine)
        # With these random numbers, a trail never compacts on its own.
        trails = [AuditTrail(below, clock=clock, random=lambda: 1.0) for _ in range(2)]

        def recording(first: int) -> list[asyncio.Future[None]]:
            records = [
                new_record(at=clock.now + n, actor="token", who="ops", action="replay", target=f"{n}")
                for n in range(first, first + 6)
            ]
            return [asyncio.ensure_future(trails[n % 2].record(record)) for n, record in enumerate(records)]

        async def seen() -> list[str]:
            page = await read_audit(engine, now=clock.now + 60, limit=100)
            return [record.target for record in page.records]

        await asyncio.gather(*recording(0))
        assert await seen() == ["5", "4", "3", "2", "1", "0"]
        await asyncio.gather(compact_audit(below, clock.now), compact_audit(below, clock.now), *recording(6))
        assert await seen() == [str(n) for n in reversed(range(12))]
        await compact_audit(below, clock.now)
        assert await seen() == [str(n) for n in reversed(range(12))]
        assert not await below.notes(VERIFIED.inbox)

        clock.advance(_DAY)
        await trails[0].record(new_record(at=clock.now, actor="cli", who="me@here", action="pause"))
        (new,) = await below.notes(VERIFIED.inbox)
        await trails[1].record(new_record(at=clock.now + 1, actor="cli", who="me@here", action="resume"))
        await self.damage_note(below, new.name)
        today = (await below.notes(PREFIX))[0].name
        page = await read_audit(engine, now=clock.now + 60, limit=1)
        assert ([record.action for record in page.records], page.has_more) == (["resume"], True)
        await self.damage_note(below, today)
        await compact_audit(below, clock.now)
        page = await read_audit(engine, now=clock.now + 60, limit=100)
        assert [record.action for record in page.records] == ["resume"]
        await trails[0].record(new_record(at=clock.now - _DAY, actor="cli", who="me@here", action="late"))
        await compact_audit(below, clock.now)
        page = await read_audit(engine, now=clock.now + 60, limit=100)
        assert [record.action for record in page.records] == ["resume", "late"]
        assert not await below.notes(QUARANTINE)
        aside = [note.name for note in await below.notes(ADMIN_NOTES + QUARANTINE)]
        assert aside == [ADMIN_NOTES + QUARANTINE + name for name in (today, new.name)]

    async def test_a_record_that_cannot_be_read_is_kept_by_every_merge(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        below = self.audited(engine)
        strange = '{"id": "1",  "actor":"robot", "at":1}'  # written by a newer qo with more kinds of actors
        await below.write_note(f"{UNVERIFIED.inbox}1", f'{{"records": [{strange}, 5]}}'.encode(), expected=ANY)
        for n in range(3):
            record = new_record(at=clock.now, actor="page", who="key", action=f"{n}")
            data = json.dumps({"records": [msgspec.to_builtins(record)]}).encode()
            await below.write_note(f"{UNVERIFIED.inbox}2-{n}", data, expected=ANY)
            await compact_audit(below, clock.now)
            page = await read_audit(engine, now=clock.now + 60, limit=10)
            assert (len(page.records), page.unreadable, page.dropped) == (n + 1, 2, 0)
            assert not any(record.verified for record in page.records)
        (day,) = await below.notes(UNVERIFIED.days)
        assert strange.encode() in day.data and not await below.notes(UNVERIFIED.inbox)
