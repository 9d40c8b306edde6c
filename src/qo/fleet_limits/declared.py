"""Registers the limits that code declares, so that servers, monitors and users can see them."""

from collections.abc import Mapping

from msgspec.structs import replace

from qo import notes
from qo.engine import Engine
from qo.fleet_limits.rules import DECLARED, DeclaredLimits
from qo.model import Limit

_MAX_DECLARED = 5000  # types; more are not registered


async def declare_limits(engine: Engine, types: Mapping[str, Limit | None], fair: Mapping[str, str | None]) -> None:
    """Store what the code of this worker declares about its types, including that a type no longer has a limit.

    Raises StorageError.
    """
    if not any(types.values()) and not any(fair.values()) and await engine.read_note(DECLARED) is None:
        return

    def declared(before: DeclaredLimits) -> DeclaredLimits:
        kept = {type: limit for type, limit in before.types.items() if type not in types}
        kept_fair = {type: key for type, key in before.fair.items() if type not in fair}
        new = {type: limit for type, limit in types.items() if limit is not None}
        new_fair = {type: key for type, key in fair.items() if key is not None}
        if len(kept) + len(new) > _MAX_DECLARED:
            kept = {}
        return replace(before, types=kept | new, fair=kept_fair | new_fair)

    await notes.change(engine, DECLARED, DeclaredLimits, declared)


async def read_declared(engine: Engine) -> DeclaredLimits:
    return await notes.read_or(engine, DECLARED, DeclaredLimits, DeclaredLimits())
