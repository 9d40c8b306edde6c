"""Limits across all workers: read them with the holders of their slots, and set them."""

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.exceptions import PermissionDeniedException
from litestar.params import JSONBody
from msgspec import Meta, Struct

from qo.clock import iso
from qo.errors import InvalidTask
from qo.fleet_limits.limit_status import GroupStatus, LimitStatus, describe_limit, limit_statuses
from qo.fleet_limits.rules import KEY, QUEUE, TYPE
from qo.model import Limit, check_declared
from qo.web.callers import AccessLimits
from qo.web.http.access import CHECKED, LIMITED, OPERATE, READ, caller_of
from qo.web.http.action_recorder import describe_action
from qo.web.http.openapi import Name, TypeName
from qo.web.http.problems import problems
from qo.web.http.server import log_transition, server_of

GroupName = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]*$")]


class SlotView(Struct, frozen=True, kw_only=True):
    task_id: str
    worker_id: str
    since: str | None


class GroupView(Struct, frozen=True, kw_only=True):
    """`group` is empty for a limit without a key, `name` is the group for people. `running` of its `concurrency` slots
    are used; 0 means no limit. `waiting` are its due tasks; of a limit without a key, all pending tasks. `waits_for`
    says what they wait for: it is empty if one may start now. `next_start_at` is the first start time that the rate
    allows, null if that is now."""

    group: str
    name: str
    type: str | None
    running: int
    concurrency: int
    rate: float
    per: float
    next_start_at: str | None
    waiting: int
    waits_for: list[str]
    holders: list[SlotView]


class FleetLimitView(Struct, frozen=True, kw_only=True):
    """`scope` is `type:NAME`, `queue:NAME` or `key:NAME=VALUE`. 0 means no limit. `is_live`: set here, not by code.
    `groups` are the 50 with most waiting tasks of all `group_count`. `is_exact` is false if there are too many waiting
    tasks to read, or if the groups of some are not stored yet: the numbers of waiting tasks of groups are lower bounds
    then."""

    scope: str
    concurrency: int
    rate: float
    per: float
    key: str | None
    is_live: bool
    waiting: int | None
    groups: list[GroupView]
    group_count: int
    is_exact: bool


class FleetLimitsView(Struct, frozen=True, kw_only=True):
    limits: list[FleetLimitView]


class FleetLimitChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `type`, `queue` and `key`.

    `concurrency` or `rate` is at least 1; `remove` restores the limit in the code.
    """

    type: TypeName | None = None
    queue: Name | None = None
    key: GroupName | None = None
    concurrency: Annotated[int, Meta(ge=0, le=10_000)] = 0
    rate: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    per: Annotated[float, Meta(gt=0, le=3_200_000_000)] = 1.0
    remove: bool = False


@get("/limits", opt=READ | LIMITED, responses=problems())
async def show_limits(request: Request[Any, Any, Any]) -> FleetLimitsView:
    """The limits across all workers, the holders of their slots, and the number of waiting tasks."""
    return await limits_view(request)


@post("/limits", opt=OPERATE | CHECKED, status_code=200, responses=problems(413, 415))
async def change_limit(request: Request[Any, Any, Any], data: JSONBody[FleetLimitChange]) -> FleetLimitsView:
    """Limit a type, a queue, or one value of an argument across all workers. Workers notice within a second.

    403 if this would affect tasks outside the limits of the token."""
    scope = _scope(data)
    if not _is_inside(scope, caller_of(request).limits):
        raise PermissionDeniedException("this would affect tasks outside the limits of this token")
    limit = None if data.remove else check_declared(Limit(concurrency=data.concurrency, rate=data.rate, per=data.per))
    described = "as in the code" if limit is None else describe_limit(limit)
    describe_action(request, f"{scope}: {described}")
    await server_of(request).client.controls.limit_fleet(scope, limit)
    log_transition(request, "limited", scope=scope)
    return await limits_view(request)


async def limits_view(request: Request[Any, Any, Any]) -> FleetLimitsView:
    server, access = server_of(request), caller_of(request).limits
    controls = await server.client.controls.in_force()
    statuses = await limit_statuses(server.client.engine, controls, server.waiting_groups)
    return FleetLimitsView(limits=[_view(status) for status in statuses if _is_inside(status.scope, access)])


def _scope(data: FleetLimitChange) -> str:
    named = [
        prefix + name for prefix, name in ((TYPE, data.type), (QUEUE, data.queue), (KEY, data.key)) if name is not None
    ]
    if len(named) != 1:
        raise InvalidTask("scope", "send one of type, queue and key")
    return named[0]


def _is_inside(scope: str, access: AccessLimits) -> bool:
    if scope.startswith(TYPE):
        return access.includes_type(scope.removeprefix(TYPE))
    if scope.startswith(QUEUE):
        return access.includes_queue(scope.removeprefix(QUEUE))
    return access.is_whole


def _view(status: LimitStatus) -> FleetLimitView:
    return FleetLimitView(
        scope=status.scope,
        concurrency=status.concurrency,
        rate=status.rate,
        per=status.per,
        key=status.key,
        is_live=status.is_live,
        waiting=status.waiting,
        groups=[_group_view(group) for group in status.groups],
        group_count=status.group_count,
        is_exact=status.is_exact,
    )


def _group_view(group: GroupStatus) -> GroupView:
    return GroupView(
        group=group.group,
        name=group.name,
        type=group.type,
        running=group.running,
        concurrency=group.concurrency,
        rate=group.rate,
        per=group.per,
        next_start_at=iso(group.next_at),
        waiting=group.waiting,
        waits_for=list(group.waits_for),
        holders=[
            SlotView(task_id=holder.task_id, worker_id=holder.worker_id, since=iso(holder.since))
            for holder in group.holders
        ],
    )
