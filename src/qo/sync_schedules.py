"""Schedules for code without an event loop. Each method blocks, and has an async form with the prefix `a`."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, Unpack, runtime_checkable

from qo.background import BackgroundClient
from qo.client import TaskOptions
from qo.client.schedules import ScheduleOptions, check_kwargs
from qo.errors import InvalidTask
from qo.model import NewTask, show
from qo.schedules.view import ScheduleInfo

_Infos: TypeAlias = list[ScheduleInfo]  # inside the class, `list` is a method
Describe: TypeAlias = Callable[[str, object, TaskOptions], NewTask]


@runtime_checkable
class Schedulable(Protocol):
    """A task function, or one with other options: `report.using(queue="slow")`."""

    def describe(self, *args: Any, **kwargs: Any) -> NewTask: ...


class SyncSchedules:
    """The schedules of a store. Workers and monitors submit their tasks."""

    def __init__(self, background: Callable[[], BackgroundClient], describe: Describe | None = None) -> None:
        self._background, self._describe = background, describe

    def add(
        self,
        name: str,
        *,
        task: str | NewTask | Schedulable,
        kwargs: Mapping[str, Any] | None = None,
        options: TaskOptions | None = None,
        **timing: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Add a schedule, or change the definition of one that was added before. Returns what is stored.

        `task` is a task function, or the name of a type with `options`. `kwargs` are the arguments.
        """
        new, rest = self._new(task, kwargs, options)
        return self._background().call_client(lambda client: client.schedules.add(name, task=new, **rest, **timing))

    async def aadd(
        self,
        name: str,
        *,
        task: str | NewTask | Schedulable,
        kwargs: Mapping[str, Any] | None = None,
        options: TaskOptions | None = None,
        **timing: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        new, rest = self._new(task, kwargs, options)
        return await self._background().acall_client(
            lambda client: client.schedules.add(name, task=new, **rest, **timing)
        )

    def _new(
        self, task: str | NewTask | Schedulable, kwargs: Mapping[str, Any] | None, options: TaskOptions | None
    ) -> tuple[str | NewTask, dict[str, Any]]:
        if isinstance(task, NewTask):
            return task, {"kwargs": kwargs, "options": options}  # the client refuses both
        check_kwargs(kwargs)
        if not isinstance(task, str):
            if not isinstance(task, Schedulable):
                raise InvalidTask("task", f"{show(task)} is neither a task function nor the name of a type")
            if options:
                raise InvalidTask("options", "apply to a type; pass task=function.using(...) instead")
            return task.describe(**kwargs or {}), {}
        if self._describe is not None:
            return self._describe(task, dict(kwargs or {}), options or {}), {}
        return task, {"kwargs": kwargs, "options": options}

    def list(self) -> _Infos:
        """All schedules by name."""
        return self._background().call_client(lambda client: client.schedules.list())

    async def alist(self) -> _Infos:
        return await self._background().acall_client(lambda client: client.schedules.list())

    def get(self, name: str) -> ScheduleInfo:
        """Raises ScheduleNotFound."""
        return self._background().call_client(lambda client: client.schedules.get(name))

    async def aget(self, name: str) -> ScheduleInfo:
        return await self._background().acall_client(lambda client: client.schedules.get(name))

    def pause(self, name: str) -> ScheduleInfo:
        """Submit no tasks of this schedule until it is resumed."""
        return self._background().call_client(lambda client: client.schedules.pause(name))

    async def apause(self, name: str) -> ScheduleInfo:
        return await self._background().acall_client(lambda client: client.schedules.pause(name))

    def resume(self, name: str) -> ScheduleInfo:
        """Submit tasks again, from now on. Fire times during the pause are not caught up."""
        return self._background().call_client(lambda client: client.schedules.resume(name))

    async def aresume(self, name: str) -> ScheduleInfo:
        return await self._background().acall_client(lambda client: client.schedules.resume(name))

    def run(self, name: str) -> str:
        """Submit a task of this schedule now. Returns the id of the task."""
        return self._background().call_client(lambda client: client.schedules.run(name))

    async def arun(self, name: str) -> str:
        return await self._background().acall_client(lambda client: client.schedules.run(name))

    def remove(self, name: str) -> None:
        """Delete a schedule. Its tasks stay."""
        self._background().call_client(lambda client: client.schedules.remove(name))

    async def aremove(self, name: str) -> None:
        await self._background().acall_client(lambda client: client.schedules.remove(name))
