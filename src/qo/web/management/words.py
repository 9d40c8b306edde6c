"""The words of `/api/tasks` for statuses. Only this edge speaks them.

| ours        | here         | and |
|-------------|--------------|-----|
| `pending`   | `pending`    | `nextRetryAt` says when, if an attempt failed before; `runAfter`, if it was scheduled |
| `running`   | `processing` | |
| `completed` | `completed`  | |
| `failed`    | `failed`     | |
| `cancelled` | `failed`     | with the error "cancelled": this dialect has no cancelling |
| `archived`  | what it was before | found by its id, left out of listings and counts |
"""

from typing import Literal

from qo.model import Status, Task
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
    return BY_STATUS[ended_as(task)]
