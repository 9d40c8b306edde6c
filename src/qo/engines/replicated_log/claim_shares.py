"""Divides a claim among several shards, so that together they lease the tasks that rank first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import apsw
import msgspec
from msgspec.structs import replace

from qo.model import ClaimAllowance, ClaimRequest, eligibility, group_in, group_key, has_group_limits, in_order
from qo.sqlite_tables.claims import takes_from
from qo.sqlite_tables.lanes import SqliteLane, SqliteLanes
from qo.sqlite_tables.rows import DamageFound, damaged_rows, encode_list
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.transaction import ReadyLanes

_MAX_COMING = 1000  # due tasks that no claim has made ready yet
_Row = tuple[str, float, float, float, int]
_rows = msgspec.json.Decoder(list[_Row])
_lists = msgspec.json.Decoder(list[list[_Row]])


class ClaimCandidate(NamedTuple):
    """A task that a claim from its shard would lease."""

    id: str
    rank: float
    due_at: float
    created_at: float
    lane: SqliteLane


def read_candidates(
    db: apsw.Connection, lanes: SqliteLanes, ready: ReadyLanes, request: ClaimRequest, now: float
) -> list[ClaimCandidate]:
    """The tasks of one shard that a claim may lease: the first ones of each lane, and those that have become due.

    Raises DamageFound.
    """
    try:
        with db:  # one snapshot
            first = encode_list(ready.first(request, now))
            lanes.refresh()
            listed, encoded = db.execute(SQL["candidates"], (first, request.limit, now, _MAX_COMING)).get
            coming = _rows.decode(encoded)
            if len(coming) == _MAX_COMING:  # they may all be of lanes that this claim does not take
                numbers = encode_list(lanes.matching(takes_from(request)))
                coming = _rows.decode(db.execute(SQL["coming_in_lanes"], (numbers, now, _MAX_COMING)).get)
        rows = [*chain.from_iterable(_lists.decode(listed)), *coming]
    except msgspec.DecodeError as error:  # a lane or rank is not a number
        bad = damaged_rows(db, lanes)
        if not bad:
            raise
        raise DamageFound(bad) from error
    is_eligible = eligibility(request)
    found = (ClaimCandidate(*row[:4], lanes[row[4]]) for row in rows if row[4] in lanes)
    return [task for task in found if is_eligible(task.lane.queue, task.lane.type, task.lane.needs)]


def divide(
    request: ClaimRequest, candidates: Mapping[int, Sequence[ClaimCandidate]], now: float
) -> dict[int, ClaimRequest]:
    """The request to each shard that has some of the first tasks."""
    shards = {task.id: shard for shard, tasks in candidates.items() for task in tasks}
    allowance, chosen = ClaimAllowance(request), list[ClaimCandidate]()
    for task in in_order((task for tasks in candidates.values() for task in tasks), now, lambda task: task.lane):
        if len(chosen) >= request.limit:
            break
        if allowance.take(task.lane.type, task.lane.needs):
            chosen.append(task)
    sizes = Counter(shards[task.id] for task in chosen)
    of_types = Counter((shards[task.id], task.lane.type) for task in chosen)
    of_groups = _count_groups(chosen, shards) if has_group_limits(request) else Counter[tuple[int, str]]()
    groups = {key for _, key in of_groups}
    return {
        shard: replace(
            request,
            limit=size,
            per_type_limits={type_: of_types[shard, type_] for type_ in request.per_type_limits},
            group_limits={**request.group_limits, **{key: of_groups[shard, key] for key in groups}},
        )
        for shard, size in sizes.items()
    }


def _count_groups(chosen: Sequence[ClaimCandidate], shards: Mapping[str, int]) -> "Counter[tuple[int, str]]":
    """How many tasks of each group, by `group_key`, each shard leases."""
    groups = ((task, group_in(task.lane.needs)) for task in chosen)
    return Counter((shards[task.id], group_key(task.lane.type, group)) for task, group in groups if group is not None)
