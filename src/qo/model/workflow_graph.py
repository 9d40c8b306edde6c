"""The graph of a workflow: its tasks, what each of them waits for, and their ids."""

from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct

MAX_WORKFLOW_TASKS = 10_000
MAX_WORKFLOW_EDGES = 200_000
SUBMIT_DEADLINE = 300.0  # seconds from the start of a submission until a task that is not stored counts as missing
# The capability needed by tasks whose payload is filled with results. Only processes that fill payloads have it, so a
# worker of an older build does not run such a task with the unfilled payload.
FILLS_RESULTS = "workflow-results"
WORKFLOW_ID_SUFFIX = "0f107"  # the last digits of the ids of all tasks of workflows
_TOKEN_LENGTH = 20  # hexadecimal digits
_ID_LENGTH = 36  # characters
_BOUND, _UNBOUND = "a", "8"  # digit 16 of an id: whether the payload needs results of parents


class ParentFailure(StrEnum):
    """What happens to a task if one of its parents does not complete."""

    __hash__ = str.__hash__

    CANCEL = "cancel"
    RUN = "run"  # it runs as if the parent had completed; a result that it needs is None
    WAIT = "wait"  # it waits until the parent is replayed and completes


class Binding(Struct, frozen=True, array_like=True, gc=False):
    """A place in a payload that is filled with the result of a parent, or with the list of the results of several."""

    path: tuple[str | int, ...]
    parents: tuple[int, ...]
    is_list: bool = False


class GraphNode(Struct, frozen=True, kw_only=True, gc=False):
    """One task of a graph. Nodes are named by their index, and every parent has a lower index than its children."""

    type: str
    parents: tuple[int, ...] = ()  # sorted
    on_parent_failure: ParentFailure = ParentFailure.CANCEL
    bindings: tuple[Binding, ...] = ()
    added_by: tuple[int, int] | None = None  # the node and the attempt that added this node; the node is a parent
    delay: float = 0.0  # seconds between its release and its first attempt
    run_at: float | None = None  # not before this time
    added_at: float | None = None  # when a running task added it


class WorkflowGraph(Struct, frozen=True, kw_only=True):
    """The tasks of a workflow and what each of them waits for. Nodes are only added, at the end."""

    token: str  # the ids of the tasks contain it
    name: str
    created_at: float
    nodes: tuple[GraphNode, ...]
    key: str | None = None  # the idempotency key of the submission
    digest: str = ""  # of everything that was submitted, to recognise another submission under the same key
    submission: str = ""  # random, if there is a key: workflows under the same key have the same token and task ids
    epoch: int = 0  # grows with each replay, after which cached states of finished tasks are invalid
    is_stored: bool = True  # False: its submission under a key may have been interrupted
    resumed_at: float | None = None  # when a repeated call resumed the submission

    @property
    def id(self) -> str:
        """Also the batch of its tasks."""
        return workflow_id(self.name, self.token)

    @property
    def revision(self) -> tuple[int, int]:
        """Grows with each replay and with each addition: the epoch, and the number of tasks if some were added."""
        return self.epoch, 0 if self.nodes[-1].added_by is None else len(self.nodes)

    def task_id(self, index: int) -> str:
        return workflow_task_id(self.token, index, is_bound=bool(self.nodes[index].bindings))

    def task_ids(self) -> list[str]:
        return [self.task_id(index) for index in range(len(self.nodes))]

    def stored_from(self, index: int) -> float:
        """When the submission of a node began."""
        return self.nodes[index].added_at or self.resumed_at or self.created_at

    def children(self) -> list[list[int]]:
        """The children of each node."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for parent in node.parents:
                found[parent].append(index)
        return found


class NodeAddress(NamedTuple):
    """The workflow of a task, and its index there."""

    token: str
    node: int  # its index


def workflow_id(name: str, token: str) -> str:
    return f"{name}-{token}"


def token_of(id: str) -> str | None:
    """The token in the id of a workflow; None if the text is not such an id."""
    name, _, token = id.rpartition("-")
    is_token = len(token) == _TOKEN_LENGTH and all(digit in "0123456789abcdef" for digit in token)
    return token if name and is_token else None


def derived_token(name: str, key: str) -> str:
    """The token of the workflow with this name and idempotency key."""
    return sha256(f"workflow:{len(name)}:{name}:{key}".encode(errors="surrogatepass")).hexdigest()[:_TOKEN_LENGTH]


def random_token(digits: str) -> str:
    """A token from at least 20 random hexadecimal digits."""
    return digits[:_TOKEN_LENGTH]


def workflow_task_id(token: str, index: int, *, is_bound: bool) -> str:
    """The id of a task: a UUID (version 8) that names its workflow and its index.

    A guarded change contains only the id of its task, so the id shows without a read whether the task belongs to a
    workflow. The first digit spreads the tasks over all shards.
    """
    shard = "%x" % ((int(token[-1], 16) + index) % 16)
    flag = _BOUND if is_bound else _UNBOUND
    end = f"{token[17:]}{index:04x}{WORKFLOW_ID_SUFFIX}"
    return f"{shard}{token[:7]}-{token[7:11]}-8{token[11:14]}-{flag}{token[14:17]}-{end}"


def node_address(task_id: str) -> NodeAddress | None:
    """The workflow and index in the id of a task; None if the task belongs to no workflow.

    One in a million other ids looks like the id of a workflow task. Its workflow then does not exist.
    """
    if not task_id.endswith(WORKFLOW_ID_SUFFIX) or len(task_id) != _ID_LENGTH or task_id[14] != "8":
        return None
    token = f"{task_id[1:8]}{task_id[9:13]}{task_id[15:18]}{task_id[20:23]}{task_id[24:27]}"
    try:
        return NodeAddress(token, int(task_id[27:31], 16))
    except ValueError:
        return None


def needs_results(task_id: str) -> bool:
    """Whether the payload of this task of a workflow is filled with results of its parents."""
    return task_id.endswith(WORKFLOW_ID_SUFFIX) and len(task_id) == _ID_LENGTH and task_id[19] == _BOUND
