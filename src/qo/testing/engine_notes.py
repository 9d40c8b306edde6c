"""The contract of notes."""

import asyncio

import msgspec
import pytest

from qo import notes
from qo.client import Client
from qo.damage import QUARANTINE
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote
from qo.model import ANY, NEW, Status
from qo.monitor import Monitor
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_one, new, stored


class NotesContract:
    async def damage_note(self, engine: Engine, name: str) -> None:
        """Damage a stored note. An engine that stores notes in its own documents overrides this and damages one."""
        await engine.write_note(name, b'{"half": ', expected=ANY)

    async def test_notes_are_written_by_compare_and_set(self, engine: Engine) -> None:
        assert await engine.read_note("switch") is None
        first = await engine.write_note("switch", b"\x00on", expected=NEW)
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"off", expected=NEW)
        second = await engine.write_note("switch", b"off", expected=first)
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"stale", expected=first)
        assert await engine.read_note("switch") == ("switch", b"off", second)
        third = await engine.write_note("switch", b"off", expected=ANY)
        assert len({first, second, third}) == 3
        await engine.drop_note("switch")
        await engine.drop_note("switch")
        assert await engine.read_note("switch") is None
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"x", expected=third)
        assert await engine.write_note("switch", b"x", expected=NEW) not in {first, second, third}

    async def test_notes_are_listed_by_prefix(self, engine: Engine) -> None:
        for name in ("workers/b", "workers/a:1", "workers_other", "control", "rooms/a:1"):
            await engine.write_note(name, name.encode(), expected=ANY)
        assert [note.name for note in await engine.notes("workers/")] == ["workers/a:1", "workers/b"]
        assert [note.name for note in await engine.notes("rooms/a:")] == ["rooms/a:1"]
        assert [note.data for note in await engine.notes("control")] == [b"control"]

    async def test_notes_of_administrators_are_notes_like_any_other(self, engine: Engine) -> None:
        """Even if the store keeps them in another place."""
        for name in ("admin/b/1", "admin/a", "admired", "control"):
            await engine.write_note(name, name.encode(), expected=NEW)
        with pytest.raises(Conflict):
            await engine.write_note("admin/a", b"again", expected=NEW)
        assert [note.name for note in await engine.notes("admin/")] == ["admin/a", "admin/b/1"]
        assert [note.name for note in await engine.notes("admin/b")] == ["admin/b/1"]
        assert [note.name for note in await engine.notes("adm")] == ["admin/a", "admin/b/1", "admired"]
        found = await engine.read_note("admin/a")
        assert found is not None and found.data == b"admin/a"
        assert await engine.write_note("admin/a", b"new", expected=found.version) != found.version
        await engine.drop_note("admin/a")
        assert await engine.read_note("admin/a") is None
        assert [note.name for note in await engine.notes("admin/")] == ["admin/b/1"]

    async def test_exactly_one_of_several_concurrent_writers_of_a_note_wins(self, engine: Engine) -> None:
        async def write(n: int) -> bool:
            try:
                await engine.write_note("leader", b"%d" % n, expected=NEW)
            except Conflict:
                return False
            return True

        assert sum(await asyncio.gather(*(write(n) for n in range(8)))) == 1

    async def test_a_damaged_note_affects_nothing_else(self, engine: Engine, clock: ManualClock) -> None:
        for name in ("a", "b"):
            note = notes.WorkerNote(worker_id=name, started_at=0, last_heartbeat=clock.now, capacity=1)
            await engine.write_note(notes.WORKERS + name, msgspec.json.encode(note), expected=ANY)
        for name in (notes.LEADER, notes.CONTROL, notes.KNOWN_TYPES, notes.WORKERS + "b"):
            await engine.write_note(name, b"{}", expected=ANY)
            await self.damage_note(engine, name)
        await engine.add([new(type="there")])
        await claim_one(engine, lease=30.0)
        clock.advance(50)

        queue = Client(engine, clock=clock)
        assert [worker.worker_id for worker in await queue.workers()] == ["a"]
        check = await Monitor(queue, id="m", clock=clock).check()
        assert (check.led, check.expired) == (True, 1)
        assert (await stored(engine)).status is Status.PENDING
        assert [worker.worker_id for worker in await queue.workers()] == ["a"]
        assert await queue.controls.in_force() == notes.Controls()
        with pytest.raises(DamagedNote, match="control"):
            await queue.controls.read()
        assert (await queue.controls.pause()).paused
        assert (await queue.controls.read()).paused
        known = await notes.make_types_known(engine, ["mine"])
        assert known.types == {"mine", "there"}  # without `there`, its tasks could be failed as unknown
        aside = await engine.notes(QUARANTINE)
        assert [note.name for note in aside] == [
            "quarantine/control",
            "quarantine/monitor",
            "quarantine/types",
            "quarantine/workers/b",
        ]
        assert all(note.data for note in aside)
