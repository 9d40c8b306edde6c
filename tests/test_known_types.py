"""The note of known types has a limit, and workers live with any number of unknown types."""

import msgspec

from qo import notes
from qo.engines.memory import MemoryEngine
from qo.model import ANY
from qo.notes import MAX_KNOWN_TYPES, KnownTypes, WorkerNote, make_types_known


async def known(engine: MemoryEngine) -> frozenset[str]:
    return (await notes.read(engine, notes.KNOWN_TYPES, KnownTypes)).types


async def test_types_of_registered_workers_are_kept_when_too_many_are_known() -> None:
    engine = MemoryEngine()
    worker = WorkerNote(worker_id="w", started_at=0, last_heartbeat=0, capacity=1, types=("zebra",))
    await engine.write_note(notes.WORKERS + "w", msgspec.json.encode(worker), expected=ANY)
    await make_types_known(engine, ["zebra"])
    await make_types_known(engine, [f"t{n}" for n in range(MAX_KNOWN_TYPES)], only_if_room=True)
    assert await known(engine) == {"zebra"}
    await make_types_known(engine, [f"t{n}" for n in range(MAX_KNOWN_TYPES - 1)], only_if_room=True)
    assert len(await known(engine)) == MAX_KNOWN_TYPES
    await make_types_known(engine, ["handed_out"], only_if_room=True)
    assert "handed_out" not in await known(engine)
    await make_types_known(engine, ["zz_new"])
    assert {"zebra", "zz_new"} <= await known(engine) and len(await known(engine)) == MAX_KNOWN_TYPES


async def test_long_names_fill_the_note_of_known_types_sooner() -> None:
    engine = MemoryEngine()
    await make_types_known(engine, [f"{n:0>255}" for n in range(4000)])
    assert 2000 < len(await known(engine)) < 2100
    note = await engine.read_note(notes.KNOWN_TYPES)
    assert note is not None and len(note.data) < 1024 * 1024
