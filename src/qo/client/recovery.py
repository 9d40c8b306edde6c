"""Leases that ran out: their tasks fail like any other, with back-off, and for good in the end."""

from qo.client.handles import lease_length
from qo.engine import Engine
from qo.ids import luck
from qo.model import EXPIRY_GRACE, Filter, Task, cursor, expire
from qo.transitions import Transitions

PAGE_SIZE = 1000  # tasks in one request


async def expire_leases(
    engine: Engine,
    transitions: Transitions,
    *,
    grace: float = EXPIRY_GRACE,
    timeout: float = 0.0,
    page_size: int = PAGE_SIZE,
) -> list[Task]:
    """Take tasks from workers that went silent; the tasks as their workers held them.

    A lease must have been over for `grace` seconds, and its last heartbeat `timeout` seconds ago. The store's clock
    decides both, when it writes.
    """
    expired: list[Task] = []
    after = ""
    while lost := await engine.find(Filter(expired_for=grace), limit=page_size, after=after):
        changes = [expire(task, luck=luck(), grace=max(grace, timeout - lease_length(task))) for task in lost]
        answers = await engine.apply(changes)
        for task, change, done in zip(lost, changes, answers, strict=True):
            if done:
                transitions.settled(task, change)
                expired.append(task)
        after = cursor(lost[-1])
    return expired
