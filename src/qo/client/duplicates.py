"""What becomes of a submission whose idempotency key, or unique arguments, belong to an existing task."""

from msgspec.structs import replace

from qo.codec import same_value
from qo.engine import Engine
from qo.errors import DuplicateTask, KeyReused
from qo.ids import new_id
from qo.model import Added, NewTask, Status, Task, amend

_MAX_ATTEMPTS = 5  # the task may start, end and be followed by another between two calls


async def resolve_duplicate(engine: Engine, new: NewTask, added: Added) -> Added:
    """The task that takes the place of `new`. Raises KeyReused, or DuplicateTask if the submission wants that."""
    if new.on_duplicate is None:
        (existing,) = await engine.get([added.id])
        if existing is not None:
            check_repeat(new, existing)
    check_refused(new, added.id)
    return await _replace(engine, new, added) if new.on_duplicate == "replace" else added


def check_refused(new: NewTask, existing: str) -> None:
    """Raise DuplicateTask if a duplicate of `existing` must not be submitted."""
    if new.on_duplicate == "raise":
        raise DuplicateTask(
            f"{new.type} in queue {new.queue} is unique, and task {existing} has the same arguments; wait until it has"
            ' ended, or submit with on_duplicate="keep"',
            task_id=existing,
        )


def check_repeat(new: NewTask, existing: Task | NewTask) -> None:
    """Raise KeyReused if a submission has the key of an existing task, but another payload."""
    if not same_value(new.payload, existing.payload):
        raise KeyReused(
            f"idempotency key {new.idempotency_key!r} of {new.type} in queue {new.queue} belongs to task {existing.id},"
            " which has another payload; choose another key, or submit the same payload",
            task_id=existing.id,
        )


async def _replace(engine: Engine, new: NewTask, added: Added) -> Added:
    """Give the waiting task the values of `new`. A task that runs and is unique until its end is kept."""
    for _ in range(_MAX_ATTEMPTS):
        (is_replaced,) = await engine.apply([amend(added.id, new)])
        if is_replaced:
            return added
        (again,) = await engine.add([replace(new, next_id=new_id())])  # it has started meanwhile, or ended
        if again.new:
            return again
        (existing,) = await engine.get([again.id])
        added = again
        if existing is not None and existing.status is not Status.PENDING:
            break
    return added
