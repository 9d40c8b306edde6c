"""Determines which limits apply to a task, and stores those that code declares.

Limits set in the store replace those declared in code. A limit for one value of an argument replaces the numbers of a
limit by key. If the limit of the type has no key, both apply.
"""

from collections.abc import Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo import notes
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.fleet_limits.limit_state import spacing
from qo.model import (
    FILLS_RESULTS,
    Limit,
    Status,
    Task,
    check_name,
    check_type,
    group_of,
    missing_group,
    parse_group,
)

STATES = "slots/"  # prefix of the notes with the state of each limit
DECLARED = "limits"  # the note with the limits that code declares
TYPE, QUEUE, KEY = "type:", "queue:", "key:"  # prefixes of scopes
VALUE = "value:"  # prefix of the scopes of limits for single values, in types whose own limit has no key
RATE = "rate:"  # prefix of the scopes of slow rates by key: `rate:<part>:<type>`
_MIN_SLOW_SPACING = 1.0  # seconds between two starts of a group; a rate with at least this spacing is slow
_PARTS = 64  # notes per type for slow rates, whose groups stay in the state for the length of the spacing
NO_GROUP = ""  # the tasks of a limit without a key
_MAX_DECLARED = 5000  # types; more are not registered


class DeclaredLimits(Struct, frozen=True, kw_only=True):
    """The limits declared in the code of workers, by type. Workers register them when they start."""

    types: dict[str, Limit] = {}
    fair: dict[str, str] = {}  # by type: the argument by whose value workers take turns


class TaskRule(Struct, frozen=True):
    """One limit that applies to a task: its scope, and the group within the scope."""

    scope: str
    group: str
    limit: Limit


class LimitRules:
    """The limits in force. `live` contains scopes such as `type:send_email`, `queue:mail` and `key:customer_id=42`."""

    def __init__(self, declared: Mapping[str, Limit], live: Mapping[str, Limit]) -> None:
        self._live = live
        self._types: dict[str, Limit] = dict(declared)
        for scope, limit in live.items():
            if scope.startswith(TYPE):
                type_ = scope.removeprefix(TYPE)
                before = declared.get(type_)
                key = None if before is None else before.key
                self._types[type_] = Limit(concurrency=limit.concurrency, rate=limit.rate, per=limit.per, key=key)
        self._keys = sorted({scope[len(KEY) :].partition("=")[0] for scope in live if scope.startswith(KEY)})
        self._queues = {scope.removeprefix(QUEUE): limit for scope, limit in live.items() if scope.startswith(QUEUE)}
        self.is_empty = not self._types and not live
        # Of limits of types and queues; the notes of slow rates are read when a task needs them.
        self.scopes = frozenset([*(TYPE + type_ for type_ in self.types), *(QUEUE + queue for queue in self.queues)])

    @property
    def types(self) -> Mapping[str, Limit]:
        """The limits of types, without those that no longer limit anything."""
        return {type: limit for type, limit in self._types.items() if _limits(limit)}

    @property
    def queues(self) -> Mapping[str, Limit]:
        return {queue: limit for queue, limit in self._queues.items() if _limits(limit)}

    def for_group(self, type: str, group: str) -> list[TaskRule]:
        """The rules of one group of a type; none if only the type as a whole is limited.

        A limit that is set for the group replaces the numbers of a limit of the type with a key. It applies in
        addition to a limit without a key.
        """
        is_keyed = self.key(type) is not None
        limit = self._live.get(KEY + group) if self._keys else None
        if limit is None and is_keyed:
            limit = self._types[type]
        if limit is None or not _limits(limit):
            return []
        return _group_rules(type, group, limit, self.scope_of_groups(type))

    def scope_of_groups(self, type: str) -> str:
        """The scope of the slots of the groups of a type."""
        return (VALUE if self.key(type) is None else TYPE) + type

    def of_scope(self, scope: str, group: str) -> Limit | None:
        """The limit of a group within a scope."""
        type_ = type_of_scope(scope)
        if type_ is None:
            return self._queues.get(scope.removeprefix(QUEUE))
        if self.key(type_) is None and scope == TYPE + type_:
            return self._types.get(type_)
        return next((rule.limit for rule in self.for_group(type_, group) if rule.scope == scope), None)

    def of(self, task: Task) -> list[TaskRule]:
        """The limits that apply to a task, always in the same order."""
        if self.is_empty:
            return []
        found, group = list[TaskRule](), self.group(task)
        whole = self._types.get(task.type)
        if whole is not None and whole.key is None and _limits(whole):
            found.append(TaskRule(TYPE + task.type, NO_GROUP, whole))
        if group is not None or self.key(task.type) is not None:
            found += self.for_group(task.type, group or NO_GROUP)
        queue = self._queues.get(task.queue)
        if queue is not None and _limits(queue):
            found.append(TaskRule(QUEUE + task.queue, NO_GROUP, queue))
        return found

    def group(self, task: Task) -> str | None:
        """The group of a task.

        If the task has no group, or the group of an argument other than the limit's, the group is taken from its
        payload. So is the group of a claimed task with results of parents: a replayed parent may have another result.
        None: no limit by key applies to the task, or its payload is raw or encrypted.
        """
        key = self.key(task.type)
        if not self.is_keyed(task.type):
            return task.group
        is_filled = task.status is Status.RUNNING and FILLS_RESULTS in task.stored_needs
        if task.group is not None and self._is_limited(task.group, key) and not is_filled:
            return task.group
        try:
            arguments = msgspec.json.decode(task.payload)
        except (msgspec.DecodeError, RecursionError):
            return task.group
        if key is not None:
            return _group_or_missing(key, arguments)
        groups = (_group_or_missing(name, arguments) for name in self._keys)
        return next((group for group in groups if KEY + group in self._live), task.group)

    def _is_limited(self, group: str, key: str | None) -> bool:
        """Whether a limit applies to this group: by the key of the type, or by a limit for the group itself."""
        return KEY + group in self._live if key is None else group.partition("=")[0] == key

    def key(self, type: str) -> str | None:
        """The argument whose values are the groups of a type's limit."""
        limit = self._types.get(type)
        return None if limit is None else limit.key

    def is_keyed(self, type: str) -> bool:
        """Whether the groups of a type have their own limits."""
        return self.key(type) is not None or bool(self._keys)


def _limits(limit: Limit) -> bool:
    return limit.concurrency > 0 or limit.rate > 0


def _group_rules(type: str, group: str, limit: Limit, scope: str) -> list[TaskRule]:
    """The rules of the limit of a group.

    A slow rate by key is stored in other notes than the slots: its groups stay in the state for long, so there may be
    many, and each start would write them all.
    """
    if group == NO_GROUP or not limit.rate or spacing(limit) < _MIN_SLOW_SPACING:
        return [TaskRule(scope, group, limit)]
    part = int(sha256(group.encode()).hexdigest()[:8], 16) % _PARTS
    rate = TaskRule(f"{RATE}{part}:{type}", group, replace(limit, concurrency=0))
    return [TaskRule(scope, group, replace(limit, rate=0.0)), rate] if limit.concurrency else [rate]


def _group_or_missing(key: str, arguments: object) -> str:
    try:
        return group_of(key, arguments, "payload")
    except InvalidTask:
        return missing_group(key)


def type_of_scope(scope: str) -> str | None:
    """The type whose groups are in a scope; None for a queue."""
    if scope.startswith(RATE):
        return scope.removeprefix(RATE).partition(":")[2]
    return scope.partition(":")[2] if scope.startswith((TYPE, VALUE)) else None


def check_scope(scope: str) -> str:
    """The scope with its group as it is stored.

    Raises InvalidTask for a scope that is neither a type nor a queue nor a key with its value.
    """
    for prefix, check in ((TYPE, check_type), (QUEUE, check_name), (KEY, parse_group)):
        if scope.startswith(prefix):
            return prefix + check(prefix[:-1], scope.removeprefix(prefix))
    raise InvalidTask("scope", f"{scope!r:.80} does not begin with {TYPE}, {QUEUE} or {KEY}")


def state_note(scope: str) -> str:
    """The name of the note with the state of a limit."""
    return STATES + sha256(scope.encode()).hexdigest()[:32]


# --- what code declares


async def declare_limits(engine: Engine, types: Mapping[str, Limit | None], fair: Mapping[str, str | None]) -> None:
    """Store what the code of this worker declares about its types, including that a type no longer has a limit.

    Raises StorageError.
    """
    if not any(types.values()) and not any(fair.values()) and await engine.read_note(DECLARED) is None:
        return

    def declared(before: DeclaredLimits) -> DeclaredLimits:
        kept = {type: limit for type, limit in before.types.items() if type not in types}
        kept_fair = {type: key for type, key in before.fair.items() if type not in fair}
        new = {type: limit for type, limit in types.items() if limit is not None}
        new_fair = {type: key for type, key in fair.items() if key is not None}
        if len(kept) + len(new) > _MAX_DECLARED:
            kept = {}
        return replace(before, types=kept | new, fair=kept_fair | new_fair)

    await notes.change(engine, DECLARED, DeclaredLimits, declared)


async def read_declared(engine: Engine) -> DeclaredLimits:
    """What all workers have declared, so that servers, monitors and users can see it. Raises StorageError."""
    return await notes.read_or(engine, DECLARED, DeclaredLimits, DeclaredLimits())
