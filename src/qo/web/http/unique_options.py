"""Unique arguments and keys of tasks that are submitted over HTTP."""

from typing import Literal, Protocol

from msgspec.structs import replace

from qo.model import NewTask, OnDuplicate, Unique, UniqueUntil, derived_id
from qo.web.callers import Caller, Scope

UniqueBy = list[str] | Literal["args"]  # names of arguments, or all of them


class UniqueOptions(Protocol):
    """The fields that have different names in each API."""

    @property
    def by(self) -> UniqueBy: ...
    @property
    def within_seconds(self) -> float | None: ...
    @property
    def until(self) -> UniqueUntil: ...
    @property
    def on_duplicate(self) -> OnDuplicate: ...


def unique_of(given: UniqueOptions | None) -> Unique | None:
    if given is None:
        return None
    by = given.by if isinstance(given.by, str) else tuple(given.by)
    return Unique(by=by, within=given.within_seconds, until=given.until, on_duplicate=given.on_duplicate)


def with_own_key(task: NewTask, caller: Caller) -> NewTask:
    """Gives a caller without the scope `read` its own idempotency keys, so that guessed keys reveal no tasks.

    The same applies to unique arguments, which become a key. A caller without the scope `operate` has its own keys for
    submissions that replace a waiting task, because it must not change the tasks of others.

    The keys depend on the caller's name: a token that replaces another one of the same name keeps its keys.
    """
    is_shared = caller.may(Scope.READ if task.on_duplicate != "replace" else Scope.OPERATE)
    if task.idempotency_key is None or is_shared:
        return task
    own = f"\0{caller.name}\0{task.idempotency_key}"  # names and keys contain no NUL
    return replace(task, id=derived_id(task.queue, task.type, own))
