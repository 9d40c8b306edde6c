"""What every engine keeps of the audit trail: each action once, whoever writes and merges at the same time."""

import asyncio

from qo.audit import AuditTrail, compact_audit, new_record, read_audit
from qo.audit.archive import INBOX, PREFIX
from qo.damage import QUARANTINE
from qo.engine import Engine
from qo.model import ADMIN_NOTES
from qo.testing.clock import ManualClock
from qo.testing.engine_notes import Notes

_DAY = 86_400.0


class AuditContract(Notes):
    def audited(self, engine: Engine) -> Engine:
        """Where the trail of this engine is written. Of an engine behind a server: the server's own."""
        return engine

    async def test_the_trail_loses_no_action_and_shows_each_once(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(_DAY - clock.now % _DAY)
        below = self.audited(engine)
        trails = [
            AuditTrail(below, clock=clock, luck=lambda: 1.0) for _ in range(2)
        ]  # they never compact by themselves

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
        assert not await below.notes(INBOX)

        clock.advance(_DAY)
        await trails[0].record(new_record(at=clock.now, actor="cli", who="me@here", action="pause"))
        (new,) = await below.notes(INBOX)
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
        aside = [*await below.notes(QUARANTINE), *await below.notes(ADMIN_NOTES + QUARANTINE)]
        assert [note.name for note in aside] == [QUARANTINE + new.name, ADMIN_NOTES + QUARANTINE + today]
