"""Narrows claim requests to what the fleet limits allow, according to the state that this process last read."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from qo.clock import Clock
from qo.fleet_limits.fair_turns import FairTurns
from qo.fleet_limits.known_limit import KnownLimit, StoreTimings
from qo.fleet_limits.limit_state import LimitState, next_start, slots_left, starts_left
from qo.fleet_limits.rules import NO_GROUP, QUEUE, TYPE, LimitRules, type_of_scope
from qo.model import MAX_NAMES, ClaimRequest, Limit, group_key

_EMPTY = LimitState()
_MIN_WAIT = 0.01  # seconds until the next request for a group whose rate is used up


class ClaimLimits:
    """One per process.

    `known` returns the state of a scope; `limits` contains every limit that this process has used.
    """

    def __init__(
        self,
        limits: Mapping[str, KnownLimit],
        known: Callable[[str], KnownLimit],
        *,
        clock: Clock,
        store_time: Clock,
        timings: StoreTimings,
    ) -> None:
        self._limits, self._known = limits, known
        self._clock, self._now, self._timings = clock, store_time, timings
        self.rules = LimitRules({}, {})
        self.turns = FairTurns(clock)
        self._refused: dict[str, tuple[str, str]] = {}  # type and group by `group_key`, those refused last at the end
        self._blocked_until = float("inf")  # when the last request should be rebuilt
        self.is_cut = False  # more groups may be full than one claim can exclude

    def narrow(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request without full queues, types and groups; None if nothing is left."""
        self._blocked_until = float("inf")
        per_group, groups = self.turns.limits(request.limit)
        if self.rules.is_empty:
            return replace(request, takes_groups=True, per_group_limits=per_group, group_limits=groups)
        per_type = dict(request.per_type_limits)
        for type_, rule in self.rules.types.items():
            if rule.key is None:
                _lower(per_type, type_, self._left(self._known(TYPE + type_).current(), NO_GROUP, rule))
            else:
                _lower(per_group, type_, self._left(_EMPTY, NO_GROUP, rule))
        self._limit_groups(groups)
        full_queues = self.full_queues
        types = tuple(type_ for type_ in request.types if per_type.get(type_, 1) > 0)
        queues = tuple(queue for queue in request.queues if queue not in full_queues)
        if (request.types and not types) or (request.queues and not queues):
            return None
        return replace(
            request,
            types=types,
            queues=queues,
            limit=self._limit_of_queues(request),
            per_type_limits={type_: most for type_, most in per_type.items() if type_ in types or not types},
            takes_groups=True,
            per_group_limits=per_group,
            group_limits=_most_restrictive(groups, self._refused),
        )

    def _limit_of_queues(self, request: ClaimRequest) -> int:
        """The limit of the request; a claim has no limits for queues."""
        limit = request.limit
        for queue, rule in self.rules.queues.items():
            left = self._left(self._known(QUEUE + queue).current(), NO_GROUP, rule)
            if left and (not request.queues or queue in request.queues):
                limit = min(limit, left)
        return limit

    @property
    def full_queues(self) -> set[str]:
        """Queues whose tasks may not start now. A request for all queues cannot exclude them."""
        return {
            queue
            for queue, rule in self.rules.queues.items()
            if self._left(self._known(QUEUE + queue).current(), NO_GROUP, rule) == 0
        }

    @property
    def is_blocking(self) -> bool:
        """Whether the last request excluded tasks that may start later."""
        return self._blocked_until < float("inf")

    def next_request_in(self, longest: float) -> float:
        """Seconds until another request may include more; at most `longest`."""
        return max(0.005, min(longest, self._blocked_until - self._clock()))

    def refused(self, type: str, group: str) -> None:
        """Record the group of a task that was claimed and refused.

        The next requests exclude the group while it is full.
        """
        key = group_key(type, group)
        self._refused.pop(key, None)
        self._refused[key] = type, group
        if len(self._refused) > MAX_NAMES:
            del self._refused[next(iter(self._refused))]

    def full_groups(self, known: KnownLimit) -> list[str]:
        """The groups of a limit that have no free slot."""
        found, state = [], known.current()
        for group in state.holders:
            rule = self.rules.of_scope(known.scope, group)
            if rule is not None and slots_left(state, group, rule) == 0:
                found.append(group)
        return found

    def _limit_groups(self, groups: dict[str, int]) -> None:
        """Add the limits of groups: first those of which tasks were refused, then others, as many as a claim can have.

        The cost does not grow with the number of groups.
        """
        states = {
            known.scope: known.current()
            for known in self._limits.values()
            if (type_ := type_of_scope(known.scope)) is not None and self.rules.is_keyed(type_)
        }
        for key, (type_, group) in list(self._refused.items()):
            left = self._left_of(states, type_, group)
            _lower(groups, key, left)
            if left != 0:  # it is no longer full
                del self._refused[key]
        used = sum(len(state.holders) + len(state.next_at) for state in states.values())
        self.is_cut = used + len(self._refused) > MAX_NAMES
        for type_, group in islice(_groups_of(states, has_starts=not self.is_cut), MAX_NAMES):
            _lower(groups, group_key(type_, group), self._left_of(states, type_, group))

    def _left_of(self, states: Mapping[str, LimitState], type: str, group: str) -> int | None:
        """How many tasks of a group may start. The slots and the starts may be in different notes."""
        rules = self.rules.for_group(type, group)
        left = [self._left(states.get(rule.scope, _EMPTY), group, rule.limit) for rule in rules]
        return min((number for number in left if number is not None), default=None)

    def _left(self, state: LimitState, group: str, rule: Limit) -> int | None:
        """How many tasks may start; None if there is no limit. Also records when that changes."""
        now, lead, horizon = self._now(), self._timings.lead, self._timings.horizon(rule)
        slots = slots_left(state, group, rule)
        starts = starts_left(state, group, rule, now=now + lead, horizon=horizon - lead)
        if slots == 0:
            self._wake_after(self._timings.refresh_interval)
        if starts == 0:
            self._wake_after(max(_MIN_WAIT, next_start(state.next_at, group, rule, now) - now - horizon / 2))
        return min((left for left in (slots, starts) if left is not None), default=None)

    def _wake_after(self, seconds: float) -> None:
        self._blocked_until = min(self._blocked_until, self._clock() + seconds)


def _groups_of(states: Mapping[str, LimitState], *, has_starts: bool) -> Iterator[tuple[str, str]]:
    """The groups with slots.

    Groups with starts are included only if there are few: of many, most have no waiting tasks.
    """
    for scope, state in states.items():
        type_ = type_of_scope(scope) or ""
        yield from ((type_, group) for group in state.holders if group != NO_GROUP)
        if has_starts:
            yield from ((type_, group) for group in state.next_at if group != NO_GROUP and group not in state.holders)


def _lower(limits: dict[str, int], name: str, most: int | None) -> None:
    if most is not None:
        limits[name] = min(most, limits.get(name, most))


def _most_restrictive(groups: Mapping[str, int], refused: Collection[str]) -> dict[str, int]:
    """As many group limits as a claim may have: the lowest first, and of equal ones those of recently refused tasks."""
    if len(groups) <= MAX_NAMES:
        return dict(groups)
    return dict(sorted(groups.items(), key=lambda entry: (entry[1], entry[0] not in refused))[:MAX_NAMES])
