"""Who makes a request, and which part of the store it may see and change.

The gate in `access.py` puts a `Caller` on every admitted connection; handlers ask it. A token is one kind of caller.
What a caller may do is its scopes; where it may do it is its limits. An answer looks as if nothing lay outside them.
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
    OPERATE = "operate"  # cancel, replay, archive, pause, limit, drain; and see
    ADMIN = "admin"  # all of these, and delete
    ENGINE = "engine"  # the engine port: the whole store, without any check. For native workers


# What a scope allows besides itself. Nothing implies `engine`: it knows no queues and shows the leases of others.
IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.OPERATE: frozenset({Scope.READ}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.SUBMIT, Scope.WORK, Scope.OPERATE}),
}


def allows(granted: Collection[Scope], scope: Scope) -> bool:
    """Whether one of these scopes is, or implies, this one."""
    return scope in granted or any(scope in IMPLIED.get(each, ()) for each in granted)


class AccessLimits(Struct, frozen=True, kw_only=True):
    """Queues and types, empty for all. A task is inside if both its queue and its type are."""

    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether nothing lies outside."""
        return not self.queues and not self.types

    def includes(self, queue: str, type: str) -> bool:
        return lane_matcher(self.queues, self.types)(queue, type)

    def includes_task(self, task: Task | NewTask) -> bool:
        return self.includes(task.queue, task.type)

    def includes_queue(self, queue: str) -> bool:
        """Whether every task of the queue is inside, whatever its type."""
        return not self.types and (not self.queues or queue in self.queues)

    def includes_type(self, type: str) -> bool:
        """Whether every task of the type is inside, whatever its queue."""
        return not self.queues and (not self.types or type in self.types)

    def covers(self, other: "AccessLimits") -> bool:
        """Whether nothing of the other lies outside these."""
        return _covers(self.queues, other.queues) and _covers(self.types, other.types)

    def narrow(self, where: Filter) -> Filter | None:
        """The filter within these limits; None if nothing can match. In a filter, too, empty means all."""
        queues, types = _inside(where.queues, self.queues), _inside(where.types, self.types)
        if queues is None or types is None:
            return None
        if queues == where.queues and types == where.types:
            return where
        return replace(where, queues=queues, types=types)

    def count(self, counts: Counts) -> Counts:
        """The counts of what is inside."""
        if self.is_whole:
            return counts
        covers = lane_matcher(self.queues, self.types)
        return {lane: number for lane, number in counts.items() if covers(lane.queue, lane.type)}


WHOLE_STORE = AccessLimits()


def _covers(names: frozenset[str], others: frozenset[str]) -> bool:
    return not names or (bool(others) and others <= names)


def join_limits(alternatives: Sequence[AccessLimits]) -> AccessLimits:
    """What lies inside any of these, if lists of queues and types can say that; else the first."""
    first = alternatives[0]
    widest = next((each for each in alternatives if all(each.covers(other) for other in alternatives)), None)
    if widest is not None:
        return widest
    if len({each.types for each in alternatives}) == 1:
        return AccessLimits(queues=frozenset().union(*(each.queues for each in alternatives)), types=first.types)
    if len({each.queues for each in alternatives}) == 1:
        return AccessLimits(queues=first.queues, types=frozenset().union(*(each.types for each in alternatives)))
    return first


def _inside(asked: tuple[str, ...], limit: frozenset[str]) -> tuple[str, ...] | None:
    if not limit:
        return asked
    if not asked:
        return tuple(sorted(limit))
    return tuple(name for name in asked if name in limit) or None


class LimitedRole(Struct, frozen=True, kw_only=True):
    """Scopes that hold within limits."""

    scopes: frozenset[Scope]
    limits: AccessLimits


class Caller(Struct, frozen=True, kw_only=True):
    """Who makes a request. `id` never changes and is never given to another; `name` is what people call it."""

    id: str
    name: str
    kind: CallerKind
    scopes: frozenset[Scope]  # as granted; ask `may`, which knows what they imply
    limits: AccessLimits = WHOLE_STORE
    limited_roles: tuple[LimitedRole, ...] = ()  # of a person: what else it may do, each within limits of its own
    expires_at: float | None = None

    def within(self, scope: Scope) -> "Caller | None":
        """This caller with the limits that hold for what the scope allows; None if it may not do that anywhere.

        It then has those scopes only that hold everywhere within these limits.
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
        """Whether it may do this within any limits."""
        return self.may(scope) or any(allows(role.scopes, scope) for role in self.limited_roles)

    def may(self, scope: Scope) -> bool:
        """Whether it may do this at all. Where: see its limits. The engine port cannot keep to any."""
        if scope is Scope.ENGINE and not self.limits.is_whole:
            return False
        return allows(self.scopes, scope)

    def may_see(self, task: Task) -> bool:
        """Whether the task exists, as far as this caller is told."""
        return self.limits.includes_task(task)


# Without any token, a program on this machine. It may do everything.
LOCAL_CALLER = Caller(id="anyone", name="anyone", kind="local", scopes=frozenset(Scope))
