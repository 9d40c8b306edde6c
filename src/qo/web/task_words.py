"""Statuses and priorities as `/api/v1` and the worker protocol name them.

| model       | `/api/v1`     | when |
|-------------|---------------|------|
| `pending`   | `queued`      | |
| `running`   | `executing`   | |
| `completed` | `completed`   | |
| `failed`    | `dead_letter` | its retries are used up |
| `failed`    | `failed`      | it failed permanently before that: `Fail`, `reject` |
| `cancelled` | `cancelled`   | |
| `archived`  | its previous status | with `archived` true |

Priorities 0, 1 to 6 and 7 to 9 are `high`, `medium` and `low`.
"""

from typing import Literal

from qo.model import FINISHED, LevelWord, Status, Task, effective_priority, level_word

Word = Literal["queued", "executing", "completed", "failed", "cancelled", "dead_letter"]

LEVEL_WORDS: tuple[LevelWord, ...] = ("high", "medium", "low")
STATUSES: dict[Word, Status] = {
    "queued": Status.PENDING,
    "executing": Status.RUNNING,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
    "dead_letter": Status.FAILED,
    "cancelled": Status.CANCELLED,
}
_WORDS: dict[Status, Word] = {
    Status.PENDING: "queued",
    Status.RUNNING: "executing",
    Status.COMPLETED: "completed",
    Status.CANCELLED: "cancelled",
}


def word(status: Status, failures: int, max_retries: int) -> Word:
    if status is Status.FAILED:
        return "dead_letter" if failures > max_retries else "failed"
    return _WORDS[status]


def task_word(task: Task) -> Word:
    return word(task.ended_as, task.failures, task.max_retries)


def effective_level(task: Task, now: float) -> LevelWord:
    """The level after ageing, at the present or at the start of the handler."""
    waits = task.status is Status.PENDING or task.is_claimed_only
    waited_until = now if waits else task.started_at or task.due_at
    return level_word(effective_priority(task.priority, task.due_at, task.rank, waited_until))


def is_finished(task: Task) -> bool:
    return task.status in FINISHED
