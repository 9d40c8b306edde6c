"""The words of `/api/tasks` for statuses. Only this edge speaks them.

| ours        | here         | and |
|-------------|--------------|-----|
| `pending`   | `pending`    | `runAfter` says when, if it was scheduled |
| `pending`   | `failed`     | an attempt failed, and `nextRetryAt` says when the next one is due |
| `running`   | `processing` | |
| `completed` | `completed`  | |
| `failed`    | `failed`     | `nextRetryAt` is null: no attempt is left |
| `cancelled` | `failed`     | with the error "cancelled": this dialect has no status for it |
| `archived`  | what it was before | found by its id, left out of listings and counts |
"""

from collections.abc import Collection
from typing import Literal

from qo.model import Filter, Status, Task, is_retrying
from qo.web.v1.words import ended_as

Word = Literal["pending", "processing", "completed", "failed"]

WORDS: tuple[Word, ...] = ("pending", "processing", "completed", "failed")
STATUSES: dict[Word, tuple[Status, ...]] = {
    "pending": (Status.PENDING,),
    "processing": (Status.RUNNING,),
    "completed": (Status.COMPLETED,),
    "failed": (Status.FAILED, Status.CANCELLED),
}
BY_STATUS: dict[Status, Word] = {status: word for word, statuses in STATUSES.items() for status in statuses}


def word(task: Task) -> Word:
    return "failed" if is_retrying(task) else BY_STATUS[ended_as(task)]


def filter_of(words: Collection[Word], types: tuple[str, ...]) -> Filter:
    """The tasks these words name."""
    statuses = {status for name in words for status in STATUSES[name]}
    if "failed" in words:
        statuses.add(Status.PENDING)
    only_one = ("pending" in words) is not ("failed" in words)
    return Filter(statuses=tuple(sorted(statuses)), types=types, retrying="failed" in words if only_one else None)
