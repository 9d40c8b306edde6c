"""Who comes first: one number, in which waiting makes up for a lower priority."""

from typing import Literal

from qo.errors import InvalidTask
from qo.model.outside import is_a, show

HIGH, MEDIUM, LOW = 0, 6, 9
LEVELS = {"high": HIGH, "medium": MEDIUM, "low": LOW}

AGEING = 200.0  # seconds of waiting worth one level: medium meets new high after 20 min, low meets it after 30
STRICT = 1e9  # what `inf` becomes: no wait in a lifetime bridges a level, and two microseconds still count


def due_at(available_at: float, created_at: float) -> float:
    """The instant a task begins to wait. A task that asks for an instant in the past waits from its creation on."""
    return max(available_at, created_at)


def rank(due_at: float, priority: int, ageing: float) -> float:
    """Lower goes first. `ageing` 0 is first in first out, infinity is strict priority."""
    return due_at + priority * min(ageing, STRICT)


def effective_priority(priority: int, due_at: float, rank: float, now: float) -> int:
    """The level this task competes at after waiting until `now`."""
    if priority == 0 or rank <= due_at or now <= due_at:
        return priority
    ageing = (rank - due_at) / priority
    return max(0, priority - int((now - due_at) / ageing))


LevelWord = Literal["high", "medium", "low"]


def level_word(priority: int) -> LevelWord:
    """The named level a priority belongs to."""
    if priority <= HIGH:
        return "high"
    return "medium" if priority <= MEDIUM else "low"


def level(priority: int | str) -> int:
    """A priority as people write it."""
    if isinstance(priority, str):
        named = LEVELS.get(priority.lower())
        if named is None and len(priority) == 1 and priority in "0123456789":
            return int(priority)
        if named is None:
            raise InvalidTask("priority", f"{priority!r:.80} is not high, medium, low or 0..9")
        return named
    if not is_a(priority, int) or not HIGH <= priority <= LOW:
        raise InvalidTask("priority", f"{show(priority)} is not high, medium, low or 0..9 (0 goes first)")
    return priority
