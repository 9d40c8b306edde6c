"""Leases that ran out: their tasks fail like any other, with back-off, and for good in the end."""

from qo.clock import Clock
from qo.engine import Engine
from qo.ids import luck
from qo.model import EXPIRY_GRACE, Change, Filter, Status, Task, after_expiry, cursor, expire
from qo.sweep.clock_steps import ClockSteps
from qo.transitions import Transitions

PAGE_SIZE = 1000  # tasks in one request


def lease_length(task: Task) -> float:
    """Seconds: a claim or heartbeat is the last write of a running task, and sets its lease from then."""
    return (task.lease_expires_at or 0.0) - task.updated_at


class LeaseExpiry:
    """Ends leases for one monitor or client, which keeps it: it notices when the store's clock is set.

    A lease then lasts as long as it would have: a step ahead ends none early, a step back prolongs none for longer than
    twice its length. `elapsed` is a clock that nobody sets and that stands still while the machine sleeps: its workers
    sleep too, and must have the time to renew their leases.
    """

    def __init__(self, engine: Engine, transitions: Transitions, elapsed: Clock, *, looks_ahead: bool = False) -> None:
        self._engine, self._transitions, self._elapsed = engine, transitions, elapsed
        self._steps = ClockSteps(engine, elapsed)
        # Leases stamped later than now, by task: the version that was seen, and when it was first seen.
        self._stamped_ahead: dict[str, tuple[int, float]] = {}
        self._looks_ahead = looks_ahead  # whether there may be such leases

    async def look(self) -> None:
        """Look at the store's clock. Before leases are ended this is done anyway."""
        if await self._steps.look() < 0:
            self._looks_ahead = True

    def ahead_since(self, instant: float) -> float:
        """Seconds that the store's clock has gained by steps since this instant of its own."""
        return self._steps.ahead_since(instant)

    async def expire(
        self, *, grace: float = EXPIRY_GRACE, timeout: float = 0.0, page_size: int = PAGE_SIZE
    ) -> list[Task]:
        """Take tasks from workers that went silent; the tasks as their workers held them.

        A lease must have been over for `grace` seconds, and its last heartbeat `timeout` seconds ago. The store's clock
        decides both, when it writes.
        """
        await self.look()
        expired: list[Task] = []
        after = ""
        while lost := await self._engine.find(Filter(expired_for=grace), limit=page_size, after=after):
            expired += await self._apply(lost, [self._expire(task, grace, timeout) for task in lost])
            after = cursor(lost[-1])
        if self._looks_ahead:
            lost = await self._silent_since_a_step_back(max(grace, timeout), page_size)
            expired += await self._apply(lost, [after_expiry(task, luck=luck()) for task in lost])
        return expired

    def _expire(self, task: Task, grace: float, timeout: float) -> Change:
        grace = max(grace, timeout - lease_length(task))
        return expire(task, luck=luck(), grace=grace + self._steps.ahead_since(task.updated_at))

    async def _apply(self, lost: list[Task], changes: list[Change]) -> list[Task]:
        answers = await self._engine.apply(changes) if changes else []
        ended = [(task, change) for task, change, done in zip(lost, changes, answers, strict=True) if done]
        for task, change in ended:
            self._transitions.settled(task, change)
        return [task for task, _ in ended]

    async def _silent_since_a_step_back(self, grace: float, page_size: int) -> list[Task]:
        """Tasks stamped later than the store's now, and not renewed for a whole lease and `grace` since first seen."""
        seen, self._stamped_ahead = self._stamped_ahead, {}
        silent: list[Task] = []
        after, where = "", Filter(statuses=(Status.RUNNING,))
        while page := await self._engine.find_without_values(where, limit=page_size, after=after):
            now, elapsed = self._steps.now(), self._elapsed()
            for task in page:
                if task.updated_at <= now + EXPIRY_GRACE:  # stamped by the clock as it is, or its lease is over soon
                    continue
                version, since = seen.get(task.id, (0, 0.0))
                if version != task.version:
                    since = elapsed
                if elapsed - since >= lease_length(task) + grace:
                    silent.append(task)
                self._stamped_ahead[task.id] = task.version, since
            after = cursor(page[-1])
        self._looks_ahead = bool(self._stamped_ahead)  # what is stamped from now on is not ahead
        return silent
