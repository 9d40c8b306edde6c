"""Batches: tasks that were submitted together, and how many of them have finished."""

from typing import Annotated, Any

from litestar import Request, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, QueryParameter
from msgspec import Struct
from msgspec.structs import asdict

from qo.client.batches import BatchProgress
from qo.errors import InvalidTask
from qo.model import Filter, check_batch_id
from qo.web.http.access import HIDDEN, LIMITED, READ, caller_of
from qo.web.http.problems import problems
from qo.web.http.server import server_of


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
