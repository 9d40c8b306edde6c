"""One change of many tasks, for the actions by filter of both REST APIs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

from litestar import Request
from msgspec import Meta, Struct

from qo.engine import Engine
from qo.model import Filter, Task, check_cursor, cursor
from qo.web.http.action_recorder import RequestedAction
from qo.web.http.server import log_transition

_PAGE_SIZE = 500
BulkLimit = Annotated[int, Meta(ge=1, le=10_000)]


class Changed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many tasks were changed. `more`: further tasks match; repeat the request with `next` as its `after`."""

    changed: int
    more: bool
    next: str | None = None


class ChosenTasks(NamedTuple):
    tasks: list[Task]
    next: str | None  # the cursor of the last one if more tasks match


async def choose_tasks(
    engine: Engine, where: Filter | None, is_chosen: Callable[[Task], bool], *, limit: int, after: str
) -> ChosenTasks:
    """The matching tasks, newest first, before the first of them changes. None as the filter means that none match."""
    check_cursor(after)
    chosen: list[Task] = []
    while where is not None:
        some = await engine.find_without_values(where, limit=_PAGE_SIZE, after=after)
        chosen += filter(is_chosen, some)
        if len(chosen) > limit:
            return ChosenTasks(chosen[:limit], cursor(chosen[limit - 1]))
        if len(some) < _PAGE_SIZE:
            break
        after = cursor(some[-1])
    return ChosenTasks(chosen, None)


async def change_tasks(
    request: Request[Any, Any, Any],
    chosen: ChosenTasks,
    write: Callable[[Sequence[Task]], Awaitable[list[bool]]],
    *,
    recorded: RequestedAction,
    transition: str,
) -> Changed:
    """Write the changes in steps. Each is recorded before the next."""
    changed = 0
    log_transition(request, transition, number=0)  # names the action in the audit trail, even if a write fails
    for start in range(0, len(chosen.tasks), _PAGE_SIZE):
        some = chosen.tasks[start : start + _PAGE_SIZE]
        answers = await write(some)
        recorded.add([task.id for task in some], answers)
        changed += sum(answers)
        log_transition(request, transition, number=changed)
    return Changed(changed=changed, more=chosen.next is not None, next=chosen.next)
