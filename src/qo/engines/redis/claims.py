"""Claiming, and waiting until it is worth while. A claim whose caller left hands its tasks back."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any

from qo.damage import Damage
from qo.engines.hand_backs import HandBacks
from qo.engines.redis.scripts import ScriptRunner
from qo.engines.redis.task_fields import pack, tasks_of
from qo.engines.redis.watch import EmptyClaim, RedisWatch
from qo.errors import OutcomeUnknown, StorageError
from qo.ids import new_token
from qo.model import Change, ClaimRequest, Task, in_order, lane_of, release

CHUNK = 100  # tasks a script writes: a millisecond or two during which the server serves nobody else
_RECALL = 20.0  # seconds to ask for the tasks of a claim whose caller left; its receipt is kept for longer
_PAUSE = 0.4  # seconds between two tries

Apply = Callable[[Sequence[Change]], Awaitable[list[bool]]]
SetAside = Callable[[Damage], Awaitable[None]]


class RedisClaims:
    def __init__(
        self, calls: ScriptRunner, watch: RedisWatch, now: Callable[[], str], apply: Apply, set_aside: SetAside
    ) -> None:
        self._calls, self._watch, self._now, self._apply = calls, watch, now, apply
        self._set_aside = set_aside
        self._looks: dict[object, EmptyClaim] = {}
        self._hand_backs = HandBacks(apply)
        self._returning: set[asyncio.Task[None]] = set()  # tasks of claims without an answer, on their way back
        self._closing = False

    async def claim(self, request: ClaimRequest) -> list[Task]:
        claimed: list[Task] = []
        left, per_type_limits = request.limit, dict(request.per_type_limits)
        while left > 0:
            limit = min(left, CHUNK)
            try:
                tasks = await self._claim(request, limit, per_type_limits)
            except asyncio.CancelledError:
                self._hand_backs.start(claimed)
                raise
            except StorageError:
                if not claimed:
                    raise
                break  # what was leased before must not be forgotten
            claimed += tasks
            if len(tasks) < limit or request.is_repeat:
                break
            left -= limit
            for type_, size in Counter(task.type for task in tasks).items():
                if type_ in per_type_limits:
                    per_type_limits[type_] -= size
        return claimed

    async def _claim(self, request: ClaimRequest, limit: int, per_type_limits: dict[str, int]) -> list[Task]:
        """As often as nothing but damaged tasks is met: each time these are set aside."""
        while (tasks := await self._claim_readable(request, limit, per_type_limits)) is None:
            pass
        return tasks

    async def _claim_readable(
        self, request: ClaimRequest, limit: int, per_type_limits: dict[str, int]
    ) -> list[Task] | None:
        """None: only damaged tasks came first."""
        nonce, told = new_token(), self._watch.told
        asked = pack(
            (
                limit,
                request.lease,
                request.worker_id,
                request.lease_id,
                per_type_limits,
                request.is_repeat,
                False,
                request.is_prefetch,
            )
        )
        try:
            due_in, _, *rows = await self._calls.one("claim", nonce, self._now(), asked, _who(request))
        except (asyncio.CancelledError, OutcomeUnknown):
            # Waiting for the lease to expire would count as a failure of the tasks.
            self._see_to(self._recall(nonce, request))
            raise
        tasks, damage = tasks_of(rows)
        if damage:
            try:
                await self._set_aside(damage)
            except BaseException:  # the caller gets nothing of this claim
                self._hand_backs.start(tasks)
                raise
            return tasks or None
        if not tasks:
            self._looks[_kind(request)] = _look(told, due_in)
        # What an earlier try got comes in the order of its leases; the last write was at the claim or after it.
        return (
            in_order(tasks, max(task.updated_at for task in tasks), lane_of) if request.is_repeat and tasks else tasks
        )

    def _see_to(self, work: Coroutine[Any, Any, None]) -> None:
        returning = asyncio.get_running_loop().create_task(work)
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def _recall(self, nonce: str, request: ClaimRequest) -> None:
        asked = pack((0, request.lease, request.worker_id, request.lease_id, {}, False, True))
        until = asyncio.get_running_loop().time() + _RECALL
        while not self._closing and asyncio.get_running_loop().time() < until:
            try:
                _, _, *rows = await self._calls.one("claim", nonce, self._now(), asked, _who(request))
                await self._apply([release(task, None) for task in tasks_of(rows).tasks])
            except StorageError:
                await asyncio.sleep(_PAUSE)  # if this does not end well, the lease expires
            else:
                return

    # --- waiting

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        look = self._looks.pop(_kind(request), None)
        if look is None or not self._watch.is_listening:
            await self._watch.listen()
            told = self._watch.told
            asked = pack((0, 0.0, "", "", request.per_type_limits, False))
            due_in, claimable, *rows = await self._calls.one("claim", new_token(), self._now(), asked, _who(request))
            await self._set_aside(tasks_of(rows).damage)  # what has become due and cannot be read
            if claimable:
                return
            look = _look(told, due_in)
        await self._watch.sleep(request, look, timeout)

    async def close(self) -> None:
        self._closing = True
        await self._hand_backs.finish()
        if self._returning:
            await asyncio.wait(self._returning)
        await self._watch.close()
        self._closing = False


def _who(request: ClaimRequest) -> bytes:
    return _pack_who(request.queues, request.types, request.capabilities)


@lru_cache(64)
def _pack_who(queues: tuple[str, ...], types: tuple[str, ...], capabilities: frozenset[str]) -> bytes:
    return pack((queues, types, sorted(capabilities)))


def _kind(request: ClaimRequest) -> object:
    return (request.queues, request.types, request.capabilities)


def _look(told: int, due_in: bytes | None) -> EmptyClaim:
    return EmptyClaim(told, None if due_in is None else asyncio.get_running_loop().time() + float(due_in))
