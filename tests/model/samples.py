"""Short ways to say what a test of the model needs."""

from typing import Any

from qo.model import ClaimRequest, NewTask, Task, claim, created

NOW = 1_700_000_000.0
ID = "0a0a0a0a-0000-8000-8000-000000000000"


def described(**fields: Any) -> NewTask:
    given: dict[str, Any] = {"id": ID, "queue": "q", "type": "t"} | fields
    return NewTask(**given)


def pending(now: float = NOW, **fields: Any) -> Task:
    return created(described(**fields), now)


def wanted(**fields: Any) -> ClaimRequest:
    given: dict[str, Any] = {"worker_id": "w1", "lease_id": "lease-1", "lease": 30.0} | fields
    return ClaimRequest(**given)


def running(now: float = NOW, **fields: Any) -> Task:
    return claim(pending(now, **fields), wanted(), now)
