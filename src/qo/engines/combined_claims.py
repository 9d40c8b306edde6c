"""Similar claims of one batch, combined into one call."""

from collections import defaultdict
from collections.abc import Sequence

from qo.engines.commit_loop import PendingCall
from qo.model import Task, has_group_limits
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import WriterCall


class CombinedClaims:
    """Claims that differ only in their leases, as one call: a hundred of them cost about as much as one."""

    def __init__(self, calls: Sequence[PendingCall], now: float) -> None:
        self._calls, self._now = calls, now
        self.answer: list[list[Task]] | None = None
        self.error: BaseException | None = None

    def work(self, table: SqliteTable) -> list[list[Task]]:
        return table.claim_each([call.request for call in self._calls if call.request is not None], self._now)

    def distribute(self) -> None:
        """Pass the answer or the error on to the combined calls."""
        for number, call in enumerate(self._calls):
            call.answer = self.answer[number] if self.answer is not None else None
            call.error = self.error


def combined(calls: Sequence[PendingCall], now: float) -> list[WriterCall]:
    """The calls of one transaction, claims last: they may take tasks that are added with them."""
    others: list[WriterCall] = []
    similar = defaultdict[object, list[PendingCall]](list)
    for call in calls:
        request = call.request
        if request is None or request.is_repeat or request.per_type_limits or has_group_limits(request):
            others.append(call)
        else:
            similar[request.queues, request.types, request.capabilities, request.takes_groups].append(call)
    return others + [CombinedClaims(claims, now) if len(claims) > 1 else claims[0] for claims in similar.values()]
