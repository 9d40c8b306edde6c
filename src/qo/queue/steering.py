"""A hand for tasks: cancel, replay, archive, delete, one or all that match."""

from collections.abc import Callable, Iterable

from qo.errors import TaskNotFound, WrongStatus
from qo.model import FINISHED, STATUSES, Change, Filter, Status, archive, cancel, check_id, replay
from qo.queue.looking import PAGE, Looking

_VERBS = {Status.CANCELLED: "cancel", Status.PENDING: "replay", Status.ARCHIVED: "archive"}


class Steering(Looking):
    async def cancel(self, task_id: str) -> None:
        await self._steer(cancel(check_id(task_id)))

    async def replay(self, task_id: str) -> None:
        await self._steer(replay(check_id(task_id)))

    async def archive(self, task_id: str) -> None:
        await self._steer(archive(check_id(task_id)))

    async def delete(self, task_id: str) -> None:
        (deleted,) = await self.engine.delete([check_id(task_id)])
        if not deleted:
            raise await self._refusal(task_id, "delete", FINISHED)

    async def change_all(self, where: Filter, how: Callable[[str], Change]) -> int:
        """Steer every matching task with `cancel`, `replay` or `archive`; how many it was."""
        ids = [task.id async for task in self.all(where)]
        changed = 0
        for start in range(0, len(ids), PAGE):
            changed += sum(await self.engine.apply([how(task_id) for task_id in ids[start : start + PAGE]]))
        return changed

    async def delete_all(self, where: Filter) -> int:
        """Delete every matching task that is finished; how many it was."""
        ids = [task.id async for task in self.all(where)]
        return sum([sum(await self.engine.delete(ids[start : start + PAGE])) for start in range(0, len(ids), PAGE)])

    async def _steer(self, change: Change) -> None:
        if not await self._applying.ask(change):
            raise await self._refusal(change.id, _VERBS[change.to], STATUSES[change.guard])

    async def _refusal(self, task_id: str, verb: str, allowed: Iterable[Status]) -> TaskNotFound | WrongStatus:
        task = await self.get(task_id)
        if task is None:
            return TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        names = ", ".join(sorted(allowed))
        refusal = f"task {task_id} is {task.status}; {verb} takes a task that is one of: {names}"
        return WrongStatus(refusal, task_id=task_id)
