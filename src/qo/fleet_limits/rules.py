"""Which limits a task is under. Limits that are set in the store replace those that code declares."""

from collections.abc import Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.errors import InvalidTask
from qo.fleet_limits.limit_state import spacing
from qo.model import Limit, Task, check_group, check_name, check_type, group_of, missing_group

STATES = "slots/"  # prefix of the notes with the state of each limit
DECLARED = "limits"  # the note with the limits that code declares
TYPE, QUEUE, KEY = "type:", "queue:", "key:"  # prefixes of scopes
RATE = "rate:"  # prefix of the scopes of slow rates by key: `rate:<part>:<type>`
_MIN_SLOW_SPACING = 1.0  # seconds between two starts of a group from which its rate counts as slow
_PARTS = 64  # notes of the slow rates of a type: their groups stay in the state for as long as the spacing
NO_GROUP = ""  # the tasks of a limit without a key


class DeclaredLimits(Struct, frozen=True, kw_only=True):
    """The limits of the code of workers, by type. Workers register them when they start."""

    types: dict[str, Limit] = {}
    fair: dict[str, str] = {}  # by type: the argument by which its turns are shared


class TaskRule(Struct, frozen=True):
    """One limit that a task is under: its scope, and the group within the scope."""

    scope: str
    group: str
    limit: Limit


class LimitRules:
    """The limits in force. `live` has scopes such as `type:send_email`, `queue:mail` and `key:customer_id=42`."""

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
        """The limits of types, without those that limit nothing any more."""
        return {type: limit for type, limit in self._types.items() if _limits(limit)}

    @property
    def queues(self) -> Mapping[str, Limit]:
        return {queue: limit for queue, limit in self._queues.items() if _limits(limit)}

    def for_group(self, type: str, group: str) -> Limit | None:
        """The limit of the tasks of a type in a group."""
        if self._keys and (limit := self._live.get(KEY + group)) is not None:
            return limit if _limits(limit) else None
        limit = self._types.get(type)
        return limit if limit is not None and _limits(limit) else None

    def of_scope(self, scope: str, group: str) -> Limit | None:
        """The limit of a group within a scope."""
        type_ = type_of_scope(scope)
        if type_ is not None:
            return self.for_group(type_, group)
        return self._queues.get(scope.removeprefix(QUEUE))

    def of(self, task: Task) -> list[TaskRule]:
        """The limits that a task is under, always in the same order."""
        if self.is_empty:
            return []
        found = []
        group = self.group(task)
        limit = self.for_group(task.type, NO_GROUP if group is None else group)
        if limit is not None:
            is_keyed = limit.key is not None or (group is not None and KEY + group in self._live)
            found += of_type(task.type, (group or NO_GROUP) if is_keyed else NO_GROUP, limit)
        queue = self._queues.get(task.queue)
        if queue is not None and _limits(queue):
            found.append(TaskRule(QUEUE + task.queue, NO_GROUP, queue))
        return found

    def group(self, task: Task) -> str | None:
        """The group of a task. If it has none, or that of another argument than the limit, its payload shows the group.

        None: no limit by key concerns the task, or its payload is raw or encrypted.
        """
        key = self.key(task.type)
        if not self.is_keyed(task.type) or (task.group is not None and self._is_limited(task.group, key)):
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
        """Whether a limit is meant for this group: by the key of the type, or by a limit for the group itself."""
        return KEY + group in self._live if key is None else group.partition("=")[0] == key

    def key(self, type: str) -> str | None:
        """The argument by which the limit of a type has groups."""
        limit = self._types.get(type)
        return None if limit is None else limit.key

    def is_keyed(self, type: str) -> bool:
        """Whether the groups of a type have limits of their own."""
        return self.key(type) is not None or bool(self._keys)


def _limits(limit: Limit) -> bool:
    return limit.concurrency > 0 or limit.rate > 0


def of_type(type: str, group: str, limit: Limit) -> list[TaskRule]:
    """The rules of a limit of a type. A slow rate by key is in other notes than the slots.

    Its groups stay in the state for long, so there may be many of them, and each start would write them all.
    """
    if group == NO_GROUP or not limit.rate or spacing(limit) < _MIN_SLOW_SPACING:
        return [TaskRule(TYPE + type, group, limit)]
    part = int(sha256(group.encode()).hexdigest()[:8], 16) % _PARTS
    rate = TaskRule(f"{RATE}{part}:{type}", group, replace(limit, concurrency=0))
    return [TaskRule(TYPE + type, group, replace(limit, rate=0.0)), rate] if limit.concurrency else [rate]


def _group_or_missing(key: str, arguments: object) -> str:
    try:
        return group_of(key, arguments, "payload")
    except InvalidTask:
        return missing_group(key)


def type_of_scope(scope: str) -> str | None:
    """The type whose groups are in a scope; None for a queue."""
    if scope.startswith(RATE):
        return scope.removeprefix(RATE).partition(":")[2]
    return scope.removeprefix(TYPE) if scope.startswith(TYPE) else None


def check_scope(scope: str) -> str:
    """Raises InvalidTask for a scope that is neither a type nor a queue nor a key with its value."""
    for prefix, check in ((TYPE, check_type), (QUEUE, check_name), (KEY, check_group)):
        if scope.startswith(prefix):
            check(prefix[:-1], scope.removeprefix(prefix))
            return scope
    raise InvalidTask("scope", f"{scope!r:.80} does not begin with {TYPE}, {QUEUE} or {KEY}")


def state_note(scope: str) -> str:
    """The name of the note with the state of a limit."""
    return STATES + sha256(scope.encode()).hexdigest()[:32]
