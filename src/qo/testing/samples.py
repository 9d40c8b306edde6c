"""Helpers of the contract tests."""

from typing import Any

from qo.engine import Engine
from qo.ids import new_token
from qo.model import ClaimRequest, NewTask, Task, with_group


def task_id(name: int | str) -> str:
    """The id of a task in a test. Ids of numbers have the order of the numbers."""
    if isinstance(name, int):
        return f"{name:08x}-0000-8000-8000-000000000000"
    return f"ffffffff-0000-8000-8000-{name.encode().hex()[:12]:0>12}"


def new(name: int | str = 0, **fields: Any) -> NewTask:
    described: dict[str, Any] = {"id": task_id(name), "queue": "q", "type": "t"} | fields
    described["needs"] = with_group(described.get("needs", ()), described.pop("group", None))
    return NewTask(**described)


def claim_request(**fields: Any) -> ClaimRequest:
    described: dict[str, Any] = {"worker_id": "w1", "lease_id": new_token(), "limit": 10, "lease": 30.0} | fields
    return ClaimRequest(**described)


async def claim(engine: Engine, **fields: Any) -> list[Task]:
    return await engine.claim(claim_request(**fields))


async def claim_one(engine: Engine, **fields: Any) -> Task:
    (task,) = await engine.claim(claim_request(limit=1, **fields))
    return task


async def stored(engine: Engine, name: int | str = 0) -> Task:
    (task,) = await engine.get([task_id(name)])
    assert task is not None, f"{name} is not stored"
    return task
