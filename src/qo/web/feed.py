"""Live updates: one look at the store a second, while someone listens, told to all who do.

Each look reads the counts, the newest tasks, those that run, and those that ran at the look before: so a listener hears
of every task that runs longer than a second, and of the newest anyway. It is for pages, not for bookkeeping. Listeners
with the same limits share a channel. A stream ends within seconds after its caller's token was revoked or has expired.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from litestar.exceptions import HTTPException

from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Counts, Filter, Status, Task
from qo.web.callers import AccessLimits, Caller
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


class EventStream:
    """One listener: who it is, and what it was not sent yet. None ends it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.began_at = boot_clock()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)

    def send(self, message: bytes) -> None:
        if self._messages.full():
            self._messages.get_nowait()
        self._messages.put_nowait(message)

    def end(self) -> None:
        """Nothing more, not even what was not sent yet."""
        while not self._messages.empty():
            self._messages.get_nowait()
        self._messages.put_nowait(None)

    async def next(self) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT):
                return await self._messages.get()
        except TimeoutError:
            return _BEAT


class EventChannel:
    """What is told to all listeners with the same limits."""

    def __init__(self, engine: Engine, limits: AccessLimits) -> None:
        self._engine, self._limits = engine, limits
        self.streams: set[EventStream] = set()
        self._versions: Versions = {}
        self._running: list[str] = []
        self.counts: bytes = b""

    async def look(self, all_counts: Counts) -> None:
        """Tell the listeners what has changed since the last look."""
        counts = event("counts", total_words(self._limits.count(all_counts)))
        changed = await self._changed()
        messages = [counts] if counts != self.counts else []
        self.counts = counts
        messages += [event("tasks", [brief_view(task) for task in changed])] if changed else []
        for stream in self.streams:
            for message in messages:
                stream.send(message)

    async def _changed(self) -> list[Task]:
        newest = await self._find(Filter(), NEWEST)
        running = await self._find(Filter(statuses=(Status.RUNNING,)), RUNNING)
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
        most: int,
        interval: float = INTERVAL,
    ) -> None:
        self._engine, self._is_admitted, self._most, self._interval = engine, is_admitted, most, interval
        self._channels: dict[AccessLimits, EventChannel] = {}  # those with a listener
        self._someone = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._someone.wait()
            await self.look()
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """End the streams of callers that are not admitted any more, and tell the others what is new."""
        channels = list(self._channels.values())
        for channel in channels:
            for stream in list(channel.streams):
                if not await self._is_admitted(stream.caller):
                    channel.streams.discard(stream)
                    stream.end()
        try:
            counts = await self._engine.count()
            for channel in channels:
                await channel.look(counts)
        except StorageError as error:
            log.warning("the store is unreachable: %s", error)

    def listen(self, caller: Caller) -> AsyncIterator[bytes]:
        """What happens from now on, as server-sent events, to tasks the caller may see."""
        streams = [stream for channel in self._channels.values() for stream in channel.streams]
        if len(streams) >= self._most and not self._make_room(streams, caller):
            raise HTTPException(f"{self._most} listen already", status_code=_UNAVAILABLE, headers={"Retry-After": "10"})
        return self._messages(EventStream(caller))

    def _make_room(self, streams: list[EventStream], caller: Caller) -> bool:
        """End a stream of whoever has the most, if that is more than the newcomer will have."""
        numbers = Counter(stream.caller.id for stream in streams)
        greediest = max(numbers, key=numbers.__getitem__, default=caller.id)
        if numbers[greediest] <= numbers[caller.id] + 1:
            return False
        oldest = min((each for each in streams if each.caller.id == greediest), key=lambda each: each.began_at)
        self._channels[oldest.caller.limits].streams.discard(oldest)
        oldest.end()
        return True

    async def _messages(self, stream: EventStream) -> AsyncIterator[bytes]:
        """Listens from its first message on: one that is never asked for anything must not take a place."""
        limits = stream.caller.limits
        channel = self._channels.setdefault(limits, EventChannel(self._engine, limits))
        channel.streams.add(stream)
        self._someone.set()
        try:
            yield b"retry: 2000\n\n" + channel.counts
            while (message := await stream.next()) is not None:
                yield message
        finally:
            channel.streams.discard(stream)
            if not channel.streams and self._channels.get(limits) is channel:
                del self._channels[limits]
            if not self._channels:
                self._someone.clear()


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
