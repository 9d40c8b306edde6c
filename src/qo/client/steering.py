"""A hand for tasks: cancel, replay, archive, delete, one or all that match."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from qo.client.looking import PAGE, Looking, Tasks
from qo.errors import DamagedTask, StorageError, TaskNotFound, WrongStatus
from qo.model import FINISHED, STATUSES, Change, Filter, Status, archive, cancel, check_id, cursor, replay

Answers: TypeAlias = list[bool]  # inside the class `list` is a method
Ids: TypeAlias = list[str]

_VERBS = {Status.CANCELLED: "cancel", Status.PENDING: "replay", Status.ARCHIVED: "archive"}


class Steering(Looking):
    async def cancel(self, task_id: str) -> None:
        await self._steer(cancel(check_id(task_id)))

    async def replay(self, task_id: str) -> None:
        await self._steer(replay(check_id(task_id)))

    async def archive(self, task_id: str) -> None:
        await self._steer(archive(check_id(task_id)))

    async def delete(self, task_id: str) -> None:
        """Forget a finished task, or a damaged one."""
        (deleted,) = await self.engine.delete([check_id(task_id)])
        if not deleted:
            try:
                refusal = await self._refusal(task_id, "delete", FINISHED)
            except DamagedTask:  # found to be so just now
                (deleted,) = await self.engine.delete([task_id])
                if not deleted:
                    raise
            else:
                raise refusal

    async def change_all(self, where: Filter, how: Callable[[str], Change]) -> int:
        """Steer every matching task with `cancel`, `replay` or `archive`; how many it was."""
        ids = await self._ids(where)
        return sum(await self.apply([how(task_id) for task_id in ids]))

    async def apply(self, changes: Sequence[Change]) -> Answers:
        """Steer many tasks by their ids; which of them were changed."""
        answers: Answers = []
        for start in range(0, len(changes), PAGE):
            some = changes[start : start + PAGE]
            landed = await self.engine.apply(some)
            await self._report([change for change, done in zip(some, landed, strict=True) if done])
            answers += landed
        return answers

    async def _report(self, changes: Sequence[Change]) -> None:
        """Tell what became of tasks that were changed by their ids alone."""
        cancelled = [change.id for change in changes if change.to is Status.CANCELLED]
        replayed = [change.id for change in changes if change.to is Status.PENDING and self.transitions.tells_queued]
        if not cancelled and not replayed:
            return
        with suppress(StorageError):  # the changes have landed: only their log lines and counts are missing
            if cancelled:
                self.transitions.cancelled(await self._existing(cancelled))
            if replayed:
                self.transitions.replayed(await self._existing(replayed))

    async def _existing(self, ids: Sequence[str]) -> Tasks:
        return [task for task in await self.engine.get_without_values(ids) if task is not None]

    async def _ids(self, where: Filter) -> Ids:
        """Of every matching task. Values are not read: they may be large."""
        ids: Ids = []
        after = ""
        while page := await self.engine.find_without_values(where, limit=PAGE, after=after):
            ids += [task.id for task in page]
            after = cursor(page[-1])
        return ids

    async def delete_all(self, where: Filter, *, progress: Callable[[int], None] | None = None) -> int:
        """Delete every matching task that is finished; how many it was. `progress` is told the number of each batch."""
        ids = await self._ids(where)
        deleted = 0
        for start in range(0, len(ids), PAGE):
            number = sum(await self.engine.delete(ids[start : start + PAGE]))
            deleted += number
            if progress is not None:
                progress(number)
        return deleted

    async def _steer(self, change: Change) -> None:
        if not await self._applying.commit(change):
            raise await self._refusal(change.id, _VERBS[change.to], STATUSES[change.guard])
        await self._report([change])

    async def _refusal(self, task_id: str, verb: str, allowed: Iterable[Status]) -> TaskNotFound | WrongStatus:
        task = await self.get(task_id)
        if task is None:
            return TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        names = ", ".join(sorted(allowed))
        refusal = f"task {task_id} is {task.status}; {verb} takes a task that is one of: {names}"
        return WrongStatus(refusal, task_id=task_id)
