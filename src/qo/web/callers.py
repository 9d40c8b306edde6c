"""Who makes a request, and which part of the store it may see and change.

The gate in `access.py` puts a `Caller` on every admitted connection; handlers ask it. A token is one kind of caller.
What a caller may do is its scopes; where it may do it is its limits. An answer looks as if nothing lay outside them.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from qo.model import Counts, Filter, NewTask, Task

CallerKind = Literal["token", "local", "user"]


class Scope(StrEnum):
    __hash__ = str.__hash__

    READ = "read"  # see tasks, counts, workers and switches
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


class AccessLimits(Struct, frozen=True, kw_only=True):
    """Queues and types, empty for all. A task is inside if both its queue and its type are."""

    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether nothing lies outside."""
        return not self.queues and not self.types

    def includes(self, queue: str, type: str) -> bool:
        return (not self.queues or queue in self.queues) and (not self.types or type in self.types)

    def includes_task(self, task: Task | NewTask) -> bool:
        return self.includes(task.queue, task.type)

    def includes_queue(self, queue: str) -> bool:
        """Whether every task of the queue is inside, whatever its type."""
        return not self.types and (not self.queues or queue in self.queues)

    def includes_type(self, type: str) -> bool:
        """Whether every task of the type is inside, whatever its queue."""
        return not self.queues and (not self.types or type in self.types)

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
        return {lane: number for lane, number in counts.items() if self.includes(lane.queue, lane.type)}


WHOLE_STORE = AccessLimits()


def _inside(asked: tuple[str, ...], limit: frozenset[str]) -> tuple[str, ...] | None:
    if not limit:
        return asked
    if not asked:
        return tuple(sorted(limit))
    return tuple(name for name in asked if name in limit) or None


class Caller(Struct, frozen=True, kw_only=True):
    """Who makes a request. `id` never changes and is never given to another; `name` is what people call it."""

    id: str
    name: str
    kind: CallerKind
    scopes: frozenset[Scope]  # as granted; ask `may`, which knows what they imply
    limits: AccessLimits = WHOLE_STORE
    expires_at: float | None = None

    def may(self, scope: Scope) -> bool:
        """Whether it may do this at all. Where: see its limits. The engine port cannot keep to any."""
        if scope is Scope.ENGINE and not self.limits.is_whole:
            return False
        return scope in self.scopes or any(scope in IMPLIED.get(granted, ()) for granted in self.scopes)

    def may_see(self, task: Task) -> bool:
        """Whether the task exists, as far as this caller is told."""
        return self.limits.includes_task(task)


# Without any token, a program on this machine. It may do everything.
LOCAL_CALLER = Caller(id="anyone", name="anyone", kind="local", scopes=frozenset(Scope))
