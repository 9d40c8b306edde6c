"""Which tasks a page is about, as callers say it."""

import re
from typing import Annotated

from msgspec import Meta, Struct

from qo.errors import InvalidTask
from qo.model import Counts, Filter, check_name, check_names, check_types
from qo.web.callers import AccessLimits
from qo.web.dashboard_api.search import Search, folded
from qo.web.dashboard_api.views import StatusWord, statuses
from qo.web.openapi_types import Name

_SHARD = re.compile("[0-9a-f]{1,8}")


class TaskFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As in the list of tasks."""

    status: list[StatusWord] = []
    type: list[Name] = []
    queue: list[Name] = []
    worker: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    text: str = ""
    shard: str = ""


def search_of(given: TaskFilter, limits: AccessLimits) -> Search:
    if given.shard and not _SHARD.fullmatch(given.shard):
        raise InvalidTask("shard", f"{given.shard!r:.80} is not the beginning of an id: 1 to 8 of 0-9 and a-f")
    where = Filter(
        statuses=statuses(given.status),
        types=check_types("type", given.type),
        queues=check_names("queue", given.queue),
        worker_id=None if given.worker is None else check_name("worker", given.worker),
    )
    narrowed = limits.narrow(where)
    return Search(
        where=where if narrowed is None else narrowed,
        limits=limits,
        is_empty=narrowed is None,
        priority=given.priority,
        text=folded(given.text),
        shard=given.shard,
    )


def count(counts: Counts, search: Search) -> int:
    covers, statuses = search.where.lane_matcher(), search.where.possible_statuses
    counted = search.limits.count(counts).items()
    return sum(number for lane, number in counted if lane.status in statuses and covers(lane.queue, lane.type))
