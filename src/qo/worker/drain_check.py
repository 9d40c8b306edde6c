"""Decides when a draining worker is done, and describes the tasks it leaves."""

from collections import Counter

from msgspec.structs import replace

from qo.clock import Clock
from qo.engine import Engine
from qo.model import ClaimRequest, Filter, Status
from qo.notes import unhandled_lanes, workers
from qo.worker.claim_plan import ClaimPlan


class DrainCheck:
    def __init__(self, engine: Engine, claiming: ClaimPlan, clock: Clock, shards: tuple[str, ...] = ()) -> None:
        self._engine, self._claim_plan, self._clock, self._shards = engine, claiming, clock, shards

    async def is_over(self, request: ClaimRequest) -> bool:
        """Whether nothing is left to wait for after a claim for `request` returned no task.

        The worker waits for pending retries, for tasks with expired leases, and for tasks of types that `request` omits
        because they are out of tokens.
        """
        ours = Filter(types=request.types, queues=request.queues, shards=self._shards)
        if await self._engine.find(replace(ours, statuses=(Status.PENDING,), retrying=True), limit=1):
            return False
        if await self._engine.find(replace(ours, expired_for=0.0), limit=1):
            return False
        limited = tuple(set(self._claim_plan.types) - set(request.types))
        waiting = replace(ours, types=limited, statuses=(Status.PENDING,))
        return not limited or not await self._engine.find(waiting, limit=1)

    async def left(self) -> str:
        """The tasks left in this worker's queues and the reasons, as text; empty if there are none."""
        left: Counter[tuple[str, str]] = Counter()
        counts = await self._engine.count()
        unhandled = unhandled_lanes(counts, await workers(self._engine), self._clock()) if any(counts.values()) else {}
        for lane, number in counts.items():
            if number > 0 and self._claim_plan.serves_queue(lane.queue):
                if lane.status is Status.PENDING:
                    is_handled = (lane.queue, lane.type) not in unhandled
                    left[lane.type, self._claim_plan.why_not(lane.queue, lane.type, is_handled=is_handled)] += number
                elif lane.status is Status.RUNNING:
                    left[lane.type, "running elsewhere"] += number
        return ", ".join(f"{number} {type} ({why})" for (type, why), number in sorted(left.items()))
