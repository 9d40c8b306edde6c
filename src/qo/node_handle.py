"""The handle of a task in a workflow that is being built."""

from typing import Generic, TypeVar

R = TypeVar("R")


class NodeHandle(Generic[R]):
    """A task of a workflow. As an argument of another task it stands for its result."""

    __slots__ = ("index", "type", "workflow")

    def __init__(self, workflow: object, index: int, type: str) -> None:
        self.workflow, self.index, self.type = workflow, index, type

    def __repr__(self) -> str:
        return f"<NodeHandle {self.index} {self.type}>"
