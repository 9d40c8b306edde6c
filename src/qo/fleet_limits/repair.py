"""Frees the slots that crashed workers left. A worker that needs one does it too; a monitor does it for all limits."""

import msgspec

from qo import notes
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote
from qo.fleet_limits.known_limit import ended_holders
from qo.fleet_limits.limit_state import LimitState, attempts, without
from qo.fleet_limits.rules import STATES


async def repair_limits(engine: Engine, now: float) -> int:
    """Remove the holders whose attempts are over. Returns how many. Raises StorageError."""
    freed = 0
    for note in await engine.notes(STATES):
        try:
            state = notes.decode(note, LimitState)
        except DamagedNote as error:
            notes.report(error)
            continue
        gone = await ended_holders(engine, attempts(state), now)
        if not gone:
            continue
        try:
            await engine.write_note(note.name, msgspec.json.encode(without(state, gone)), expected=note.version)
        except Conflict:  # a worker changes it, and will find them too
            continue
        freed += len(gone)
    return freed
