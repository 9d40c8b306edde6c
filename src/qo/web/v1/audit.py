"""The audit trail, for admins."""

from typing import Annotated, Any

from litestar import Request, get
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from qo.audit import ActionOutcome, ActorKind, AuditRecord, read_audit
from qo.clock import iso
from qo.errors import InvalidSetting
from qo.web.http.access import ADMIN
from qo.web.http.problems import problems
from qo.web.http.server import server_of

MAX_PAGE_SIZE = 500
_LATEST = 253_402_300_799.0  # the end of the year 9999
_MAX_AGE = 90 * 86_400  # seconds; older records are deleted


class ActionView(Struct, frozen=True, kw_only=True):
    """An action. `number` is how many tasks it changed, null if it does not affect tasks; `task_ids` are the first of
    them. `outcome` is `unknown` if the store failed and the change may have been made. `verified` is false
    if the record was written with credentials that can only add records, so its content is not verified."""

    id: str
    at: str
    actor: ActorKind
    who: str
    action: str
    target: str
    task_ids: list[str]
    number: int | None
    outcome: ActionOutcome
    origin: str
    verified: bool


class ActionPage(Struct, frozen=True, kw_only=True):
    """`next` is the value of `after` for the next page. `dropped` records were deleted because there were too many;
    `unreadable` records are stored but cannot be read."""

    actions: list[ActionView]
    next: str | None
    dropped: int
    unreadable: int


@get("/audit", opt=ADMIN, responses=problems())
async def list_actions(
    *,
    request: Request[Any, Any, Any],
    action: FromQuery[list[str] | None] = None,
    who: FromQuery[str] = "",
    task: FromQuery[str] = "",
    since: Annotated[float | None, QueryParameter(ge=0, le=_MAX_AGE)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_SIZE)] = 50,
    after: FromQuery[str] = "",
) -> ActionPage:
    """Actions, newest first. Filters: `action` (can be repeated), `who` (part of the caller's name), `task`, and
    `since` (seconds)."""
    server = server_of(request)
    now = server.clock()
    wanted, name, task_id = frozenset(action or ()), who.casefold(), task.lower()

    def matches(record: AuditRecord) -> bool:
        return (
            (not wanted or record.action in wanted)
            and name in record.who.casefold()
            and (not task_id or task_id in record.task_ids)
        )

    page = await read_audit(
        server.client.engine,
        now=now,
        limit=limit,
        since=None if since is None else now - since,
        before=_position(after) if after else None,
        matches=matches,
    )
    following = f"{page.records[-1].at!r}~{page.records[-1].id}" if page.has_more else None
    return ActionPage(
        actions=[_view(record) for record in page.records],
        next=following,
        dropped=page.dropped,
        unreadable=page.unreadable,
    )


def _view(record: AuditRecord) -> ActionView:
    return ActionView(
        id=record.id,
        at=iso(record.at),
        actor=record.actor,
        who=record.who,
        action=record.action,
        target=record.target,
        task_ids=list(record.task_ids),
        number=record.number,
        outcome=record.outcome,
        origin=record.origin,
        verified=record.verified,
    )


def _position(after: str) -> tuple[float, str]:
    number, _, record_id = after.partition("~")
    try:
        at = float(number)
    except ValueError:
        at = -1.0
    if not 0 <= at <= _LATEST:
        raise InvalidSetting(
            f"{after!r:.80} is not a position in a listing; pass the one that the previous page returned"
        )
    return at, record_id
