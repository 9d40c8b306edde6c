"""How many pending tasks are ready, scheduled, retrying and blocked.

The counts of a store distinguish only statuses. Tasks that are due later are found by a search of their index; the rest
are ready. The search stops after `MAX_COUNTED` tasks.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from qo.engine import Engine
from qo.model import Counts, Filter, PendingKind, Status, cursor, pending_kind

MAX_COUNTED = 20_000  # tasks that are due later; more are not counted one by one
_PAGE_SIZE = 1000
_LATER = Filter(
    statuses=(Status.PENDING,), pending=tuple(kind for kind in PendingKind if kind is not PendingKind.READY)
)

Lane = tuple[str, str]  # queue and type


class PendingCounts(Struct, frozen=True, kw_only=True):
    """Pending tasks by queue and type, and by kind."""

    by_lane: Mapping[Lane, Mapping[PendingKind, int]] = {}
    is_complete: bool = True  # False: some of the tasks counted as ready are due later

    def total(self) -> dict[PendingKind, int]:
        """The numbers of all queues and types."""
        sums = Counter[PendingKind]()
        for kinds in self.by_lane.values():
            sums.update(kinds)
        return {kind: sums[kind] for kind in PendingKind}


async def count_pending(engine: Engine, counts: Counts, now: float, *, where: Filter = _LATER) -> PendingCounts:
    """Divide the pending tasks in `counts` by kind.

    `where` may narrow the search to the queues and types of `counts`.
    """
    pending: Counter[Lane] = Counter()
    for key, number in counts.items():
        if key.status is Status.PENDING and number > 0:
            pending[key.queue, key.type] += number
    if not pending:
        return PendingCounts()
    later, is_complete = await _count_later(engine, where, now)
    by_lane: dict[Lane, dict[PendingKind, int]] = {}
    for lane, number in pending.items():
        kinds = later.get(lane, Counter())
        ready = max(0, number - sum(kinds.values()))  # the counts may be older than the search
        by_lane[lane] = {PendingKind.READY: ready} | {kind: kinds[kind] for kind in _LATER.pending}
    return PendingCounts(by_lane=by_lane, is_complete=is_complete)


async def _count_later(engine: Engine, where: Filter, now: float) -> tuple[dict[Lane, Counter[PendingKind]], bool]:
    found: dict[Lane, Counter[PendingKind]] = {}
    after, number = "", 0
    while number < MAX_COUNTED:
        page = await engine.find_without_values(where, limit=_PAGE_SIZE, after=after)
        for task in page:
            kind = pending_kind(task, now)
            if kind is not None and kind is not PendingKind.READY:
                found.setdefault((task.queue, task.type), Counter())[kind] += 1
        number += len(page)
        if len(page) < _PAGE_SIZE:
            return found, True
        after = cursor(page[-1])
    return found, False
