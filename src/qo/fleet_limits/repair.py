"""Frees the slots of crashed workers. A worker that needs a slot does this too; a monitor does it for all limits."""

import msgspec
from msgspec.structs import replace

from qo import notes
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote
from qo.fleet_limits.known_limit import ended_holders
from qo.fleet_limits.limit_state import LimitState, attempts, without
from qo.fleet_limits.rules import STATES

_MAX_IDLE = 60.0  # seconds after which past starts of an unused limit are removed


async def repair_limits(engine: Engine, now: float) -> int:
    """Remove the holders whose attempts have ended, and past starts. Returns the number of removed holders.

    Raises StorageError.
    """
    freed = 0
    for note in await engine.notes(STATES):
        try:
            state = notes.decode(note, LimitState)
        except DamagedNote as error:
            notes.report(error)
            continue
        gone = await ended_holders(engine, attempts(state), now)
        is_stale = bool(state.next_at) and max(state.next_at.values()) < now - _MAX_IDLE  # no worker will remove them
        if not gone and not is_stale:
            continue
        state = replace(state, next_at={}) if is_stale else state
        try:
            await engine.write_note(note.name, msgspec.json.encode(without(state, gone)), expected=note.version)
        except Conflict:  # a worker is changing the note and will remove them too
            continue
        freed += len(gone)
    return freed
