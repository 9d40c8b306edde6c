"""Calls on their way to the bucket."""

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
    abandoned: Callable[[Any], None] | None = None  # told the answer if the caller has left
    request: ClaimRequest | None = None  # it is a claim, of this
    answer: Any = None
    error: BaseException | None = None
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def tell(self, error: BaseException | None) -> None:
        """The caller's own answer; or that there is none, because the whole round failed."""
        error = error or self.error
        if self.done.done():
            if self.abandoned is not None and error is None:
                self.abandoned(self.answer)
        elif error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(self.answer)


class Claims:
    """Claims that are alike, as one job: a hundred callers who take one task each cost about as much as one."""

    def __init__(self, calls: Sequence[PendingCall], now: float) -> None:
        self._calls, self._now = calls, now
        self.answer: list[list[Task]] | None = None
        self.error: BaseException | None = None

    def work(self, table: SqliteTable) -> list[list[Task]]:
        return table.claim_each([call.request for call in self._calls if call.request is not None], self._now)

    def deal(self) -> None:
        for number, call in enumerate(self._calls):
            call.answer = self.answer[number] if self.answer is not None else None
            call.error = self.error


def gathered(calls: Sequence[PendingCall], now: float) -> list[WriterCall]:
    """What is to be done, claims last: they may take what was submitted with them."""
    jobs: list[WriterCall] = []
    alike = defaultdict[object, list[PendingCall]](list)
    for call in calls:
        request = call.request
        if request is None or request.is_repeat or request.per_type_limits:
            jobs.append(call)
        else:
            alike[request.queues, request.types, request.capabilities].append(call)
    return jobs + [Claims(some, now) if len(some) > 1 else some[0] for some in alike.values()]
