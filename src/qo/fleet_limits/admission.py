"""The permission to start a task, now or at a time that its rate allows, and how a refused task is released."""

from msgspec import Struct

from qo.fleet_limits.limit_state import tolerance
from qo.model import Change, Limit, Task, release


class Admission(Struct, frozen=True, kw_only=True):
    """A task that may start, between two instants of the store's clock."""

    start_at: float = float("-inf")
    start_by: float = float("inf")

    @property
    def is_timed(self) -> bool:
        """Whether a rate limit determines the start time."""
        return self.start_by < float("inf")

    def within(self, limit: Limit, start: float | None) -> "Admission | None":
        """The admission under one more limit, which allows `start`; None if the two limits leave no common time."""
        if start is None or not limit.rate:
            return None if start is None else self
        start_at, start_by = max(self.start_at, start), min(self.start_by, start + tolerance(limit))
        return Admission(start_at=start_at, start_by=start_by) if start_at <= start_by else None


AT_ONCE = Admission()


class RefusedStart(Struct, frozen=True, kw_only=True):
    """How a claimed task that may not start is released."""

    delay: float | None = None  # seconds until it is due again; None: it keeps its place
    group: str | None = None  # the group of a task that was submitted without it

    def release(self, task: Task) -> Change:
        return release(task, self.delay, group=self.group)
