"""A task's history as documents: what is known of the task as it was at each transition."""

from typing import Any

from qo.clock import iso
from qo.codec import event_view, task_view
from qo.model import FINISHED, Event, Status, Task

_NEVER_CHANGE = (
    *("id", "queue", "type", "payload", "priority", "needs", "max_retries", "retry"),
    *("created_at", "idempotency_key", "trace_id", "run_at"),
)
_AS_RECORDED = ("status", "attempt", "failures", "worker_id", "error", "available_at", "version")


def documents(task: Task, events: list[Event], now: float) -> list[dict[str, Any]]:
    """Oldest first. What a transition did not record, such as the end of its lease, is left out rather than guessed."""
    current = task_view(task, now)
    fixed = {name: current[name] for name in _NEVER_CHANGE}
    completions = [at for at, event in enumerate(events) if event.status is Status.COMPLETED]
    started: float | None = None
    ended: float | None = None
    made = []
    for at, event in enumerate(events):
        started = event.at if event.status is Status.RUNNING else None if event.status is Status.PENDING else started
        ended = (ended or event.at) if event.status in FINISHED else None
        seen = event_view(event)
        times = {"updated_at": seen["at"], "started_at": iso(started), "completed_at": iso(ended)}
        known = fixed | {name: seen[name] for name in _AS_RECORDED} | times
        if not completions or at < completions[0]:
            known["result"] = None
        elif at >= completions[-1]:
            known["result"] = current["result"]
        if event.version == task.version:
            known = {name: value for name, value in current.items() if name != "effective_priority"}
        made.append(known)
    return made
