"""Claims from a log of several shards: from the process's own shards first, then from those of other processes.

The tasks of its own shards are leased in order across these shards. Across shards of different processes the order is
approximate: a busy process checks a foreign shard every two seconds, and claims there if its tasks have been waiting
longer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from qo.clock import Clock
from qo.engines.polling import PollResult
from qo.engines.replicated_log.claim_shares import ClaimCandidate, ClaimShare, divide
from qo.engines.replicated_log.log_shard import LogShard
from qo.engines.replicated_log.record_batches import write_each
from qo.engines.replicated_log.shard_owners import ShardOwners
from qo.engines.requests import in_parallel
from qo.model import ClaimRequest, Task, in_order, lane_of

_VISIT_INTERVAL = 2.0  # seconds between checks of foreign shards while the process's own shards have tasks
_MAX_LEAD = 5.0  # seconds that the tasks of a foreign shard may wait longer than those of its own shards
_MAX_LEASES = 1_000  # claims whose shards are recorded
_MAX_LOOKS = 16  # foreign shards that are read at the same time


class ShardClaims:
    def __init__(self, shards: Sequence[LogShard], owners: ShardOwners, clock: Clock) -> None:
        self._shards, self._owners, self._clock = shards, owners, clock
        self._leases = OrderedDict[str, set[int]]()
        self._next_foreign = int(owners.process, 16)  # each process starts at another shard
        self._visited_at: float | None = None

    async def claim(self, request: ClaimRequest) -> list[Task]:
        if request.is_repeat and (leased := await self._leased_under(request.lease_id)):
            return leased
        own = await self._owners.own()
        if request.limit < 1:
            return []
        claimed = await self._visit(own, request) or await self._claim_from(own, request)
        return claimed or await self._steal(self._foreign(own), request)

    async def poll(self, request: ClaimRequest) -> PollResult:
        """Poll the process's own shards, and some of the others."""
        own = await self._owners.own()
        foreign = self._foreign(own)[: max(1, len(own) // 2)]
        self._next_foreign += len(foreign)
        one = replace(request, limit=1)
        results = await in_parallel(lambda shard: self._shards[shard].poll(one, is_exact=True), [*own, *foreign])
        due = [result.next_at for result in results[: len(own)] if result.next_at is not None]
        return PollResult(any(result.found for result in results), min(due, default=None))

    def _foreign(self, own: Sequence[int]) -> list[int]:
        """The shards of other processes, starting with a different one each time."""
        others = sorted({*range(len(self._shards))}.difference(own))
        start = self._next_foreign % len(others) if others else 0
        return others[start:] + others[:start]

    # --- the own shards

    async def _claim_from(self, own: Sequence[int], request: ClaimRequest) -> list[Task]:
        if len(own) == 1:
            return await self._claim_in(own[0], request)
        for is_fresh in (False, True):
            now = self._clock()
            candidates = await self._candidates(own, request, now, is_fresh=is_fresh)
            if claimed := await self._claim(divide(request, candidates, now)):
                return claimed
        return []

    async def _candidates(
        self, numbers: Sequence[int], request: ClaimRequest, now: float, *, is_fresh: bool
    ) -> dict[int, list[ClaimCandidate]]:
        found = await in_parallel(
            lambda number: self._shards[number].candidates(request, now, is_fresh=is_fresh),
            numbers,
            max_concurrent=_MAX_LOOKS,
        )
        return dict(zip(numbers, found, strict=True))

    async def _claim(self, shares: Mapping[int, ClaimShare]) -> list[Task]:
        for number, share in shares.items():
            self._note_lease(share.request.lease_id, number)
        claimed = await write_each(shares, lambda number, share: self._shards[number].claim_share(share))
        return in_order([task for some in claimed.values() for task in some], self._clock(), lane_of)

    async def _claim_in(self, number: int, request: ClaimRequest) -> list[Task]:
        self._note_lease(request.lease_id, number)
        return await self._shards[number].claim(request)

    def _note_lease(self, lease_id: str, number: int) -> None:
        self._leases.setdefault(lease_id, set()).add(number)
        while len(self._leases) > _MAX_LEASES:
            self._leases.popitem(last=False)

    async def _leased_under(self, lease_id: str) -> list[Task]:
        numbers = sorted(self._leases.get(lease_id, range(len(self._shards))))
        found = await in_parallel(lambda number: self._shards[number].leased_under(lease_id), numbers)
        return in_order([task for tasks in found for task in tasks], self._clock(), lane_of)

    # --- the shards of others

    async def _steal(self, foreign: Sequence[int], request: ClaimRequest) -> list[Task]:
        """Claim from the first foreign shard that has tasks. None has any if this returns nothing."""
        for at in range(0, len(foreign), _MAX_LOOKS):
            some = foreign[at : at + _MAX_LOOKS]
            candidates = await self._candidates(some, request, self._clock(), is_fresh=True)
            for number in some:
                if candidates[number] and (claimed := await self._claim_in(number, request)):
                    self._next_foreign = sorted(foreign).index(number)
                    return claimed
        return []

    async def _visit(self, own: Sequence[int], request: ClaimRequest) -> list[Task]:
        """Claim from a foreign shard whose tasks have waited much longer than those of its own shards.

        Its owner may have exited, may not keep up, or may not run tasks of their type.
        """
        instant = asyncio.get_running_loop().time()
        if self._visited_at is None:
            self._visited_at = instant
        if instant - self._visited_at < _VISIT_INTERVAL or not (foreign := self._foreign(own)[:1]):
            return []
        one, now = replace(request, limit=1), self._clock()
        theirs = await self._candidates(foreign, one, now, is_fresh=True)
        ours = await self._candidates(own, one, now, is_fresh=False)
        if _first_due(theirs) < _first_due(ours) - _MAX_LEAD:  # the next claim checks this shard again
            return await self._claim_in(foreign[0], request)
        self._visited_at, self._next_foreign = instant, self._next_foreign + 1
        return []


def _first_due(candidates: Mapping[int, Sequence[ClaimCandidate]]) -> float:
    return min((task.due_at for tasks in candidates.values() for task in tasks), default=float("inf"))
