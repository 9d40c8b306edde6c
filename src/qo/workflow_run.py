"""The handles of a workflow: of a submitted one, and of a task in one that is being built."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from qo.background import BackgroundClient
from qo.client import Client
from qo.client.batches import BatchProgress
from qo.client.workflow_view import WorkflowView
from qo.codec import decode_value
from qo.model import Task, WorkflowStatus
from qo.tasks import Registry

R = TypeVar("R")


class NodeHandle(Generic[R]):
    """A task of a workflow. As an argument of another task it stands for its result."""

    __slots__ = ("index", "type", "workflow")

    def __init__(self, workflow: object, index: int, type: str) -> None:
        self.workflow, self.index, self.type = workflow, index, type

    def __repr__(self) -> str:
        return f"<NodeHandle {self.index} {self.type}>"


class WorkflowRun:
    """A submitted workflow. Each method blocks, and has an async form with the prefix `a` for any event loop."""

    def __init__(self, background: BackgroundClient, registry: Registry, id: str, *, new: bool = False) -> None:
        self._background, self._registry = background, registry
        self.id = id
        self.new = new  # False: it already existed

    def view(self) -> WorkflowView:
        """The graph, with the current state of each task. Raises WorkflowNotFound."""
        return self._background.call_client(lambda client: client.workflows.read(self.id))

    async def aview(self) -> WorkflowView:
        return await self._background.acall_client(lambda client: client.workflows.read(self.id))

    def status(self) -> WorkflowStatus:
        return self.view().status

    async def astatus(self) -> WorkflowStatus:
        return (await self.aview()).status

    def progress(self) -> BatchProgress:
        """How many tasks have finished, and how long the others may take."""
        return self._background.call_client(lambda client: client.workflows.progress(self.id))

    async def aprogress(self) -> BatchProgress:
        return await self._background.acall_client(lambda client: client.workflows.progress(self.id))

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the tasks that no other task depends on. Returns the result of the only one, or a list of results.

        Raises TaskFailed if one of them did not complete, and ResultTimeout. Do not call it in a handler: the handler
        would occupy a slot that the tasks of the workflow need (docs/workflows.md).
        """
        return self._background.call_client(self._result(timeout))

    async def aresult(self, timeout: float | None = None) -> Any:
        return await self._background.acall_client(self._result(timeout))

    def _result(self, timeout: float | None) -> Callable[[Client], Any]:
        return lambda client: client.workflows.result(self.id, timeout=timeout, decode=self._decode)

    def _decode(self, task: Task) -> Any:
        handler = self._registry.get(task.type)
        if task.result is None:
            return None
        return decode_value(task.result) if handler is None else handler.decode_result(task.result)

    def cancel(self) -> int:
        """Cancel all unfinished tasks; returns their number. Raises WrongStatus if there are none."""
        return self._background.call_client(lambda client: client.workflows.cancel(self.id))

    async def acancel(self) -> int:
        return await self._background.acall_client(lambda client: client.workflows.cancel(self.id))

    def replay(self, *start: NodeHandle[Any] | int | str) -> int:
        """Rerun the tasks that failed or were cancelled, or these tasks and everything that depends on them.

        A task is named by its handle, its index or its id. Returns the number of tasks.
        """
        return self._background.call_client(lambda client: client.workflows.replay(self.id, _names(start)))

    async def areplay(self, *start: NodeHandle[Any] | int | str) -> int:
        return await self._background.acall_client(lambda client: client.workflows.replay(self.id, _names(start)))

    def __repr__(self) -> str:
        return f"<WorkflowRun {self.id}>"


def _names(start: Sequence[NodeHandle[Any] | int | str]) -> list[int | str]:
    return [each.index if isinstance(each, NodeHandle) else each for each in start]
