"""Pauses, rate limits and drains: what every worker of a store obeys, wherever it is set.

A worker of this process is told at once, so that a pause holds when its caller goes on. A worker elsewhere reads the
controls once in a poll interval. Workers of this process that serve another store are told too: they read their own
controls once more, and go on.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Protocol
from weakref import WeakSet

from msgspec.structs import replace

from qo import notes
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.model import check_names, check_type, check_types, check_whole

_OBEY_TIMEOUT = 2.0  # seconds to wait until local workers have read the controls; they start nothing meanwhile


class Listener(Protocol):
    def controls_changed(self, *, hold: bool) -> "Future[None]":
        """Read the controls now; until then, start nothing if `hold`. From any thread; done when they are obeyed."""


_listeners: WeakSet[Listener] = WeakSet()
_lock = Lock()


def add_listener(listener: Listener) -> None:
    with _lock:
        _listeners.add(listener)


def remove_listener(listener: Listener) -> None:
    with _lock:
        _listeners.discard(listener)


async def tell_listeners(*, hold: bool) -> None:
    """The controls of some store changed."""
    with _lock:
        told = [listener.controls_changed(hold=hold) for listener in _listeners]
    if told:
        with suppress(TimeoutError):
            async with asyncio.timeout(_OBEY_TIMEOUT):
                await asyncio.gather(*map(asyncio.wrap_future, told), return_exceptions=True)


class ControlsClient:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last_known = notes.Controls()

    async def read(self) -> notes.Controls:
        """The switches as they are stored; raises DamagedNote."""
        return await notes.read(self._engine, notes.CONTROL, notes.Controls)

    async def in_force(self) -> notes.Controls:
        """What workers obey: the last switches that could be read."""
        self._last_known = await notes.read_or(self._engine, notes.CONTROL, notes.Controls, self._last_known)
        return self._last_known

    async def pause(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> notes.Controls:
        """Stop every worker from starting tasks, or only those of some queues or types. What runs goes on.

        Workers in this process start nothing more once this returns, others within their poll interval, a second at
        most. What they had claimed and not started, they hand back.
        """
        some_queues, some_types = frozenset(check_names("queue", queues)), frozenset(check_types("type", types))

        def paused(now: notes.Controls) -> notes.Controls:
            return replace(
                now,
                paused=now.paused or not (some_queues or some_types),
                paused_queues=now.paused_queues | some_queues,
                paused_types=now.paused_types | some_types,
            )

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, paused)
        await tell_listeners(hold=True)
        return control

    async def resume(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> notes.Controls:
        """Undo `pause`: of some queues or types, or, without any, of everything."""
        some_queues, some_types = frozenset(check_names("queue", queues)), frozenset(check_types("type", types))

        def resumed(now: notes.Controls) -> notes.Controls:
            if not (some_queues or some_types):
                return replace(now, paused=False, paused_queues=frozenset(), paused_types=frozenset())
            return replace(
                now, paused_queues=now.paused_queues - some_queues, paused_types=now.paused_types - some_types
            )

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, resumed)
        await tell_listeners(hold=False)
        return control

    async def drain(self, workers: Iterable[str]) -> notes.Controls:
        """Let these workers end: they take no more tasks, finish what they run, and leave.

        Whoever is not registered here any more is forgotten, so that the note does not grow.
        """
        some = frozenset(check_names("worker_id", workers))
        registered = {note.name.removeprefix(notes.WORKERS) for note in await self._engine.notes(notes.WORKERS)}

        def drained(now: notes.Controls) -> notes.Controls:
            return replace(now, draining=(now.draining & registered) | some)

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, drained)
        await tell_listeners(hold=False)
        return control

    async def limit_types(self, number: int) -> notes.Controls:
        """Limit how many types of unfinished tasks a queue may have; 0 lifts the limit.

        Producers heed it within a minute.
        """
        check_whole("max_types", number)

        def limited(now: notes.Controls) -> notes.Controls:
            return replace(now, max_types=number)

        return await notes.change(self._engine, notes.CONTROL, notes.Controls, limited)

    async def limit_rate(self, tasks_per_second: float, *, type: str | None = None) -> notes.Controls:
        """Limit how many tasks a worker starts a second, in all or of one type; 0 lifts the limit."""
        if not 0 <= tasks_per_second < float("inf"):
            raise InvalidTask("rate_limit", f"{tasks_per_second!r} must be a number of tasks a second, 0 for no limit")

        def limited(now: notes.Controls) -> notes.Controls:
            if type is None:
                return replace(now, rate_limit=float(tasks_per_second))
            return replace(now, rate_limits=now.rate_limits | {check_type("type", type): float(tasks_per_second)})

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, limited)
        await tell_listeners(hold=False)
        return control
