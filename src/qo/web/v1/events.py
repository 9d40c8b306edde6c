"""Live updates: `/events`, and the feed that reads the store once a second while anyone is connected.

Each read covers the counts, the newest tasks, the running tasks, and the tasks that were running at the read before. A
listener therefore receives every task that runs longer than a second, and the newest tasks in any case. The feed serves
dashboards, not bookkeeping. Listeners with equal limits share a channel. A stream ends within seconds after the token
of its caller was revoked or has expired.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request, get
from litestar.exceptions import HTTPException
from litestar.response import Stream

from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Counts, Filter, Status, Task
from qo.web.callers import AccessLimits, Caller
from qo.web.http.access import LIMITED, READ, caller_of
from qo.web.http.edge import STREAM
from qo.web.http.problems import problems
from qo.web.task_words import STATUSES
from qo.web.v1.views import brief_view

log = logging.getLogger("qo.web")
INTERVAL = 1.0  # seconds between reads of the store
HEARTBEAT = 15.0  # seconds without a message after which a comment is sent
MAX_NEWEST = 50  # tasks
MAX_RUNNING = 200  # tasks
_MAX_UNSENT = 16  # messages; a slow listener loses the oldest beyond this
_HEARTBEAT_COMMENT = b": heartbeat\n\n"
_UNAVAILABLE = 503

Versions = dict[str, int]  # by task id


@get("/events", opt=READ | LIMITED, responses=problems(), media_type="text/event-stream")
async def listen(request: Request[Any, Any, Any]) -> Stream:
    """Server-sent events: `counts` (tasks by status) and `tasks` (changed tasks), about once a second.

    The stream ends when its token is revoked or expires."""
    request.scope[STREAM] = True  # type: ignore[literal-required]  # a stream has no time limit
    feed: Feed = request.app.state.feed
    headers = {"X-Accel-Buffering": "no"}  # nginx would collect events in a buffer
    return Stream(feed.listen(caller_of(request)), media_type="text/event-stream", headers=headers)


class EventStream:
    """One listener and the messages that it has not received yet. None as a message ends the stream."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.began_at = boot_clock()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_UNSENT)

    def send(self, message: bytes) -> None:
        if self._messages.full():
            self._messages.get_nowait()
        self._messages.put_nowait(message)

    def end(self) -> None:
        """End the stream and drop unsent messages."""
        while not self._messages.empty():
            self._messages.get_nowait()
        self._messages.put_nowait(None)

    async def next(self) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT):
                return await self._messages.get()
        except TimeoutError:
            return _HEARTBEAT_COMMENT


class EventChannel:
    """The updates for all listeners with the same limits."""

    def __init__(self, engine: Engine, limits: AccessLimits) -> None:
        self._engine, self._limits = engine, limits
        self.streams: set[EventStream] = set()
        self._versions: Versions = {}
        self._running: list[str] = []
        self.counts: bytes = b""

    async def update(self, all_counts: Counts) -> None:
        """Send the listeners what has changed since the last update."""
        counts = event("counts", total_words(self._limits.count(all_counts)))
        changed = await self._changed()
        messages = [counts] if counts != self.counts else []
        self.counts = counts
        messages += [event("tasks", [brief_view(task) for task in changed])] if changed else []
        for stream in self.streams:
            for message in messages:
                stream.send(message)

    async def _changed(self) -> list[Task]:
        newest = await self._find(Filter(), MAX_NEWEST)
        running = await self._find(Filter(statuses=(Status.RUNNING,)), MAX_RUNNING)
        known = {task.id: task for task in (*newest, *running)}
        ended = await self._engine.get_without_values([each for each in self._running if each not in known])
        known |= {task.id: task for task in ended if task is not None}
        changed = [task for task in known.values() if self._versions.get(task.id) != task.version]
        self._versions = {task.id: task.version for task in known.values()}
        self._running = [task.id for task in running]
        return changed

    async def _find(self, where: Filter, limit: int) -> list[Task]:
        narrowed = self._limits.narrow(where)
        return [] if narrowed is None else await self._engine.find_without_values(narrowed, limit=limit)


class Feed:
    def __init__(
        self,
        engine: Engine,
        is_admitted: Callable[[Caller], Awaitable[bool]],
        *,
        max_listeners: int,
        interval: float = INTERVAL,
    ) -> None:
        self._engine, self._is_admitted, self._interval = engine, is_admitted, interval
        self._max_listeners = max_listeners
        self._channels: dict[AccessLimits, EventChannel] = {}  # only those with a listener
        self._has_listeners = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._has_listeners.wait()
            await self.update()
            await asyncio.sleep(self._interval)

    async def update(self) -> None:
        """End the streams of callers that are no longer admitted, and send changes to the others."""
        channels = list(self._channels.values())
        for channel in channels:
            for stream in list(channel.streams):
                if not await self._is_admitted(stream.caller):
                    channel.streams.discard(stream)
                    stream.end()
        try:
            counts = await self._engine.count()
            for channel in channels:
                await channel.update(counts)
        except StorageError as error:
            log.warning("the store is unreachable: %s", error)

    def listen(self, caller: Caller) -> AsyncIterator[bytes]:
        """Server-sent events about the tasks that the caller can see, from now on. Raises a 503 at the limit."""
        streams = [stream for channel in self._channels.values() for stream in channel.streams]
        if len(streams) >= self._max_listeners and not self._make_room(streams, caller):
            message = f"the server has {self._max_listeners} event streams open, which is its limit"
            raise HTTPException(message, status_code=_UNAVAILABLE, headers={"Retry-After": "10"})
        return self._messages(EventStream(caller))

    def _make_room(self, streams: list[EventStream], caller: Caller) -> bool:
        """End a stream of the caller with the most streams, if it still has more than the new caller afterwards."""
        numbers = Counter(stream.caller.id for stream in streams)
        largest = max(numbers, key=numbers.__getitem__, default=caller.id)
        if numbers[largest] <= numbers[caller.id] + 1:
            return False
        oldest = min((each for each in streams if each.caller.id == largest), key=lambda each: each.began_at)
        self._channels[oldest.caller.limits].streams.discard(oldest)
        oldest.end()
        return True

    async def _messages(self, stream: EventStream) -> AsyncIterator[bytes]:
        """Registers with the first message: a stream that is never read must not count against the limit."""
        limits = stream.caller.limits
        channel = self._channels.setdefault(limits, EventChannel(self._engine, limits))
        channel.streams.add(stream)
        self._has_listeners.set()
        try:
            yield b"retry: 2000\n\n" + channel.counts
            while (message := await stream.next()) is not None:
                yield message
        finally:
            channel.streams.discard(stream)
            if not channel.streams and self._channels.get(limits) is channel:
                del self._channels[limits]
            if not self._channels:
                self._has_listeners.clear()


def total_words(counts: Counts) -> dict[str, int]:
    """Tasks by status. Counts do not separate dead letters from other failures: both are `failed`."""
    totals: dict[str, int] = {name: 0 for name in STATUSES if name != "dead_letter"}
    names = {status: name for name, status in STATUSES.items() if name != "dead_letter"}
    for lane, number in counts.items():
        if lane.status in names:
            totals[names[lane.status]] += number
    return totals


def event(kind: str, data: object) -> bytes:
    """One server-sent event. JSON has no line breaks, so one `data:` line is enough."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))
