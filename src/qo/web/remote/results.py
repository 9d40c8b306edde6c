"""Results of tasks: guarded by the lease and recorded once. A repeated result gets the same response."""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from qo.codec import encode_value, from_json
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.ids import random_fraction
from qo.model import Change, Status, Task, after_error, check_id, check_number, check_size, complete, fail
from qo.web.callers import Caller, Scope
from qo.web.remote.checks import check_lease_id
from qo.web.remote.messages import Failure, Recorded, Report, Result
from qo.web.remote.worker_registry import WorkerSession
from qo.web.task_words import task_word, word

MAX_RESULTS = 1000
_NO_MESSAGE = "the worker gave no reason"


def results_of(report: Report) -> list[Result]:
    if report.results is not None:
        if report.task_id is not None or report.status is not None:
            raise InvalidTask("results", "send either one result or many in `results`")
        if len(report.results) > MAX_RESULTS:
            raise InvalidTask("results", f"has {len(report.results):,} items, the limit is {MAX_RESULTS:,}")
        return report.results
    if report.task_id is None or report.status is None:
        raise InvalidTask("task_id" if report.task_id is None else "status", "is missing")
    return [
        Result(
            task_id=report.task_id,
            status=report.status,
            result=report.result,
            error=report.error,
            retriable=report.retriable,
            retry_after=report.retry_after,
            lease_token=report.lease_token,
        )
    ]


class Settled:
    """A recorded result: the leased task and the change."""

    def __init__(self, task: Task, change: Change) -> None:
        self.task, self.change = task, change


async def record(
    engine: Engine, session: WorkerSession, results: Sequence[Result], caller: Caller, *, result_limit: int
) -> tuple[list[Recorded], list[Settled]]:
    """The outcome of each result, and the changes that were made."""
    found = await engine.get_without_values([check_id(result.task_id) for result in results])
    tasks = [task if task is not None and caller.may_see(task) else None for task in found]
    changes = [
        None if task is None else settlement(_held(task, session, result), result, result_limit)
        for task, result in zip(tasks, results, strict=True)
    ]
    requested = [change for change in changes if change is not None]
    landed = dict(zip((change.id for change in requested), await engine.apply(requested), strict=True))
    answers: list[Recorded] = []
    settled: list[Settled] = []
    for task, change, result in zip(tasks, changes, results, strict=True):
        if task is None or change is None:
            answers.append(_no(result.task_id, "not_found", f"there is no task {result.task_id}"))
        elif landed[task.id]:
            answers.append(_recorded(task, change, session))
            if task.status is Status.RUNNING:
                settled.append(Settled(task, change))
        else:
            answers.append(_refused(task, result, session, caller))
    return answers, settled


def _held(task: Task, session: WorkerSession, result: Result) -> Task:
    """The task with the lease of the result. Without a lease token, the store decides whether the worker holds it.

    A worker cannot settle the attempt of another worker. A pending task has no worker.
    """
    lease_id = task.lease_id if result.lease_token is None else check_lease_id(result.lease_token)
    is_own = task.worker_id == session.note.worker_id or (task.worker_id is None and result.lease_token is not None)
    return replace(task, lease_id=lease_id if is_own else None)


def settlement(task: Task, result: Result, limit: int) -> Change:
    """The change for a result. The model decides about retries."""
    if result.status == "completed":
        data = encode_value(from_json(result.result, "result"), "result")
        check_size("result", data, limit)
        return complete(task, data)
    message, retriable = _NO_MESSAGE, result.retriable
    if isinstance(result.error, Failure):
        message, retriable = result.error.message or message, retriable and result.error.retriable
    elif result.error:
        message = result.error
    if result.retry_after is not None:
        check_number("retry_after", result.retry_after)
    if not retriable:
        return fail(task, message)
    return after_error(task, message, random=random_fraction(), after=result.retry_after)


def _recorded(task: Task, change: Change, session: WorkerSession) -> Recorded:
    if task.status is not Status.RUNNING:  # recorded before
        return Recorded(task_id=task.id, status=task_word(task), repeated=True)
    now = word(change.to, change.failures or task.failures, task.max_retries)
    recorded = Recorded(task_id=task.id, status=now)
    session.remember(change.lease_id, recorded)
    done = change.to is Status.COMPLETED
    session.note = replace(
        session.note,
        tasks_completed=session.note.tasks_completed + done,
        tasks_failed=session.note.tasks_failed + (not done),
    )
    return recorded


def _refused(task: Task, result: Result, session: WorkerSession, caller: Caller) -> Recorded:
    lease_id, before = session.recorded.get(task.id, (None, None))
    same = result.lease_token is None or result.lease_token == lease_id
    if before is not None and same and (before.status == "completed") == (result.status == "completed"):
        return replace(before, repeated=True)  # the task has changed since, for example by its next attempt
    now = f"is {task_word(task)}, " if caller.may(Scope.READ) else "is "
    why = f"task {task.id} {now}no longer held by this worker: its lease expired, or it was cancelled"
    return _no(task.id, "lease_lost", why)


def _no(task_id: str, code: Literal["not_found", "lease_lost"], error: str) -> Recorded:
    return Recorded(task_id=task_id, acknowledged=False, code=code, error=error)
