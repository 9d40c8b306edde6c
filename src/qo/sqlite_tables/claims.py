"""Claims on one connection: the first tasks of all eligible lanes, in order."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from qo.model import ClaimAllowance, ClaimRequest, Status, Task, eligibility, has_group_limits, in_order, lane_of
from qo.sqlite_tables.lanes import SqliteLane, SqliteLanes
from qo.sqlite_tables.rows import BY_N, PENDING, DamageFound, damaged_rows, encode_list, plain, read_tasks
from qo.sqlite_tables.segments import SegmentNeeded
from qo.sqlite_tables.statements import SQL, write_rows
from qo.sqlite_tables.transaction import TableTransaction

_RUNNING = plain(Status.RUNNING)
_STAGE_SIZE = 1000  # tasks made ready by one statement
_MIN_READ = 4  # tasks of each lane that a claim from several lanes reads first

_numbers = msgspec.json.Decoder(list[int])
_pairs = msgspec.json.Decoder(list[tuple[int, int]])
_any_list = msgspec.json.Decoder(list[Any])
_candidates = msgspec.json.Decoder(list[tuple[int, list[tuple[float, float, int]]]])
_Head = tuple[float, float, int, int]  # the highest effective rank in its lane so far, rank, number, lane


class SqliteClaims:
    def __init__(self, transaction: TableTransaction) -> None:
        self._transaction, self._db, self._lanes = transaction, transaction.db, transaction.lanes

    def stage(self, now: float) -> None:
        """Make due tasks ready, in steps: one statement must not move a million tasks."""
        moved = 0 if self._transaction.is_staged else _STAGE_SIZE
        while moved == _STAGE_SIZE:
            lanes = self._db.execute(SQL["coming_lanes"], (now, _STAGE_SIZE)).get
            if lanes == "[]":
                break
            self._transaction.change_lanes([lane for lane in _any_list.decode(lanes) if isinstance(lane, int)])
            self._db.execute(SQL["stage"], (now, _STAGE_SIZE))
            moved = self._db.changes()
        self._transaction.is_staged = True

    def claim(self, request: ClaimRequest, now: float) -> list[Task]:
        if request.is_repeat and (leased := self._leased_under(request.lease_id, now)):
            return leased
        self.stage(now)
        return self._lease(self._choose(request, now), request, now)

    def _leased_under(self, lease_id: str, now: float) -> list[Task]:
        held = _numbers.decode(self._db.execute(SQL["held_under"], (lease_id,)).get)
        return in_order(read_tasks(self._db, BY_N, held, self._lanes).values(), now, lane_of) if held else []

    def claim_of(self, of_lanes: Mapping[SqliteLane, int], request: ClaimRequest, now: float) -> list[Task]:
        """Claim the first tasks of these lanes: as many as given for each. The order of the answer is undefined.

        If they are fewer than the limit of the request, others are claimed too, in the order of these tables.
        """
        if request.is_repeat and (leased := self._leased_under(request.lease_id, now)):
            return leased
        self.stage(now)
        claimed = self._lease(self._choose(request, now, of_lanes), request, now)
        missing = request.limit - len(claimed)
        if missing <= 0:
            return claimed
        allowance = ClaimAllowance(request)
        for task in claimed:
            allowance.take(task.type, task.stored_needs)
        types, groups = allowance.limits_left()
        rest = replace(request, limit=missing, per_type_limits=types, group_limits=groups, is_repeat=False)
        return claimed + self.claim(rest, now)

    def _lease(self, chosen: Sequence[int], request: ClaimRequest, now: float) -> list[Task]:
        if not chosen:
            return []
        numbers = encode_list(chosen)
        started_at = None if request.is_prefetch else now
        self._db.execute(
            SQL["claim"], (request.lease_id, request.worker_id, now + request.lease, now, numbers, started_at)
        )
        self._transaction.record(numbers)
        tasks = read_tasks(self._db, BY_N, chosen, self._lanes)
        return [tasks[n] for n in chosen]

    def claim_each(self, requests: Sequence[ClaimRequest], now: float) -> list[list[Task]]:
        """Serve claims that differ only in their leases: tasks are selected once, and distributed in order."""
        self.stage(now)
        chosen = self._choose(replace(requests[0], limit=sum(max(0, request.limit) for request in requests)), now)
        left = iter(chosen)
        shares = [list(islice(left, max(0, request.limit))) for request in requests]
        rows = [
            (n, request.lease_id, request.worker_id, now + request.lease, now, None if request.is_prefetch else now)
            for request, share in zip(requests, shares, strict=True)
            for n in share
        ]
        write_rows(self._db, "claim_each", rows)
        self._transaction.record(encode_list(chosen))
        tasks = read_tasks(self._db, BY_N, chosen, self._lanes)
        return [[tasks[n] for n in share] for share in shares]

    def _choose(self, request: ClaimRequest, now: float, of_lanes: Mapping[SqliteLane, int] | None = None) -> list[int]:
        """The numbers of the first tasks of all eligible lanes, in order, or of `of_lanes`.

        Raises DamageFound, or SegmentNeeded.
        """
        segments = self._transaction.segments
        if segments.may_exist:
            takes = takes_from(request) if of_lanes is None else of_lanes.__contains__
            require_heads(self._db, self._lanes, request.limit, takes, segments.unreadable)
        try:
            return self._first(request, now) if of_lanes is None else self._first_of(of_lanes)
        except msgspec.DecodeError as error:  # a lane or rank is not a number
            bad = damaged_rows(self._db, self._lanes)
            if not bad:
                raise
            raise DamageFound(bad) from error

    def _first(self, request: ClaimRequest, now: float) -> list[int]:
        lanes = self._transaction.ready.first(request, now, self._transaction.own_changes)
        self._transaction.own_changes.clear()
        if not lanes:
            return []
        size = request.limit if len(lanes) == 1 else max(_MIN_READ, 2 * request.limit // len(lanes))
        promoted = now if len(lanes) > 1 else float("-inf")  # within one lane the rank decides
        heads = self._heads(lanes, size, promoted)
        first = self._within_limits(heads, request)
        last = first[-1] if len(first) == request.limit else None
        # If all tasks read from a lane are among the first, the lane may hold more of them.
        short = [lane for lane, some in heads.items() if len(some) == size and (last is None or some[-1] <= last)]
        if short and size < request.limit:
            first = self._within_limits(heads | self._heads(short, request.limit, promoted), request)
        return self._taken(first)

    def _first_of(self, of_lanes: Mapping[SqliteLane, int]) -> list[int]:
        by_size = defaultdict[int, list[int]](list)
        for lane, size in of_lanes.items():
            if (number := self._lanes.find(lane)) is not None:
                by_size[size].append(number)
        heads = [self._heads(lanes, size, float("-inf")) for size, lanes in by_size.items()]
        return self._taken([head for lanes in heads for some in lanes.values() for head in some])

    def _taken(self, heads: Sequence[_Head]) -> list[int]:
        taken = Counter(lane for *_, lane in heads)
        for lane, number in taken.items():
            self._transaction.count_changes[lane, PENDING] -= number
            self._transaction.count_changes[lane, _RUNNING] += number
        self._transaction.change_lanes(taken)
        return [n for _, _, n, _ in heads]

    def _heads(self, lanes: Sequence[int], size: int, promoted: float) -> dict[int, list[_Head]]:
        """The first `size` tasks of each lane, in order."""
        heads = {}
        for lane, some in _candidates.decode(self._db.execute(SQL["first"], (encode_list(lanes), size, promoted)).get):
            reached = accumulate((effective for effective, _, _ in some), max)
            heads[lane] = [(highest, rank, n, lane) for highest, (_, rank, n) in zip(reached, some, strict=True)]
        return heads

    def _within_limits(self, heads: Mapping[int, list[_Head]], request: ClaimRequest) -> list[_Head]:
        """The first tasks of all lanes, within the limits per type and group."""
        first = sorted(head for some in heads.values() for head in some)
        if request.per_type_limits or has_group_limits(request):
            allowance = ClaimAllowance(request)
            lanes = ((head, self._lanes[head[3]]) for head in first)
            first = [head for head, lane in lanes if allowance.take(lane.type, lane.needs)]
        return first[: request.limit]


def takes_from(request: ClaimRequest) -> Callable[[SqliteLane], bool]:
    """Whether a claim may take tasks of a lane."""
    is_eligible, limits = eligibility(request), request.per_type_limits

    def takes(lane: SqliteLane) -> bool:
        return limits.get(lane.type, request.limit) > 0 and is_eligible(lane.queue, lane.type, lane.needs)

    return takes


def require_heads(
    db: apsw.Connection,
    lanes: SqliteLanes,
    limit: int,
    takes: Callable[[SqliteLane], bool],
    unreadable: Collection[str] = (),
) -> None:
    """Raise SegmentNeeded if a segment may contain tasks that a claim takes.

    A claim takes at most `limit` tasks of a lane, by their rank. So the tables must hold that many before the lane's
    first segment. Segments whose objects are in `unreadable` are ignored, and lanes of which the claim takes none.
    """
    if limit < 1:
        return
    unused = encode_list([*unreadable])
    thin = _numbers.decode(db.execute(SQL["thin_lanes"], (limit, unused)).get)
    if not thin:
        return
    lanes.refresh()
    thin = [lane for lane in thin if lane in lanes and takes(lanes[lane])]
    needed = list[int]()
    for lane in thin:
        found = _pairs.decode(db.execute(SQL["segments_of_lane"], (lane, unused)).get)
        before = accumulate((tasks for _, tasks in found), initial=0)
        needed += [n for (n, _), number in zip(found, before, strict=False) if number < limit]
    if needed:
        raise SegmentNeeded(needed)
