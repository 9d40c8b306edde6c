"""The order of claims: one number per task, which combines priority and waiting time."""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from qo.errors import InvalidTask
from qo.model.text import is_a, show

HIGH, MEDIUM, LOW = 0, 6, 9
LEVELS = {"high": HIGH, "medium": MEDIUM, "low": LOW}

AGEING = 200.0  # seconds of waiting per level: medium reaches high after 20 min, low after 30 min
STRICT = 1e9  # seconds, for `inf`: longer than any wait, and small enough that a float still resolves 2 µs


class PromotionTimes(Struct, frozen=True, kw_only=True):
    """Seconds until a waiting task is promoted to the next named priority; levels in between are interpolated."""

    low_to_medium: float = (LOW - MEDIUM) * AGEING
    medium_to_high: float = (MEDIUM - HIGH) * AGEING

    def ageing(self, priority: int) -> float:
        """The `ageing` of a task of this priority, so that it ranks as a new high task after both waits."""
        if priority <= MEDIUM:
            return self.medium_to_high / (MEDIUM - HIGH)
        share = (priority - MEDIUM) / (LOW - MEDIUM)
        return (self.medium_to_high + share * self.low_to_medium) / priority


def due_at(available_at: float, created_at: float) -> float:
    """The time from which a task's waiting time counts. For a task scheduled in the past, this is its creation."""
    return max(available_at, created_at)


def rank(due_at: float, priority: int, ageing: float) -> float:
    """Lower goes first. `ageing` 0 is first in first out, infinity is strict priority."""
    return due_at + priority * min(ageing, STRICT)


def effective_rank(rank: float, due_at: float, now: float) -> float:
    """The rank at `now`: a task that waited for `priority * ageing` goes before all tasks that became due later.

    Without ageing, the tasks of a batch that share a `run_at` are ranked just before the time at which they are due.
    """
    return min(rank, due_at) if rank <= now else rank


class Ranked(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def rank(self) -> float: ...
    @property
    def due_at(self) -> float: ...
    @property
    def created_at(self) -> float: ...


Item = TypeVar("Item", bound=Ranked)


def in_order(items: Iterable[Item], now: float, lane: Callable[[Item], Hashable]) -> list[Item]:
    """The order in which tasks are claimed at `now`: by effective rank, but by rank within a lane.

    A lane has one queue, type, set of needs and priority. A store keeps each lane in rank order, which does not change,
    and compares only the first tasks of the lanes. Of equal ranks, the task that was submitted earlier goes first
    (`created_at`). The tasks of a batch have different creation times (`stamps`), so a batch keeps its order. If two
    submissions have the same creation time, their order is constant but undefined.
    """
    highest: dict[Hashable, float] = {}  # effective rank so far, by lane
    ordered = []
    for item in sorted(items, key=lambda item: (item.rank, item.created_at, item.id)):
        name = lane(item)
        effective = effective_rank(item.rank, item.due_at, now)
        highest[name] = max(highest.get(name, effective), effective)
        ordered.append((highest[name], item.rank, item.created_at, item.id, item))
    ordered.sort(key=lambda entry: entry[:4])
    return [item for *_, item in ordered]


def effective_priority(priority: int, due_at: float, rank: float, now: float) -> int:
    """The priority level of a task after waiting until `now`."""
    if priority == 0 or rank <= due_at or now <= due_at:
        return priority
    ageing = (rank - due_at) / priority
    return max(0, priority - int((now - due_at) / ageing))


LevelWord = Literal["high", "medium", "low"]


def level_word(priority: int) -> LevelWord:
    """The named level of a priority."""
    if priority <= HIGH:
        return "high"
    return "medium" if priority <= MEDIUM else "low"


def level(priority: int | str) -> int:
    """The number of a priority given as a name or a number. Raises InvalidTask."""
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
