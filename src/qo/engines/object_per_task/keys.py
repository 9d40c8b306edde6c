"""Names of objects. The name of an index entry is a pure function of the task.

- `tasks/{shard}/{id}.json`: a task
- `ready/{shard}/{minute}/{rank}_{lane}_{created}_{version}_{id}_{priority}[_{due}]`: a task that is claimable now
- `ready/later/{minute}/{available}_{rank}_{lane}_{created}_{version}_{id}_{priority}`: claimable later
- `leases/{shard}/{minute}/{expires}_{holder}_{lane}_{created}_{version}_{id}_{priority}`: running

The shard is the id's first digit. Times and ranks are the sixteen hex digits of the double: exact, of fixed width, and
for numbers from 0 on their byte order is their numeric order. The minute is that of the first number; it makes keys
readable, and directories small. An entry includes the due time only if rank and priority do not imply it. All names
consist of [0-9a-z_/], which every store lists in byte order.
"""

import re
import struct
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from qo.model import AGEING, ID_PATTERN, MEDIUM, Status, Task

SHARDS = "0123456789abcdef"
TASKS, READY, LATER, LEASES = "tasks/", "ready/", "ready/later/", "leases/"
ENTRY_PREFIXES = (READY, LEASES)
_CACHED_NAMES = 16_384  # parsed names; about ten megabytes

_TASK = re.compile(rf"tasks/([0-9a-f])/(({ID_PATTERN}))\.json")
_NUMBER = "([0-9a-f]{16})"
# names from older versions have no priority
_TAIL = rf"([0-9a-f]{{12}})_{_NUMBER}_([0-9a-f]{{8}})_([0-9a-f]{{32}})(?:_([0-9]))?"
_READY = re.compile(rf"ready/[0-9a-f]/[0-9]{{9}}/{_NUMBER}_{_TAIL}(?:_{_NUMBER})?")
_LATER = re.compile(rf"ready/later/[0-9]{{9}}/{_NUMBER}_{_NUMBER}_{_TAIL}")
_LEASE = re.compile(rf"leases/[0-9a-f]/[0-9]{{9}}/{_NUMBER}_([0-9a-f]{{12}})_{_TAIL}")


class KeyKind(Enum):
    READY = 1
    LATER = 2
    LEASE = 3


class Entry(NamedTuple):
    """The fields in the name of an index entry."""

    key: str
    kind: KeyKind
    at: float  # the end of a lease, or the time at which a later task becomes available; 0 for ready tasks
    rank: float
    holder: str  # hash of the lease id, of leases only
    lane: str
    created_at: float
    version: int
    id: str
    priority: int
    due_at: float  # since when the task waits; only of ready and later tasks

    @property
    def age(self) -> tuple[float, int]:
        """Increases with every write of a task, and when an id is used again after a deletion."""
        return self.created_at, self.version


def lane_of(entry: Entry) -> tuple[str, int]:
    return entry.lane, entry.priority


def task_key(task_id: str) -> str:
    return f"{TASKS}{task_id[0]}/{task_id}.json"


def task_id_in(key: str) -> str | None:
    found = _TASK.fullmatch(key)
    return found[2] if found and found[1] == found[2][0] else None


def lane_hash(queue: str, type: str, needs: tuple[str, ...]) -> str:
    """The same workers can take all tasks of a lane. Names contain no spaces, so the joined text is unambiguous."""
    return _digest(" ".join((queue, type, *needs)))


def holder_hash(lease_id: str | None) -> str:
    """Identifies a lease without revealing its id."""
    return _digest(f"lease {lease_id}")


def index_key(task: Task) -> str | None:
    """The key of the index entry that a task in this state needs, or None."""
    if task.status is Status.PENDING:
        return _later_key(task) if task.available_at > task.updated_at else _ready_key(task)
    if task.status is Status.RUNNING:
        return _lease_key(task)
    return None


def _ready_key(task: Task) -> str:
    due = "" if task.due_at == _usual_due_at(task.rank, task.priority) else f"_{_hex(task.due_at)}"
    return f"{READY}{task.id[0]}/{_minute(task.rank)}/{_hex(task.rank)}_{_tail(task)}{due}"


def _later_key(task: Task) -> str:
    at = task.available_at
    return f"{LATER}{_minute(at)}/{_hex(at)}_{_hex(task.rank)}_{_tail(task)}"


def _lease_key(task: Task) -> str:
    at = task.lease_expires_at or 0.0
    return f"{LEASES}{task.id[0]}/{_minute(at)}/{_hex(at)}_{holder_hash(task.lease_id)}_{_tail(task)}"


@lru_cache(_CACHED_NAMES)
def entry_of(key: str) -> Entry | None:
    """The entry, or None for a foreign name. Cached because claims on a deep queue list the same names repeatedly."""
    if found := _READY.fullmatch(key):
        return _entry(key, KeyKind.READY, found.groups()[1:-1], rank=found[1], due=found[7])
    if found := _LATER.fullmatch(key):
        return _entry(key, KeyKind.LATER, found.groups()[2:], at=found[1], rank=found[2], due=found[1])
    if found := _LEASE.fullmatch(key):
        return _entry(key, KeyKind.LEASE, found.groups()[2:], at=found[1], holder=found[2])
    return None


def _entry(
    key: str,
    kind: KeyKind,
    tail: tuple[str | Any, ...],
    *,
    at: str = "",
    rank: str = "",
    holder: str = "",
    due: str | None = None,
) -> Entry:
    lane, created, version, digits, priority = tail
    level, ranked = int(priority or MEDIUM), _number(rank) if rank else 0.0
    return Entry(
        key=key,
        kind=kind,
        at=_number(at) if at else 0.0,
        rank=ranked,
        holder=holder,
        lane=lane,
        created_at=_number(created),
        version=int(version, 16),
        id=f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
        priority=level,
        due_at=_number(due) if due else _usual_due_at(ranked, level),
    )


def _usual_due_at(rank: float, priority: int) -> float:
    return rank - priority * AGEING


def is_stale(entry: Entry, task: Task) -> bool:
    """Whether no present or future state of the task needs this entry. A newer entry may belong to a pending write."""
    age = (task.created_at, task.version)
    return entry.age < age or (entry.age == age and not (index_key(task) or "").startswith(entry.key))


def _tail(task: Task) -> str:
    lane = lane_hash(task.queue, task.type, task.stored_needs)
    return f"{lane}_{_hex(task.created_at)}_{task.version:08x}_{task.id.replace('-', '')}_{task.priority}"


def _hex(number: float) -> str:
    return struct.pack(">d", max(0.0, number) + 0.0).hex()  # + 0.0 turns negative zero into zero


def _number(digits: str) -> float:
    number: float = struct.unpack(">d", bytes.fromhex(digits))[0]
    return number


def _minute(instant: float) -> str:
    return f"{int(max(0.0, instant) // 60):09d}"


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
