"""Workflows: list, show, cancel and replay them."""

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta, Struct

from qo.client.workflow_document import WorkflowDocument, WorkflowSummary, workflow_document, workflow_summary
from qo.model import MAX_WORKFLOW_TASKS
from qo.web.http.access import OPERATE, READ
from qo.web.http.action_recorder import describe_action
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of


class WorkflowList(Struct, frozen=True, kw_only=True):
    workflows: list[WorkflowSummary]


class WorkflowReplay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to run again, with everything that depends on them: indexes or ids. Without any, the tasks that
    failed or were cancelled."""

    start: Annotated[
        list[Annotated[int, Meta(ge=0, lt=MAX_WORKFLOW_TASKS)] | Annotated[str, Meta(max_length=64)]],
        Meta(max_length=MAX_WORKFLOW_TASKS),
    ] = []


class ChangedWorkflow(Struct, frozen=True, kw_only=True):
    """How many of its tasks were changed."""

    id: str
    tasks: int


@get("/workflows", opt=READ, responses=problems())
async def list_workflows(
    request: Request[Any, Any, Any], limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50
) -> WorkflowList:
    """Workflows, newest first: those that have not ended, and those of the 1,000 newest tasks."""
    found = await server_of(request).client.workflows.list(limit=limit)
    return WorkflowList(workflows=[workflow_summary(each) for each in found])


@get("/workflows/{workflow_id:str}", opt=READ, responses=problems(404))
async def show_workflow(request: Request[Any, Any, Any], workflow_id: FromPath[str]) -> WorkflowDocument:
    """One workflow: its graph, with the current state of each task."""
    return workflow_document(await server_of(request).client.workflows.read(workflow_id))


@post("/workflows/{workflow_id:str}/cancel", opt=OPERATE, status_code=200, responses=problems(404, 409))
async def cancel_workflow(request: Request[Any, Any, Any], workflow_id: FromPath[str]) -> ChangedWorkflow:
    """Cancel all tasks of a workflow that have not ended."""
    describe_action(request, workflow=[workflow_id]).verb = "workflow.cancel"
    number = await server_of(request).client.workflows.cancel(workflow_id)
    log_transition(request, "cancelled", workflow=workflow_id)
    return ChangedWorkflow(id=workflow_id, tasks=number)


@post("/workflows/{workflow_id:str}/replay", opt=OPERATE, status_code=200, responses=problems(404, 409, 413, 415))
async def replay_workflow(
    request: Request[Any, Any, Any], workflow_id: FromPath[str], data: JSONBody[WorkflowReplay]
) -> ChangedWorkflow:
    """Run tasks of a workflow again: those that failed or were cancelled, or chosen ones and what depends on them."""
    describe_action(request, workflow=[workflow_id]).verb = "workflow.replay"
    number = await server_of(request).client.workflows.replay(workflow_id, data.start)
    log_transition(request, "replayed", workflow=workflow_id)
    return ChangedWorkflow(id=workflow_id, tasks=number)
