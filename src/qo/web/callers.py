"""Callers: who makes a request, and which part of the store it can see and change.

The gate in `http/access.py` puts a `Caller` on every admitted connection. A token is one kind of caller. The scopes of
a caller determine what it can do, and its limits for which queues and types. Responses look as if nothing existed
outside the limits.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from qo.model import Counts, Filter, NewTask, Task, lane_matcher

CallerKind = Literal["token", "local", "user"]


class Scope(StrEnum):
    __hash__ = str.__hash__

    READ = "read"  # see tasks, counts, workers and controls
    SUBMIT = "submit"  # add tasks
    WORK = "work"  # the worker protocol: poll, renew, settle
    OPERATE = "operate"  # read, cancel, replay, archive, pause, limit and drain
    ADMIN = "admin"  # all of these, and delete tasks
    ENGINE = "engine"  # the engine port: the whole store without limits, for native workers


# Scopes that a scope includes. None includes `engine`, which has no limits and shows the leases of all workers.
IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.OPERATE: frozenset({Scope.READ}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.SUBMIT, Scope.WORK, Scope.OPERATE}),
}


def allows(granted: Collection[Scope], scope: Scope) -> bool:
    """Whether one of the granted scopes is or includes this one."""
    return scope in granted or any(scope in IMPLIED.get(each, ()) for each in granted)


class AccessLimits(Struct, frozen=True, kw_only=True):
    """Queues and types; empty means all. A task is inside if both its queue and its type are."""

    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether there are no limits."""
        return not self.queues and not self.types

    def includes(self, queue: str, type: str) -> bool:
        return lane_matcher(self.queues, self.types)(queue, type)

    def includes_task(self, task: Task | NewTask) -> bool:
        return self.includes(task.queue, task.type)

    def includes_queue(self, queue: str) -> bool:
        """Whether every task of the queue is inside, regardless of its type."""
        return not self.types and (not self.queues or queue in self.queues)

    def includes_type(self, type: str) -> bool:
        """Whether every task of the type is inside, regardless of its queue."""
        return not self.queues and (not self.types or type in self.types)

    def covers(self, other: "AccessLimits") -> bool:
        """Whether everything inside the other limits is inside these."""
        return _covers(self.queues, other.queues) and _covers(self.types, other.types)

    def narrow(self, where: Filter) -> Filter | None:
        """The filter restricted to these limits; None if nothing can match. Empty means all in filters, too."""
        queues, types = _inside(where.queues, self.queues), _inside(where.types, self.types)
        if queues is None or types is None:
            return None
        if queues == where.queues and types == where.types:
            return where
        return replace(where, queues=queues, types=types)

    def count(self, counts: Counts) -> Counts:
        """The counts inside the limits."""
        if self.is_whole:
            return counts
        covers = lane_matcher(self.queues, self.types)
        return {lane: number for lane, number in counts.items() if covers(lane.queue, lane.type)}


WHOLE_STORE = AccessLimits()


def _covers(names: frozenset[str], others: frozenset[str]) -> bool:
    return not names or (bool(others) and others <= names)


def join_limits(alternatives: Sequence[AccessLimits]) -> AccessLimits:
    """The union of these limits if it can be expressed as queues and types, or else the first."""
    first = alternatives[0]
    widest = next((each for each in alternatives if all(each.covers(other) for other in alternatives)), None)
    if widest is not None:
        return widest
    if len({each.types for each in alternatives}) == 1:
        return AccessLimits(queues=frozenset().union(*(each.queues for each in alternatives)), types=first.types)
    if len({each.queues for each in alternatives}) == 1:
        return AccessLimits(queues=first.queues, types=frozenset().union(*(each.types for each in alternatives)))
    return first


def _inside(requested: tuple[str, ...], limit: frozenset[str]) -> tuple[str, ...] | None:
    if not limit:
        return requested
    if not requested:
        return tuple(sorted(limit))
    return tuple(name for name in requested if name in limit) or None


class LimitedRole(Struct, frozen=True, kw_only=True):
    """Scopes that apply inside limits."""

    scopes: frozenset[Scope]
    limits: AccessLimits


class Caller(Struct, frozen=True, kw_only=True):
    """Who makes a request. `id` is unique and never reused; `name` is for display."""

    id: str
    name: str
    kind: CallerKind
    scopes: frozenset[Scope]  # as granted; use `may`, which adds the included scopes
    limits: AccessLimits = WHOLE_STORE
    limited_roles: tuple[LimitedRole, ...] = ()  # of a user: further scopes, each with its own limits
    expires_at: float | None = None

    def within(self, scope: Scope) -> "Caller | None":
        """This caller with the limits that apply to the scope; None if it does not have the scope anywhere.

        The returned caller has the scopes that apply everywhere inside these limits.
        """
        if self.may(scope):
            return self
        roles = [role for role in self.limited_roles if allows(role.scopes, scope)]
        if not roles:
            return None
        limits = join_limits([role.limits for role in roles])
        held = [role.scopes for role in self.limited_roles if role.limits.covers(limits)]
        return replace(self, scopes=self.scopes.union({scope}, *held), limits=limits)

    def may_somewhere(self, scope: Scope) -> bool:
        """Whether it has the scope inside some limits."""
        return self.may(scope) or any(allows(role.scopes, scope) for role in self.limited_roles)

    def may(self, scope: Scope) -> bool:
        """Whether it has the scope inside its limits. The engine port cannot apply limits, so limits exclude it."""
        if scope is Scope.ENGINE and not self.limits.is_whole:
            return False
        return allows(self.scopes, scope)

    def may_see(self, task: Task) -> bool:
        """Whether the task is inside the limits."""
        return self.limits.includes_task(task)


# A program on this machine, while the server has no token. It has all scopes.
LOCAL_CALLER = Caller(id="anyone", name="anyone", kind="local", scopes=frozenset(Scope))
