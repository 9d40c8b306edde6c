"""An engine in process memory: the executable specification, and the engine for tests."""

import asyncio
from collections.abc import Callable

from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines.indexed_table import IndexedTable
from qo.engines.table_engine import Answer, TableEngine
from qo.model import ClaimRequest
from qo.reports import Finding
from qo.safe_text import hide_password


class MemoryEngine(TableEngine):
    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._table = IndexedTable()
        self._changed = asyncio.Event()

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def _write(
        self,
        work: Callable[[IndexedTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,  # noqa: ARG002 - the work does not wait
    ) -> Answer:
        return work(self._table)

    async def _read(self, work: Callable[[IndexedTable], Answer]) -> Answer:
        return work(self._table)

    def _wake(self) -> None:
        self._changed.set()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        self._changed.clear()
        now = self._clock()
        if self._table.has_ready(request, now):
            return
        coming = self._table.next_at()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout if coming is None else min(timeout, coming - now))
        except TimeoutError:
            return

    def damage(self, task_id: str) -> None:
        """For tests: make a task behave as if its stored form could not be read."""
        self._table.damage(task_id, "damaged by a test")


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:  # noqa: ARG001 - every call opens a new store
    return MemoryEngine(clock)


async def examine(url: str) -> list[Finding]:
    return [
        Finding(
            "memory",
            None,
            f"{hide_password(url)} stores tasks in one process and loses them when it ends; use it only for tests",
        )
    ]
