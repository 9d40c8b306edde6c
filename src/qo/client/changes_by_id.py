"""Changes of tasks by their ids: one or many, their log lines and counts, and why a task cannot be changed."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qo.engine import Engine, find_pages
from qo.errors import DamagedTask, StorageError, TaskNotFound, WrongStatus
from qo.group_commit import GroupCommit
from qo.model import FINISHED, STATUSES, Change, Filter, Guard, Status, Task, withdraw
from qo.transitions import Transitions

if TYPE_CHECKING:
    from qo.client.client import Client

PAGE_SIZE = 500  # tasks in one request that reads or changes many


class ChangesById:
    """One per client. Single changes of concurrent callers share a write."""

    def __init__(self, client: "Client", applying: GroupCommit[Change, bool]) -> None:
        self._client, self._applying = client, applying

    async def change(self, change: Change) -> None:
        """Change one task. Raises WrongStatus or TaskNotFound if it cannot be changed."""
        if not await self._applying.commit(change):
            raise await self._refusal(change.id, _verb(change), STATUSES[change.guard])
        await self._report([change])

    async def apply(self, changes: Sequence[Change], page_size: int) -> list[bool]:
        """Change many tasks; returns for each whether it was changed."""
        answers: list[bool] = []
        for start in range(0, len(changes), page_size):
            some = changes[start : start + page_size]
            landed = await self._client.engine.apply(some)
            await self._report([change for change, done in zip(some, landed, strict=True) if done])
            answers += landed
        return answers

    async def delete(self, task_id: str) -> None:
        """Delete a finished or damaged task. Raises WrongStatus or TaskNotFound."""
        (deleted,) = await self._client.engine.delete([task_id])
        if not deleted:
            try:
                refusal = await self._refusal(task_id, "delete", FINISHED)
            except DamagedTask:  # the read above found the damage
                (deleted,) = await self._client.engine.delete([task_id])
                if not deleted:
                    raise
            else:
                raise refusal

    async def delete_all(self, where: Filter, *, cancel: bool, progress: Callable[[int], None] | None) -> int:
        """Delete all matching finished tasks; returns their number. With `cancel`, pending ones are cancelled first."""
        ids = await self.ids(where)
        deleted = 0
        for start in range(0, len(ids), PAGE_SIZE):
            if cancel:
                await self.apply([withdraw(task_id) for task_id in ids[start : start + PAGE_SIZE]], PAGE_SIZE)
            number = sum(await self._client.engine.delete(ids[start : start + PAGE_SIZE]))
            deleted += number
            if progress is not None:
                progress(number)
        return deleted

    async def ids(self, where: Filter) -> list[str]:
        """The ids of all matching tasks. Values are not read, because they may be large."""
        pages = find_pages(self._client.engine, where, page_size=PAGE_SIZE)
        return [task.id async for page in pages for task in page]

    async def _refusal(self, task_id: str, verb: str, allowed: Iterable[Status]) -> TaskNotFound | WrongStatus:
        task = await self._client.get(task_id)
        if task is None:
            return not_found(task_id)
        if task.status in allowed and verb == "reschedule":
            return WrongStatus(
                f"task {task_id} is waiting for other tasks of its workflow and cannot be rescheduled; "
                "`run now` runs it without them",
                task_id=task_id,
            )
        if task.status in allowed:  # only `run_now` requires more than a status
            return WrongStatus(
                f"task {task_id} is already due; `qo explain` shows what it is waiting for", task_id=task_id
            )
        names = ", ".join(sorted(allowed))
        refusal = f"task {task_id} is {task.status}; {verb} requires one of: {names}"
        return WrongStatus(refusal, task_id=task_id)

    async def _report(self, changes: Sequence[Change]) -> None:
        """Log and count tasks that were changed by their ids."""
        transitions = self._client.transitions
        cancelled = [change.id for change in changes if change.to is Status.CANCELLED]
        replayed = [change.id for change in changes if _verb(change) == "replay" and transitions.logs_queued]
        if not cancelled and not replayed:
            return
        if cancelled:
            await CancelReport(self._client.engine, transitions)(cancelled)
        with suppress(StorageError):  # the changes are written; only their log lines are missing
            for start in range(0, len(replayed), PAGE_SIZE):
                transitions.replayed(await self._existing(replayed[start : start + PAGE_SIZE]))

    async def _existing(self, ids: Sequence[str]) -> list[Task]:
        return [task for task in await self._client.engine.get_without_values(ids) if task is not None]


class CancelReport:
    """Logs and counts cancelled tasks by their ids.

    It keeps no reference to a client, so that an unused client can be garbage-collected.
    """

    def __init__(self, engine: Engine, transitions: Transitions) -> None:
        self._engine, self._transitions = engine, transitions

    async def __call__(self, ids: Sequence[str]) -> None:
        with suppress(StorageError):  # the changes are written; only their log lines and counts are missing
            tasks = await self._engine.get_without_values(ids)
            self._transitions.cancelled(task for task in tasks if task is not None)


def not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(f"there is no task {task_id}", task_id=task_id)


def _verb(change: Change) -> str:
    if change.to is not Status.PENDING:
        return "cancel" if change.to is Status.CANCELLED else "archive"
    if change.priority is not None:
        return "set priority"
    if change.run_at is not None:
        return "reschedule"
    return "run now" if change.guard is Guard.NOT_DUE else "replay"
