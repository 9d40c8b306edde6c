"""Who comes first: one number, in which waiting makes up for a lower priority."""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from qo.errors import InvalidTask
from qo.model.text import is_a, show

HIGH, MEDIUM, LOW = 0, 6, 9
LEVELS = {"high": HIGH, "medium": MEDIUM, "low": LOW}

AGEING = 200.0  # seconds of waiting worth one level: medium meets new high after 20 min, low meets it after 30
STRICT = 1e9  # what `inf` becomes: no wait in a lifetime bridges a level, and two microseconds still count


class PromotionTimes(Struct, frozen=True, kw_only=True):
    """Seconds a task waits until it has the priority above its own; levels between the named ones in proportion."""

    low_to_medium: float = (LOW - MEDIUM) * AGEING
    medium_to_high: float = (MEDIUM - HIGH) * AGEING

    def ageing(self, priority: int) -> float:
        """The `ageing` of a task of this priority: its rank is that of a new high task after both waits."""
        if priority <= MEDIUM:
            return self.medium_to_high / (MEDIUM - HIGH)
        share = (priority - MEDIUM) / (LOW - MEDIUM)
        return (self.medium_to_high + share * self.low_to_medium) / priority


def due_at(available_at: float, created_at: float) -> float:
    """The instant a task begins to wait. A task that asks for an instant in the past waits from its creation on."""
    return max(available_at, created_at)


def rank(due_at: float, priority: int, ageing: float) -> float:
    """Lower goes first. `ageing` 0 is first in first out, infinity is strict priority."""
    return due_at + priority * min(ageing, STRICT)


def effective_rank(rank: float, due_at: float, now: float) -> float:
    """The rank at `now`: a task that has waited for `priority * ageing` goes before all that became due after it."""
    return due_at if rank <= now else rank


class Ranked(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def rank(self) -> float: ...
    @property
    def due_at(self) -> float: ...


Item = TypeVar("Item", bound=Ranked)


def in_order(items: Iterable[Item], now: float, lane: Callable[[Item], Hashable]) -> list[Item]:
    """The order in which they are claimed at `now`: by effective rank, but nothing overtakes its own lane.

    A lane holds one queue, type, set of needs and priority. A store keeps each lane in the constant order of its ranks,
    and compares the lanes' heads.
    """
    reached: dict[Hashable, float] = {}  # by lane, the highest effective rank so far
    ordered = []
    for item in sorted(items, key=lambda item: (item.rank, item.id)):
        name = lane(item)
        reached[name] = max(reached.get(name, item.due_at), effective_rank(item.rank, item.due_at, now))
        ordered.append((reached[name], item.rank, item.id, item))
    ordered.sort(key=lambda entry: entry[:3])
    return [item for *_, item in ordered]


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
            raise InvalidTask("priority", f"{priority!r:.80} is not high, medium, low or 0..9 (0 goes first)")
        return named
    if not is_a(priority, int) or not HIGH <= priority <= LOW:
        problem = "is not high, medium, low or 0..9 (0 goes first); map a wider scale to these ten levels"
        raise InvalidTask("priority", f"{show(priority)} {problem}")
    return priority
