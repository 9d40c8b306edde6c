"""Which types are handled now: by live workers, and by clients that call `dequeue`.

Workers register in their notes. Clients that dequeue share one note, `consumers`, in which each of them renews what it
takes. A client reads that note about twice a minute, and writes it only if no other client has just done so.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import QoError
from qo.model import Counts, Status, Task, lane_matcher
from qo.notes import DEAD_AFTER, Instant, WorkerNote, change, is_dead, make_types_known, read_or, workers

log = logging.getLogger("qo.client")

NO_HANDLER = "no running worker handles this type"  # shown for pending tasks that `unhandled_lanes` finds
CONSUMERS = "consumers"  # the name of the note
REGISTRATION_INTERVAL = 30.0  # seconds between two registrations of the same queue and type
_MAX_LENGTH = 86_400.0  # seconds of one registration; later times in the note come from a wrong clock
_FINISH_TIMEOUT = 1.0  # seconds
_MAX_CONSUMERS = 1000  # entries in the note
_MAX_REMEMBERED = 10_000  # types and registrations that one client keeps

Lanes = dict[tuple[str, str], int]  # number of tasks by queue and type


class Consumers(Struct, frozen=True, kw_only=True):
    """What clients take with `dequeue`."""

    until: dict[str, Instant] = {}  # by "queue/type"; an empty queue or type stands for all

    def taken(self, now: float) -> list[tuple[str, str]]:
        """The queues and types that a client takes now."""
        pairs = [key.partition("/") for key, until in self.until.items() if until > now]
        return [(queue, type_) for queue, _, type_ in pairs]


async def read_consumers(engine: Engine) -> Consumers:
    return await read_or(engine, CONSUMERS, Consumers, Consumers())


class ConsumerRegistration:
    """Registers what one client takes with `dequeue`, so that no worker fails or warns about these tasks.

    It writes in the background, so that `dequeue` does not wait for it. A registration that fails is only logged.
    """

    def __init__(self, engine: Engine, clock: Clock = boot_clock) -> None:
        self._engine, self._clock = engine, clock
        self._registered: dict[str, tuple[float, float]] = {}  # by "queue/type": when it is due again, and its end
        self._known: set[str] = set()
        self._writing: set[asyncio.Task[None]] = set()

    def register(self, queue: str, type_: str, *, lease: float = 0.0) -> None:
        """Register that this client takes tasks of this queue and type; empty: of all.

        `lease` is that of a task it works on: it may not dequeue again before the lease ends.
        """
        if not self._engine.registers_consumers:
            return
        key, now, length = f"{queue}/{type_}", self._clock(), min(_MAX_LENGTH, max(DEAD_AFTER, lease))
        due_at, until = self._registered.get(key, (now, now))
        if now < due_at and now + length < until + REGISTRATION_INTERVAL:
            return
        if len(self._registered) >= _MAX_REMEMBERED:
            self._registered.clear()
        self._registered[key] = now + REGISTRATION_INTERVAL, now + length
        self._start(self._renew(key, length))
        if type_:
            self.make_known([type_])

    def make_known(self, types: Iterable[str]) -> None:
        """Add types that this client has taken or requested to the known types."""
        new = set(types) - self._known
        if not new or not self._engine.registers_consumers:
            return
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        self._known |= new
        self._start(make_types_known(self._engine, new, only_if_room=True))

    async def finish(self) -> None:
        """Wait until everything is written, or give up after a second."""
        if self._writing:
            _, late = await asyncio.wait(self._writing, timeout=_FINISH_TIMEOUT)
            for task in late:
                task.cancel()

    async def _renew(self, key: str, length: float) -> None:
        now = await self._engine.now()
        await change(self._engine, CONSUMERS, Consumers, partial(_renewed, key, now, length))

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(_logged(work))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


async def _logged(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except QoError as error:
        log.debug("cannot register what this client dequeues: %s", error)


def _renewed(key: str, now: float, length: float, before: Consumers) -> Consumers:
    until = before.until.get(key, 0.0)
    if now + length - REGISTRATION_INTERVAL / 2 <= until <= now + _MAX_LENGTH:
        return before  # another client has just renewed it, or has registered for longer
    current = {each: until for each, until in before.until.items() if until > now} | {key: now + length}
    newest = sorted(current, key=lambda each: current[each])[-_MAX_CONSUMERS:]
    return Consumers(until={each: current[each] for each in newest})


def unhandled_lanes(
    counts: Counts,
    workers: Iterable[WorkerNote],
    now: float,
    *,
    consumers: Consumers | None = None,
    dead_after: float = DEAD_AFTER,
) -> Lanes:
    """Pending tasks by queue and type that neither a live worker nor a client takes, and of which none runs."""
    active = [worker for worker in workers if worker.status == "active" and not is_dead(worker, now, dead_after)]
    pending: Counter[tuple[str, str]] = Counter()
    running: set[tuple[str, str]] = set()
    for lane, number in counts.items():
        if number > 0 and lane.status is Status.PENDING:
            pending[lane.queue, lane.type] += number
        elif number > 0 and lane.status is Status.RUNNING:
            running.add((lane.queue, lane.type))
    if not pending:
        return {}
    kinds = {(frozenset(worker.queues), frozenset(worker.types)) for worker in active}  # workers of one program agree
    for queue, type_ in consumers.taken(now) if consumers else ():
        kinds.add((frozenset(filter(None, [queue])), frozenset(filter(None, [type_]))))
    takes = [lane_matcher(queues, types) for queues, types in kinds]
    return {
        (queue, type_): number
        for (queue, type_), number in pending.items()
        if (queue, type_) not in running and not any(covers(queue, type_) for covers in takes)
    }


def is_unhandled(task: Task, lanes: Mapping[tuple[str, str], int]) -> bool:
    """Whether the task is pending in one of these lanes, as `unhandled_lanes` returns them."""
    return task.status is Status.PENDING and (task.queue, task.type) in lanes


async def find_unhandled(
    engine: Engine, now: float, *, counts: Counts | None = None, dead_after: float = DEAD_AFTER
) -> Lanes:
    """As `unhandled_lanes`, from what the store holds now. The counts are read unless the caller has them."""
    counts = await engine.count() if counts is None else counts
    if not any(number > 0 and lane.status is Status.PENDING for lane, number in counts.items()):
        return {}
    registered, consumers = await workers(engine), await read_consumers(engine)
    return unhandled_lanes(counts, registered, now, consumers=consumers, dead_after=dead_after)
