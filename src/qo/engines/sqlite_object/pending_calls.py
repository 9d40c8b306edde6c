"""Calls that wait for the next transaction on the image."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qo.model import ClaimRequest, Task
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import WriterCall


@dataclass(slots=True, eq=False)
class PendingCall:
    work: Callable[[SqliteTable], Any]
    abandoned: Callable[[Any], None] | None = None  # called with the answer if the caller was cancelled
    request: ClaimRequest | None = None  # the request of a claim
    answer: Any = None
    error: BaseException | None = None
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def resolve(self, error: BaseException | None) -> None:
        """Give the caller its answer, or the error of the whole transaction."""
        error = error or self.error
        if self.done.done():
            if self.abandoned is not None and error is None:
                self.abandoned(self.answer)
        elif error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(self.answer)


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
        if request is None or request.is_repeat or request.per_type_limits:
            others.append(call)
        else:
            similar[request.queues, request.types, request.capabilities].append(call)
    return others + [CombinedClaims(claims, now) if len(claims) > 1 else claims[0] for claims in similar.values()]
