"""A workflow as JSON, for the REST API and the command line."""

from msgspec import Struct

from qo.client.workflow_view import WorkflowNodeView, WorkflowView
from qo.clock import iso
from qo.model import PendingKind, Status, WorkflowStatus


class WorkflowNodeDocument(Struct, frozen=True, kw_only=True):
    """One task. `parents` and `waits_for` are indexes of other tasks; `waits_for` are the parents that have not
    completed. `status` is null if the task was deleted or never stored. `is_live` is false if an attempt that did not
    complete has added it."""

    index: int
    task_id: str
    type: str
    status: Status | None
    pending_kind: PendingKind | None
    parents: list[int]
    waits_for: list[int]
    on_parent_failure: str
    is_live: bool
    added_by: int | None
    attempt: int
    error: str | None
    created_at: str | None
    started_at: str | None
    completed_at: str | None


class WorkflowSummary(Struct, frozen=True, kw_only=True):
    """A workflow without its tasks. `counts` are tasks by status; `blocked` is counted apart from `pending`."""

    id: str
    name: str
    status: WorkflowStatus
    created_at: str | None
    idempotency_key: str | None
    total: int
    counts: dict[str, int]


class WorkflowDocument(WorkflowSummary, frozen=True, kw_only=True):
    """A workflow and its tasks."""

    nodes: list[WorkflowNodeDocument]


def workflow_summary(view: WorkflowView) -> WorkflowSummary:
    return WorkflowSummary(
        id=view.id,
        name=view.name,
        status=view.status,
        created_at=iso(view.created_at),
        idempotency_key=view.idempotency_key,
        total=view.total,
        counts=view.counts,
    )


def workflow_document(view: WorkflowView) -> WorkflowDocument:
    return WorkflowDocument(
        id=view.id,
        name=view.name,
        status=view.status,
        created_at=iso(view.created_at),
        idempotency_key=view.idempotency_key,
        total=view.total,
        counts=view.counts,
        nodes=[_node(node) for node in view.nodes],
    )


def _node(node: WorkflowNodeView) -> WorkflowNodeDocument:
    return WorkflowNodeDocument(
        index=node.index,
        task_id=node.task_id,
        type=node.type,
        status=node.status,
        pending_kind=node.pending_kind,
        parents=list(node.parents),
        waits_for=list(node.waits_for),
        on_parent_failure=node.on_parent_failure,
        is_live=node.is_live,
        added_by=node.added_by,
        attempt=node.attempt,
        error=node.error,
        created_at=iso(node.created_at),
        started_at=iso(node.started_at),
        completed_at=iso(node.completed_at),
    )
