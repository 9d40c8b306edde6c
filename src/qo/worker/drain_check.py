"""When a worker that drains has nothing left to wait for, and what it leaves behind."""

from collections import Counter

from qo.engine import Engine
from qo.model import Filter, Status, Want
from qo.worker.claiming import Claiming

_MANY = 1000  # waiting tasks looked through for retries


class DrainCheck:
    def __init__(self, engine: Engine, claiming: Claiming) -> None:
        self._engine, self._claiming = engine, claiming

    async def is_over(self, want: Want) -> bool:
        """Nothing was due for `want`; is there also no retry waiting, no task lost by its worker, and none without a
        token? A type that is out of tokens was not asked for.
        """
        pending = Filter(types=want.types, queues=want.queues, statuses=(Status.PENDING,))
        lost = Filter(types=want.types, queues=want.queues, expired_for=0.0)
        if any(task.failures for task in await self._engine.find(pending, limit=_MANY)):
            return False
        if await self._engine.find(lost, limit=1):
            return False
        limited = tuple(set(self._claiming.types) - set(want.types))
        waiting = Filter(types=limited, queues=want.queues, statuses=(Status.PENDING,))
        return not limited or not await self._engine.find(waiting, limit=1)

    async def left(self) -> str:
        """What is left of the queues this worker serves, and why; empty if nothing is."""
        left: Counter[tuple[str, str]] = Counter()
        for lane, number in (await self._engine.count()).items():
            if number > 0 and self._claiming.is_of_its_queues(lane.queue):
                if lane.status is Status.PENDING:
                    left[lane.type, self._claiming.why_not(lane.queue, lane.type)] += number
                elif lane.status is Status.RUNNING:
                    left[lane.type, "running elsewhere"] += number
        return ", ".join(f"{number} {type} ({why})" for (type, why), number in sorted(left.items()))
