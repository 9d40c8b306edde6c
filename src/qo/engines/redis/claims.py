"""Claiming, and waiting until it is worth while. A claim whose caller left hands its tasks back."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any

from qo.damage import Damage
from qo.engines.redis.scripts import ScriptRunner
from qo.engines.redis.task_fields import pack, tasks_of
from qo.engines.redis.watch import EmptyClaim, RedisWatch
from qo.errors import OutcomeUnknown, StorageError
from qo.ids import new_lease_id
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
        self._returning: set[asyncio.Task[None]] = set()  # tasks of claims whose caller left, on their way back
        self._closing = False

    async def claim(self, want: ClaimRequest) -> list[Task]:
        claimed: list[Task] = []
        left, at_most = want.limit, dict(want.at_most)
        while left > 0:
            limit = min(left, CHUNK)
            try:
                tasks = await self._claim(want, limit, at_most)
            except asyncio.CancelledError:
                if claimed:
                    self._see_to(self._give_back(claimed))
                raise
            except StorageError:
                if not claimed:
                    raise
                break  # what was leased before must not be forgotten
            claimed += tasks
            if len(tasks) < limit or want.again:
                break
            left -= limit
            for type_, size in Counter(task.type for task in tasks).items():
                if type_ in at_most:
                    at_most[type_] -= size
        return claimed

    async def _claim(self, want: ClaimRequest, limit: int, at_most: dict[str, int]) -> list[Task]:
        """As often as nothing but damaged tasks is met: each time these are set aside."""
        while (tasks := await self._claim_readable(want, limit, at_most)) is None:
            pass
        return tasks

    async def _claim_readable(self, want: ClaimRequest, limit: int, at_most: dict[str, int]) -> list[Task] | None:
        """None: only damaged tasks came first."""
        nonce, told = new_lease_id(), self._watch.told
        asked = pack((limit, want.lease, want.worker_id, want.lease_id, at_most, want.again, False, want.is_prefetch))
        try:
            due_in, _, *rows = await self._calls.one("claim", nonce, self._now(), asked, _who(want))
        except (asyncio.CancelledError, OutcomeUnknown):
            # Waiting for the lease to expire would count as a failure of the tasks.
            self._see_to(self._recall(nonce, want))
            raise
        tasks, damage = tasks_of(rows)
        if damage:
            try:
                await self._set_aside(damage)
            except BaseException:  # the caller gets nothing of this claim
                self._see_to(self._give_back(tasks))
                raise
            return tasks or None
        if not tasks:
            self._looks[_kind(want)] = _look(told, due_in)
        # What an earlier try got comes in the order of its leases; the last write was at the claim or after it.
        return in_order(tasks, max(task.updated_at for task in tasks), lane_of) if want.again and tasks else tasks

    def _see_to(self, work: Coroutine[Any, Any, None]) -> None:
        returning = asyncio.get_running_loop().create_task(work)
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def _give_back(self, tasks: Sequence[Task]) -> None:
        with contextlib.suppress(StorageError):  # the lease expires then
            await self._apply([release(task, None) for task in tasks])

    async def _recall(self, nonce: str, want: ClaimRequest) -> None:
        asked = pack((0, want.lease, want.worker_id, want.lease_id, {}, False, True))
        until = asyncio.get_running_loop().time() + _RECALL
        while not self._closing and asyncio.get_running_loop().time() < until:
            try:
                _, _, *rows = await self._calls.one("claim", nonce, self._now(), asked, _who(want))
                await self._apply([release(task, None) for task in tasks_of(rows).tasks])
            except StorageError:
                await asyncio.sleep(_PAUSE)  # if this does not end well, the lease expires
            else:
                return

    # --- waiting

    async def wait(self, want: ClaimRequest, timeout: float) -> None:
        look = self._looks.pop(_kind(want), None)
        if look is None or not self._watch.is_listening:
            await self._watch.listen()
            told = self._watch.told
            asked = pack((0, 0.0, "", "", want.at_most, False))
            due_in, claimable, *rows = await self._calls.one("claim", new_lease_id(), self._now(), asked, _who(want))
            await self._set_aside(tasks_of(rows).damage)  # what has become due and cannot be read
            if claimable:
                return
            look = _look(told, due_in)
        await self._watch.sleep(want, look, timeout)

    async def close(self) -> None:
        self._closing = True
        if self._returning:
            await asyncio.wait(self._returning)
        await self._watch.close()
        self._closing = False


def _who(want: ClaimRequest) -> bytes:
    return _pack_who(want.queues, want.types, want.capabilities)


@lru_cache(64)
def _pack_who(queues: tuple[str, ...], types: tuple[str, ...], capabilities: frozenset[str]) -> bytes:
    return pack((queues, types, sorted(capabilities)))


def _kind(want: ClaimRequest) -> object:
    return (want.queues, want.types, want.capabilities)


def _look(told: int, due_in: bytes | None) -> EmptyClaim:
    return EmptyClaim(told, None if due_in is None else asyncio.get_running_loop().time() + float(due_in))
