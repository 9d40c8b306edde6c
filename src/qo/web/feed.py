"""Live updates: one look at the store a second, while someone listens, told to all who do.

Each look reads the counts, the newest tasks, those that run, and those that ran at the look before: so a listener hears
of every task that runs longer than a second, and of the newest anyway. It is for pages, not for bookkeeping.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec
from litestar.exceptions import HTTPException

from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Counts, Filter, Status, Task
from qo.web.v1.views import brief_view
from qo.web.v1.words import STATUSES

log = logging.getLogger("qo.web")
INTERVAL = 1.0
HEARTBEAT = 15.0
NEWEST = 50
RUNNING = 200
_BEHIND = 16  # messages a slow listener may be behind; older ones are dropped
_BEAT = b": still here\n\n"
_UNAVAILABLE = 503

Versions = dict[str, int]


class Feed:
    def __init__(self, engine: Engine, *, most: int, interval: float = INTERVAL) -> None:
        self._engine, self._most, self._interval = engine, most, interval
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._someone = asyncio.Event()
        self._versions: Versions = {}
        self._running: list[str] = []
        self._counts: bytes = b""

    async def run(self) -> None:
        while True:
            await self._someone.wait()
            try:
                for message in await self._look():
                    self._send(message)
            except StorageError as error:
                log.warning("the store is away: %s", error)
            await asyncio.sleep(self._interval)

    def listen(self) -> AsyncIterator[bytes]:
        """What happens from now on, as server-sent events."""
        if len(self._listeners) >= self._most:
            raise HTTPException(f"{self._most} listen already", status_code=_UNAVAILABLE, headers={"Retry-After": "10"})
        return self._messages()

    async def _messages(self) -> AsyncIterator[bytes]:
        """Listens from its first message on: one that is never asked for anything must not take a place."""
        mailbox: asyncio.Queue[bytes] = asyncio.Queue(_BEHIND)
        if not self._listeners:
            self._versions, self._running, self._counts = {}, [], b""  # nobody was told since
        self._listeners.add(mailbox)
        self._someone.set()
        try:
            yield b"retry: 2000\n\n" + self._counts
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        message = await mailbox.get()
                except TimeoutError:
                    message = _BEAT
                yield message
        finally:
            self._listeners.discard(mailbox)
            if not self._listeners:
                self._someone.clear()

    def _send(self, message: bytes) -> None:
        for mailbox in self._listeners:
            if mailbox.full():
                mailbox.get_nowait()
            with contextlib.suppress(asyncio.QueueFull):
                mailbox.put_nowait(message)

    async def _look(self) -> list[bytes]:
        counts = event("counts", total_words(await self._engine.count()))
        changed = await self._changed()
        messages = [counts] if counts != self._counts else []
        self._counts = counts
        return [*messages, *([event("tasks", [brief_view(task) for task in changed])] if changed else [])]

    async def _changed(self) -> list[Task]:
        newest = await self._engine.find(Filter(), limit=NEWEST)
        running = await self._engine.find(Filter(statuses=(Status.RUNNING,)), limit=RUNNING)
        known = {task.id: task for task in (*newest, *running)}
        ended = await self._engine.get([task_id for task_id in self._running if task_id not in known])
        known |= {task.id: task for task in ended if task is not None}
        changed = [task for task in known.values() if self._versions.get(task.id) != task.version]
        self._versions = {task.id: task.version for task in known.values()}
        self._running = [task.id for task in running]
        return changed


def total_words(counts: Counts) -> dict[str, int]:
    """How many tasks there are by status. Counts do not tell dead letters from other failures: both are `failed`."""
    totals: dict[str, int] = {name: 0 for name in STATUSES if name != "dead_letter"}
    names = {status: name for name, status in STATUSES.items() if name != "dead_letter"}
    for lane, number in counts.items():
        if lane.status in names:
            totals[names[lane.status]] += number
    return totals


def event(kind: str, data: object) -> bytes:
    """JSON has no line breaks, so one `data:` line is enough."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))
