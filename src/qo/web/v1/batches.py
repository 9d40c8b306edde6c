"""Tasks that were submitted together: batches with their progress, and workflows."""

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta, Struct
from msgspec.structs import asdict

from qo.client.batches import BatchProgress
from qo.client.workflow_view import WorkflowDocument, WorkflowSummary, workflow_document, workflow_summary
from qo.errors import InvalidTask
from qo.model import MAX_WORKFLOW_TASKS, Filter, check_batch_id
from qo.web.http.access import HIDDEN, LIMITED, OPERATE, READ, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of


class BatchView(Struct, frozen=True, kw_only=True):
    """The tasks of a batch by status. `pending` tasks are queued, `running` ones executing; `failed` includes those in
    `dead_letter`. `done` counts the finished ones, `fraction` is their share from 0 to 1. `eta` is the estimated number
    of seconds until all have finished; null in lists and if it is unknown."""

    id: str
    total: int
    pending: int
    running: int
    completed: int
    failed: int
    cancelled: int
    archived: int
    done: int
    fraction: float
    eta: float | None


class BatchList(Struct, frozen=True, kw_only=True):
    batches: list[BatchView]


@get("/batches", opt=READ | LIMITED, responses=problems())
async def show_batches(
    request: Request[Any, Any, Any], limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50
) -> BatchList:
    """The batches of the 1,000 newest tasks, newest first. Tasks outside the limits of the token are not counted."""
    found = await server_of(request).batches.newest(_inside(request), limit=limit)
    return BatchList(batches=[_view(each) for each in found])


@get("/batches/{name:str}", opt=READ | HIDDEN, responses=problems(404))
async def show_batch(request: Request[Any, Any, Any], name: FromPath[str]) -> BatchView:
    """One batch, by its id, or by the name that `qo.batch` was given: then the newest of that name."""
    try:
        check_batch_id("batch", name)
    except InvalidTask as error:
        raise NotFoundException(str(error)) from error
    progress = await server_of(request).batches.progress(name, _inside(request))
    if not progress.total:
        raise NotFoundException(f"there is no batch {name}, or its tasks have been deleted")
    return _view(progress)


def _inside(request: Request[Any, Any, Any]) -> Filter:
    """The queues and types of the caller; none means all."""
    return caller_of(request).limits.narrow(Filter()) or Filter()


def _view(progress: BatchProgress) -> BatchView:
    return BatchView(**asdict(progress), done=progress.done, fraction=progress.fraction)


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
    """Workflows, newest first: unfinished ones, and those of the 1,000 newest tasks."""
    found = await server_of(request).client.workflows.list(limit=limit)
    return WorkflowList(workflows=[workflow_summary(each) for each in found])


@get("/workflows/{workflow_id:str}", opt=READ, responses=problems(404))
async def show_workflow(request: Request[Any, Any, Any], workflow_id: FromPath[str]) -> WorkflowDocument:
    """One workflow: its graph, with the current state of each task."""
    return workflow_document(await server_of(request).client.workflows.read(workflow_id))


@post("/workflows/{workflow_id:str}/cancel", opt=OPERATE, status_code=200, responses=problems(404, 409))
async def cancel_workflow(request: Request[Any, Any, Any], workflow_id: FromPath[str]) -> ChangedWorkflow:
    """Cancel all unfinished tasks of a workflow."""
    action = describe_action(request, workflow=[workflow_id])
    action.verb = "workflow.cancel"
    number = await server_of(request).client.workflows.cancel(workflow_id, progress=action.count)
    log_transition(request, "cancelled", workflow=workflow_id)
    return ChangedWorkflow(id=workflow_id, tasks=number)


@post("/workflows/{workflow_id:str}/replay", opt=OPERATE, status_code=200, responses=problems(404, 409, 413, 415))
async def replay_workflow(
    request: Request[Any, Any, Any], workflow_id: FromPath[str], data: JSONBody[WorkflowReplay]
) -> ChangedWorkflow:
    """Rerun tasks of a workflow: those that failed or were cancelled, or chosen ones and all that depend on them."""
    action = describe_action(request, workflow=[workflow_id])
    action.verb = "workflow.replay"
    number = await server_of(request).client.workflows.replay(workflow_id, data.start, progress=action.count)
    log_transition(request, "replayed", workflow=workflow_id)
    return ChangedWorkflow(id=workflow_id, tasks=number)
