"""What every engine promises about notes."""

import asyncio

import pytest

from qo.engine import Engine
from qo.errors import Conflict
from qo.model import ANY, NEW


class Notes:
    async def test_notes_are_compared_and_set(self, engine: Engine) -> None:
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

    async def test_one_of_many_racing_writers_of_a_note_wins(self, engine: Engine) -> None:
        async def write(n: int) -> bool:
            try:
                await engine.write_note("leader", b"%d" % n, expected=NEW)
            except Conflict:
                return False
            return True

        assert sum(await asyncio.gather(*(write(n) for n in range(8)))) == 1
