"""Applies the fleet limits in one process: narrows its claims, and admits claimed tasks before they start.

Each limit has one note, which is changed by compare-and-set: one write for a batch of tasks, which also removes the
holders of this process whose attempts have ended. A claimed task that is not admitted is released.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.fleet_limits.claim_limits import ClaimLimits
from qo.fleet_limits.fair_turns import FairTurns
from qo.fleet_limits.known_limit import KnownLimit, StoreTimings
from qo.fleet_limits.limit_state import next_start, spacing, tolerance
from qo.fleet_limits.rules import LimitRules, TaskRule
from qo.ids import random_fraction
from qo.model import Change, ClaimRequest, Limit, Task, release

log = logging.getLogger("qo.limits")

_RELEASE_DELAY = 0.02  # seconds; the next claim usually reuses the freed slots
_RETRY_INTERVAL = 0.5  # seconds until a failed write of ended attempts is repeated
_REFUSED_DELAY = 1.0  # seconds until a refused task is due again if claims cannot exclude it


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


class LimitGate:
    """With `starts_at_once`, all admitted tasks of a batch start together, within the tolerance of their times."""

    def __init__(self, engine: Engine, *, clock: Clock, store_time: Clock, starts_at_once: bool = False) -> None:
        self._engine, self._clock, self._now = engine, clock, store_time
        self._timings = StoreTimings(starts_at_once=starts_at_once)
        self._limits: dict[str, KnownLimit] = {}
        self._read_scopes: set[str] = set()  # scopes whose notes were read before the first claim under their limit
        self._claims = ClaimLimits(self._limits, self._known, clock=clock, store_time=store_time, timings=self._timings)
        self._release: asyncio.Task[None] | None = None
        self._delays: dict[str, float] = {}  # by id: seconds, of refused tasks whose release is not stored yet
        self._delayed_until = float("-inf")  # when all tasks that were released with a delay are due again
        self.on_change: Callable[[], None] = lambda: None

    def set_rules(self, rules: LimitRules, fair_types: Collection[str] = ()) -> None:
        self._claims.rules = rules
        self.turns.types = frozenset(fair_types)

    @property
    def _rules(self) -> LimitRules:
        return self._claims.rules

    @property
    def turns(self) -> FairTurns:
        return self._claims.turns

    @property
    def is_idle(self) -> bool:
        """Whether no limit is in force."""
        return self._rules.is_empty

    # --- claims

    def narrow(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request without full queues, types and groups; None if nothing is left."""
        return self._claims.narrow(request)

    @property
    def full_queues(self) -> set[str]:
        """Queues whose tasks may not start now. A request for all queues cannot exclude them."""
        return self._claims.full_queues

    @property
    def is_blocking(self) -> bool:
        """Whether the last request excluded tasks that may start later."""
        return self._claims.is_blocking

    def next_request_in(self, longest: float) -> float:
        """Seconds until another request may include more; at most `longest`."""
        return self._claims.next_request_in(longest)

    async def refresh(self, types: Collection[str] = ()) -> None:
        """Read the notes of limits that have not been read, and reread those that block tasks.

        The number of reads is bounded.

        `types` are those of the next request: a limit for a key concerns tasks of each of them.

        Holders that other workers left behind are removed.
        """
        if self.is_idle:
            return
        by_key = {self._rules.scope_of_groups(type_) for type_ in types if self._rules.is_keyed(type_)}
        for scope in (self._rules.scopes | by_key) - self._read_scopes:
            await self._known(scope).refresh(())
            self._read_scopes.add(scope)
        if not self.is_blocking:
            return
        for known in list(self._limits.values()):
            full = self._claims.full_groups(known)
            if full and self._clock() - known.read_at >= self._timings.refresh_interval:
                await known.refresh(full)

    # --- admission

    async def admit(self, tasks: Sequence[Task]) -> dict[str, Admission]:
        """The tasks that may start, by id. Their slots are stored. Raises StorageError if that is not certain."""
        admitted = {task.id: AT_ONCE for task in tasks}
        if self.is_idle:
            return admitted
        by_scope: dict[str, list[tuple[Task, TaskRule]]] = {}
        for task in tasks:
            for rule in self._rules.of(task):
                by_scope.setdefault(rule.scope, []).append((task, rule))
        earliest = self._earliest(by_scope) if len(by_scope) > 1 else {}
        for scope in sorted(by_scope, key=lambda scope: (-_slowness(by_scope[scope]), scope)):
            wanted = [(task, rule) for task, rule in by_scope[scope] if task.id in admitted]
            starts = await self._known(scope).reserve(wanted, earliest) if wanted else {}
            for task, rule in wanted:
                admission = admitted.pop(task.id).within(rule.limit, starts.get(task.id))
                if admission is None:
                    self._refuse(task)
                else:
                    admitted[task.id] = admission
                    earliest[task.id] = max(admission.start_at, earliest.get(task.id, admission.start_at))
        return admitted

    def _earliest(self, by_scope: Mapping[str, Sequence[tuple[Task, TaskRule]]]) -> dict[str, float]:
        """The earliest start that all limits of a task may allow, so that each limit gives it nearly the same time."""
        now, found = self._now() + self._timings.time_to_write, dict[str, float]()
        for scope, wanted in by_scope.items():
            next_at = self._known(scope).state.next_at
            for task, rule in wanted:
                if rule.limit.rate:
                    at = next_start(next_at, rule.group, rule.limit, now)
                    found[task.id] = max(at, found.get(task.id, at))
        return found

    def _refuse(self, task: Task) -> None:
        """Free the slots that a task got from earlier limits, and record its group as refused."""
        self.ended([task])
        group = self._rules.group(task)
        if group is not None:
            self._claims.refused(task.type, group)

    def refusal(self, task: Task) -> RefusedStart:
        """How a refused task is released. The next claims exclude it while its group is full."""
        group = self._rules.group(task)
        if group is not None and task.group is None:
            return RefusedStart(group=group)
        delay = self._refusal_delay(task, group)
        if delay is not None:
            self._delays[task.id] = delay
        # If the type has no key, its group is the one for turns. If it has a key, workers whose code declares another
        # key may change the group back; the delay keeps them from doing so in a tight loop.
        is_moved = group is not None and group != task.group and self._rules.key(task.type) is not None
        return RefusedStart(delay=delay, group=group if is_moved else None)

    def _refusal_delay(self, task: Task, group: str | None) -> float | None:
        """Seconds until a refused task is due again if claims cannot exclude it; None for other tasks."""
        if group is None and self._rules.key(task.type) is None:
            return None  # the limit of the type or the queue is reached
        if group is not None and group == task.group and not self._claims.is_cut:
            return None
        usual = _REFUSED_DELAY * (0.5 + random_fraction())
        now = self._now()
        starts = [
            next_start(self._known(rule.scope).state.next_at, rule.group, rule.limit, now) - now
            for rule in self._rules.of(task)
            if rule.limit.rate
        ]
        return max(usual, *starts, 0.0)

    @property
    def has_delayed(self) -> bool:
        """Whether tasks that were refused here are still waiting to be due again."""
        return bool(self._delays) or self._clock() < self._delayed_until

    def seconds_until(self, instant: float) -> float:
        """Seconds until an instant of the store's clock; negative if it has passed."""
        return instant - self._now()

    # --- ends

    def ended(self, tasks: Iterable[Task]) -> None:
        """Free the slots of tasks whose outcome is stored, or that were released without running."""
        tasks = list(tasks)
        for task in tasks:
            # The store counts the delay from its write, which has happened now.
            if (delay := self._delays.pop(task.id, None)) is not None:
                self._delayed_until = max(self._delayed_until, self._clock() + delay)
        if self.is_idle:
            return
        has_ended = False
        for task in tasks:
            for rule in self._rules.of(task):
                if rule.limit.concurrency:
                    self._known(rule.scope).ended.add((task.id, task.attempt))
                    has_ended = True
        if has_ended and self._release is None:
            self._release = asyncio.get_running_loop().create_task(self._release_later())

    async def _release_later(self) -> None:
        try:
            while any(known.ended for known in self._limits.values()):
                await asyncio.sleep(_RELEASE_DELAY)
                await self.release()
        finally:
            self._release = None

    async def release(self) -> None:
        """Write the ended attempts that no admission has written yet."""
        for known in list(self._limits.values()):
            if known.ended and not known.lock.locked():
                try:
                    await known.reserve([], {})
                except StorageError as error:
                    log.warning("cannot free slots of %s: %s", known.scope, error)
                    await asyncio.sleep(_RETRY_INTERVAL)
        self.on_change()

    async def close(self) -> None:
        if (releasing := self._release) is not None:
            releasing.cancel()
            await asyncio.wait([releasing])  # until then it may hold the lock of a limit
            self._release = None
        await self.release()

    def _known(self, scope: str) -> KnownLimit:
        if scope not in self._limits:
            self._limits[scope] = KnownLimit(
                self._engine, scope, clock=self._clock, store_time=self._now, timings=self._timings
            )
        return self._limits[scope]


def _slowness(wanted: Iterable[tuple[Task, TaskRule]]) -> float:
    """Seconds between two starts; infinite without a rate, so that no start time is wasted on a task without a slot."""
    return max((spacing(rule.limit) for _, rule in wanted if rule.limit.rate), default=float("inf"))
