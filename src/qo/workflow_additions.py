"""The workflow of the running task, to which the task adds others."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.errors import InvalidSetting, InvalidWorkflow
from qo.model import NodeAddress, Task, node_address
from qo.running_task import running
from qo.workflow import OnParentFailure, Signature, check_signature
from qo.workflow_run import NodeHandle

R = TypeVar("R")


class CurrentWorkflow:
    """The workflow of the running task. Tasks that it adds run if this attempt completes, and are dropped otherwise.

    They wait for the running task. Tasks that were submitted with the workflow do not wait for them.
    """

    def __init__(self, task: Task, address: NodeAddress) -> None:
        self._address, self._attempt = address, task.attempt
        self.id = task.batch

    def add(
        self,
        signature: Signature[R],
        *,
        after: Iterable[NodeHandle[Any]] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> NodeHandle[R]:
        """Add a task; returns when it is stored. `after` and arguments may be tasks that this attempt added."""
        planned = self._plan(signature, after, on_parent_failure)
        (index,) = signature.background().call_client(self._store([planned]))
        return NodeHandle(self._address, index, signature.handler.type)

    async def aadd(
        self,
        signature: Signature[R],
        *,
        after: Iterable[NodeHandle[Any]] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> NodeHandle[R]:
        planned = self._plan(signature, after, on_parent_failure)
        (index,) = await signature.background().acall_client(self._store([planned]))
        return NodeHandle(self._address, index, signature.handler.type)

    def add_many(self, signatures: Iterable[Signature[R]]) -> list[NodeHandle[R]]:
        """Add tasks that run in parallel, with one write."""
        members = list(signatures)
        if not members:
            return []
        planned = [self._plan(each, (), "cancel") for each in members]
        return self._handles(members, members[0].background().call_client(self._store(planned)))

    async def aadd_many(self, signatures: Iterable[Signature[R]]) -> list[NodeHandle[R]]:
        members = list(signatures)
        if not members:
            return []
        planned = [self._plan(each, (), "cancel") for each in members]
        return self._handles(members, await members[0].background().acall_client(self._store(planned)))

    def _handles(self, members: Sequence[Signature[R]], indexes: Sequence[int]) -> list[NodeHandle[R]]:
        return [
            NodeHandle(self._address, index, signature.handler.type)
            for signature, index in zip(members, indexes, strict=True)
        ]

    def _plan(
        self, signature: Signature[Any], after: Iterable[NodeHandle[Any]], on_parent_failure: OnParentFailure
    ) -> PlannedTask:
        added_by = self._address.node, self._attempt
        return check_signature(signature).plan(self._index, after, on_parent_failure, added_by)

    def _index(self, handle: NodeHandle[Any]) -> int:
        if handle.workflow != self._address:
            raise InvalidWorkflow(f"{handle!r} was not added by this attempt")
        return handle.index

    def _store(self, planned: Sequence[PlannedTask]) -> Callable[[Client], Any]:
        return lambda client: client.workflows.add(self._address.token, planned)

    @classmethod
    def of(cls, task: Task) -> Self:
        address = node_address(task.id)
        if address is None or task.batch is None:
            raise InvalidSetting(f"task {task.id} is not part of a workflow")
        return cls(task, address)


def current_workflow() -> CurrentWorkflow:
    """The workflow of the task whose handler is running. Raises InvalidSetting elsewhere."""
    try:
        task = running.get()
    except LookupError:
        raise InvalidSetting("current_workflow() can be called only inside a handler that a worker runs") from None
    return CurrentWorkflow.of(task)
