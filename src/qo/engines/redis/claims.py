"""Claims tasks, and waits until a claim may succeed. The tasks of a cancelled claim are released."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from qo.damage import Damage
from qo.engines.hand_backs import HandBacks
from qo.engines.redis.scripts import ScriptRunner
from qo.engines.redis.task_fields import pack, unpack_tasks
from qo.engines.redis.watch import EmptyClaim, RedisWatch
from qo.errors import OutcomeUnknown, StorageError
from qo.ids import new_token
from qo.model import Change, ClaimAllowance, ClaimRequest, Task, in_order, lane_of, release

MAX_BATCH_SIZE = 100  # tasks per script; writing them blocks the server for 1 to 2 ms
_RECALL_DEADLINE = 20.0  # shorter than the lifetime of a claim's receipt
_RECALL_INTERVAL = 0.4

Apply = Callable[[Sequence[Change]], Awaitable[list[bool]]]
SetAside = Callable[[Damage], Awaitable[None]]
# Queues, types, capabilities, whether tasks with a group are requested, and the limits of groups.
_Matching: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], frozenset[str], bool, frozenset[tuple[str, int]]]
_MAX_EMPTY_CLAIMS = 1000  # for which no wait was requested


class RedisClaims:
    def __init__(
        self, scripts: ScriptRunner, watch: RedisWatch, now: Callable[[], str], apply: Apply, set_aside: SetAside
    ) -> None:
        self._scripts, self._watch, self._now, self._apply = scripts, watch, now, apply
        self._set_aside = set_aside
        self._empty_claims: dict[_Matching, EmptyClaim] = {}
        self._hand_backs = HandBacks(apply)
        self._recalls: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def claim(self, request: ClaimRequest) -> list[Task]:
        claimed: list[Task] = []
        left, limits = request.limit, ClaimAllowance(request)
        while left > 0:
            limit = min(left, MAX_BATCH_SIZE)
            try:
                tasks = await self._claim(request, limit, limits)
            except asyncio.CancelledError:
                self._hand_backs.start(claimed)
                raise
            except StorageError:
                if not claimed:
                    raise
                break  # return what is leased already
            claimed += tasks
            if len(tasks) < limit or request.is_repeat:
                break
            left -= limit
            for task in tasks:
                limits.take(task.type, task.stored_needs)
        return claimed

    async def _claim(self, request: ClaimRequest, limit: int, limits: ClaimAllowance) -> list[Task]:
        """Claim again while only damaged tasks are found. Each time, these are set aside."""
        while True:
            notifications = self._watch.notifications
            due_in, rows = await self._run_claim(request, limit, limits)
            tasks, damage = unpack_tasks(rows)
            if damage:
                try:
                    await self._set_aside(damage)
                except BaseException:  # the caller gets none of these tasks
                    self._hand_backs.start(tasks)
                    raise
                if not tasks:
                    continue
            elif not tasks:
                if len(self._empty_claims) >= _MAX_EMPTY_CLAIMS:
                    self._empty_claims.clear()
                self._empty_claims[_matching(request)] = _empty_claim(notifications, due_in)
            if request.is_repeat and tasks:  # the script returns the tasks of a repeated claim in any order
                claimed_at = max(task.updated_at for task in tasks)
                return in_order(tasks, claimed_at, lane_of)
            return tasks

    async def _run_claim(
        self, request: ClaimRequest, limit: int, limits: ClaimAllowance
    ) -> tuple[bytes | None, list[Any]]:
        nonce = new_token()
        per_type_limits, group_limits = limits.limits_left()
        arguments = pack(
            (
                limit,
                request.lease,
                request.worker_id,
                request.lease_id,
                per_type_limits,
                request.is_repeat,
                False,
                request.is_prefetch,
                request.takes_groups,
                request.per_group_limits,
                group_limits,
            )
        )
        try:
            due_in, _, *rows = await self._scripts.run("claim", nonce, self._now(), arguments, _worker(request))
        except (asyncio.CancelledError, OutcomeUnknown):
            self._start_recall(nonce, request)
            raise
        return due_in, rows

    def _start_recall(self, nonce: str, request: ClaimRequest) -> None:
        recall = asyncio.get_running_loop().create_task(self._recall(nonce, request))
        self._recalls.add(recall)
        recall.add_done_callback(self._recalls.discard)

    async def _recall(self, nonce: str, request: ClaimRequest) -> None:
        """Release what a claim without a known answer has leased. An expired lease would count as a failed attempt."""
        arguments = pack((0, request.lease, request.worker_id, request.lease_id, {}, False, True))
        until = asyncio.get_running_loop().time() + _RECALL_DEADLINE
        while not self._is_closing and asyncio.get_running_loop().time() < until:
            try:
                _, _, *rows = await self._scripts.run("claim", nonce, self._now(), arguments, _worker(request))
                await self._apply([release(task, None) for task in unpack_tasks(rows).tasks])
            except StorageError:
                await asyncio.sleep(_RECALL_INTERVAL)  # if no attempt succeeds, the lease expires
            else:
                return

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        empty_claim = self._empty_claims.pop(_matching(request), None)
        if empty_claim is None or not self._watch.is_subscribed:
            await self._watch.subscribe()
            notifications = self._watch.notifications
            groups = request.takes_groups, request.per_group_limits, request.group_limits
            arguments = pack((0, 0.0, "", "", request.per_type_limits, False, False, False, *groups))
            due_in, is_claimable, *rows = await self._scripts.run(
                "claim", new_token(), self._now(), arguments, _worker(request)
            )
            await self._set_aside(unpack_tasks(rows).damage)  # tasks that have become due and cannot be read
            if is_claimable:
                return
            empty_claim = _empty_claim(notifications, due_in)
        await self._watch.sleep(request, empty_claim, timeout)

    async def close(self) -> None:
        self._is_closing = True
        await self._hand_backs.finish()
        if self._recalls:
            await asyncio.wait(self._recalls)
        await self._watch.close()
        self._is_closing = False


def _worker(request: ClaimRequest) -> bytes:
    return _pack_worker(request.queues, request.types, request.capabilities)


@lru_cache(64)
def _pack_worker(queues: tuple[str, ...], types: tuple[str, ...], capabilities: frozenset[str]) -> bytes:
    return pack((queues, types, sorted(capabilities)))


def _matching(request: ClaimRequest) -> _Matching:
    groups = frozenset(request.group_limits.items())
    return request.queues, request.types, request.capabilities, request.takes_groups, groups


def _empty_claim(notifications: int, due_in: bytes | None) -> EmptyClaim:
    due_at = None if due_in is None else asyncio.get_running_loop().time() + float(due_in)
    return EmptyClaim(notifications, due_at)
