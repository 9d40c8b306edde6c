"""Fails attempts whose leases have expired: they are retried with back-off, or fail permanently."""

from qo.clock import Clock
from qo.engine import Engine, find_pages
from qo.ids import random_fraction
from qo.model import EXPIRY_GRACE, Change, Filter, Status, Task, after_expiry, expire
from qo.sweep.clock_steps import ClockSteps
from qo.transitions import Transitions

PAGE_SIZE = 1000  # tasks in one request


def lease_length(task: Task) -> float:
    """Seconds. The last write of a running task is a claim or a heartbeat, and its lease counts from then."""
    return (task.lease_expires_at or 0.0) - task.updated_at


class LeaseExpiry:
    """Expires leases for one monitor or client. It keeps state to detect steps of the store's clock.

    A step ahead ends no lease early, and a step back prolongs none beyond twice its length. `elapsed` is a monotonic
    clock that stops while the machine sleeps, because its workers sleep too and then need time to renew their leases.
    """

    def __init__(self, engine: Engine, transitions: Transitions, elapsed: Clock, *, checks_ahead: bool = False) -> None:
        self._engine, self._transitions, self._elapsed = engine, transitions, elapsed
        self._steps = ClockSteps(engine, elapsed)
        # Leases that start in the future, by task: the task's version, and when this version was first seen.
        self._stamped_ahead: dict[str, tuple[int, float]] = {}
        self._checks_ahead = checks_ahead  # whether such leases may exist

    async def update_clock(self) -> None:
        """Read the store's clock, to detect steps. `expire` does so too."""
        if await self._steps.update() < 0:
            self._checks_ahead = True

    def ahead_since(self, instant: float) -> float:
        """Seconds by which steps have set the store's clock ahead since this instant of it."""
        return self._steps.ahead_since(instant)

    async def expire(
        self, *, grace: float = EXPIRY_GRACE, timeout: float = 0.0, page_size: int = PAGE_SIZE
    ) -> list[Task]:
        """Expire the leases of silent workers. Returns the tasks as they were before. Raises StorageError.

        A lease must have expired `grace` seconds ago, and its last heartbeat must be `timeout` seconds old. The store
        checks both by its clock when it writes.
        """
        await self.update_clock()
        expired: list[Task] = []
        async for lost in find_pages(self._engine, Filter(expired_for=grace), page_size=page_size):
            expired += await self._apply(lost, [self._expire(task, grace, timeout) for task in lost])
        if self._checks_ahead:
            lost = await self._silent_since_a_step_back(max(grace, timeout), page_size)
            expired += await self._apply(lost, [after_expiry(task, random=random_fraction()) for task in lost])
        return expired

    def _expire(self, task: Task, grace: float, timeout: float) -> Change:
        grace = max(grace, timeout - lease_length(task))
        return expire(task, random=random_fraction(), grace=grace + self._steps.ahead_since(task.updated_at))

    async def _apply(self, lost: list[Task], changes: list[Change]) -> list[Task]:
        answers = await self._engine.apply(changes) if changes else []
        ended = [(task, change) for task, change, done in zip(lost, changes, answers, strict=True) if done]
        for task, change in ended:
            self._transitions.settled(task, change)
        return [task for task, _ in ended]

    async def _silent_since_a_step_back(self, grace: float, page_size: int) -> list[Task]:
        """Tasks whose lease starts in the future and that were not renewed for a lease and `grace` since first seen."""
        seen, self._stamped_ahead = self._stamped_ahead, {}
        silent: list[Task] = []
        async for page in find_pages(self._engine, Filter(statuses=(Status.RUNNING,)), page_size=page_size):
            now, elapsed = self._steps.now(), self._elapsed()
            for task in page:
                if task.updated_at <= now + EXPIRY_GRACE:  # written after the step, or its lease expires soon
                    continue
                version, since = seen.get(task.id, (0, 0.0))
                if version != task.version:
                    since = elapsed
                if elapsed - since >= lease_length(task) + grace:
                    silent.append(task)
                self._stamped_ahead[task.id] = task.version, since
        self._checks_ahead = bool(self._stamped_ahead)  # leases written from now on start at the present
        return silent
