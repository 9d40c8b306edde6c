"""Divides a claim among several shards, so that together they lease the tasks that rank first."""

from collections import Counter, defaultdict
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

_MIN_LANES = 64  # whose first tasks are compared; an earlier one may be behind the first lane of a shard
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
            first = encode_list(_first_lanes(ready, request, now))
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


def _first_lanes(ready: ReadyLanes, request: ClaimRequest, now: float) -> list[int]:
    """The lanes of a shard that may contain some of the first tasks.

    The first task of a lane may be in another shard, and go later. Then a lane goes first that is further back here,
    or that has no share of the limits of its type or group here. So this includes such lanes, up to `_MIN_LANES`.
    """
    types, of_types, groups = (
        {name: limit for name, limit in limits.items() if limit <= 0}
        for limits in (request.per_type_limits, request.per_group_limits, request.group_limits)
    )
    more = replace(
        request,
        limit=max(request.limit, _MIN_LANES) if request.limit > 0 else 0,
        per_type_limits=types,
        per_group_limits=of_types,
        group_limits=groups,
    )
    lanes = ready.first(more, now)
    is_limited = request.per_type_limits or has_group_limits(request)
    return [*dict.fromkeys([*lanes, *ready.first(request, now)])] if is_limited else lanes


class ClaimShare(NamedTuple):
    """The part of a claim that a shard serves."""

    request: ClaimRequest
    of_lanes: Mapping[SqliteLane, int]  # how many of the first tasks it has in each lane


def divide(
    request: ClaimRequest, candidates: Mapping[int, Sequence[ClaimCandidate]], now: float
) -> dict[int, ClaimShare]:
    """The share of each shard that has some of the first tasks.

    A share says how many tasks of each lane it has. The order of a shard's own tasks is not enough: a newer task of a
    lane that goes first, because it ages faster, moves the promoted tasks after it back, also those of other shards.
    """
    shards = {task.id: shard for shard, tasks in candidates.items() for task in tasks}
    allowance, chosen = ClaimAllowance(request), list[ClaimCandidate]()
    for task in in_order((task for tasks in candidates.values() for task in tasks), now, lambda task: task.lane):
        if len(chosen) >= request.limit:
            break
        if allowance.take(task.lane.type, task.lane.needs):
            chosen.append(task)
    lanes = defaultdict[int, Counter[SqliteLane]](Counter)
    for task in chosen:
        lanes[shards[task.id]][task.lane] += 1
    of_types = Counter((shards[task.id], task.lane.type) for task in chosen)
    of_groups = _count_groups(chosen, shards) if has_group_limits(request) else Counter[tuple[int, str]]()
    groups = {key for _, key in of_groups}
    return {
        shard: ClaimShare(
            replace(
                request,
                limit=of_lanes.total(),
                per_type_limits={type_: of_types[shard, type_] for type_ in request.per_type_limits},
                group_limits={**request.group_limits, **{key: of_groups[shard, key] for key in groups}},
            ),
            of_lanes,
        )
        for shard, of_lanes in lanes.items()
    }


def _count_groups(chosen: Sequence[ClaimCandidate], shards: Mapping[str, int]) -> "Counter[tuple[int, str]]":
    """How many tasks of each group, by `group_key`, each shard leases."""
    groups = ((task, group_in(task.lane.needs)) for task in chosen)
    return Counter((shards[task.id], group_key(task.lane.type, group)) for task, group in groups if group is not None)
