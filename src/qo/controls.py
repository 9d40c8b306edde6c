"""Pauses, rate limits and drains, which all workers of a store read.

Workers in this process are notified, so that a pause is in effect when the call returns. Other workers read the
controls once per poll interval. Workers in this process that use another store are notified too, and read their own
controls again.
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
from qo.fleet_limits.rules import check_scope
from qo.model import Limit, check_limit, check_names, check_type, check_types, check_whole

MAX_FLEET_LIMITS = 1000  # in the note that every worker reads about once a second
_NOTIFY_TIMEOUT = 2.0  # seconds to wait until local workers have read the controls


class Listener(Protocol):
    def controls_changed(self, *, hold: bool) -> "Future[None]":
        """Read the controls; with `hold`, start nothing before. Thread-safe; the future ends when they are applied."""


_listeners: WeakSet[Listener] = WeakSet()
_lock = Lock()


def add_listener(listener: Listener) -> None:
    with _lock:
        _listeners.add(listener)


def remove_listener(listener: Listener) -> None:
    with _lock:
        _listeners.discard(listener)


async def notify_listeners(*, hold: bool) -> None:
    """Notify the workers of this process that the controls of a store changed."""
    with _lock:
        notified = [listener.controls_changed(hold=hold) for listener in _listeners]
    if notified:
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_TIMEOUT):
                await asyncio.gather(*map(asyncio.wrap_future, notified), return_exceptions=True)


class ControlsClient:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last_known = notes.Controls()

    async def read(self) -> notes.Controls:
        """The stored controls. Raises DamagedNote."""
        return await notes.read(self._engine, notes.CONTROL, notes.Controls)

    async def in_force(self) -> notes.Controls:
        """The controls that workers apply: the last ones that could be read."""
        self._last_known = await notes.read_or(self._engine, notes.CONTROL, notes.Controls, self._last_known)
        return self._last_known

    async def pause(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> notes.Controls:
        """Stop all workers from starting tasks, or only tasks of some queues or types. Running tasks continue.

        Workers in this process start no more tasks once this returns, other workers within their poll interval of at
        most a second. They release the tasks that they have claimed and not started.
        """
        queue_names, type_names = frozenset(check_names("queue", queues)), frozenset(check_types("type", types))

        def paused(now: notes.Controls) -> notes.Controls:
            return replace(
                now,
                paused=now.paused or not (queue_names or type_names),
                paused_queues=now.paused_queues | queue_names,
                paused_types=now.paused_types | type_names,
            )

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, paused)
        await notify_listeners(hold=True)
        return control

    async def resume(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> notes.Controls:
        """Undo `pause` for some queues or types, or for everything."""
        queue_names, type_names = frozenset(check_names("queue", queues)), frozenset(check_types("type", types))

        def resumed(now: notes.Controls) -> notes.Controls:
            if not (queue_names or type_names):
                return replace(now, paused=False, paused_queues=frozenset(), paused_types=frozenset())
            return replace(
                now, paused_queues=now.paused_queues - queue_names, paused_types=now.paused_types - type_names
            )

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, resumed)
        await notify_listeners(hold=False)
        return control

    async def drain(self, workers: Iterable[str]) -> notes.Controls:
        """Let these workers exit: they claim no more tasks and finish their running ones.

        Workers that are no longer registered are removed from the note, so that it does not grow.
        """
        some = frozenset(check_names("worker_id", workers))
        registered = {note.name.removeprefix(notes.WORKERS) for note in await self._engine.notes(notes.WORKERS)}

        def drained(now: notes.Controls) -> notes.Controls:
            return replace(now, draining=(now.draining & registered) | some)

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, drained)
        await notify_listeners(hold=False)
        return control

    async def limit_types(self, number: int) -> notes.Controls:
        """Limit the number of types of unfinished tasks in a queue; 0 removes the limit.

        Producers apply it within a minute.
        """
        check_whole("max_types", number)

        def limited(now: notes.Controls) -> notes.Controls:
            return replace(now, max_types=number)

        return await notes.change(self._engine, notes.CONTROL, notes.Controls, limited)

    async def limit_rate(self, tasks_per_second: float, *, type: str | None = None) -> notes.Controls:
        """Limit how many tasks each worker starts per second, of all types or of one; 0 removes the limit."""
        if not 0 <= tasks_per_second < float("inf"):
            raise InvalidTask(
                "rate_limit", f"{tasks_per_second!r} must be a number of tasks per second, or 0 for no limit"
            )

        def limited(now: notes.Controls) -> notes.Controls:
            if type is None:
                return replace(now, rate_limit=float(tasks_per_second))
            return replace(now, rate_limits=now.rate_limits | {check_type("type", type): float(tasks_per_second)})

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, limited)
        await notify_listeners(hold=False)
        return control

    async def limit_fleet(self, scope: str, limit: Limit | None) -> notes.Controls:
        """Limit all workers together: `type:send_email`, `queue:mail` or `key:customer_id=42`.

        The value of a key may be escaped, as in `Task.group`, or not. The limit replaces that of the code, within about
        a second. A limit of zeros is no limit; None restores the limit of the code. A store has at most
        `MAX_FLEET_LIMITS` of them.
        """
        scope = check_scope(scope)
        if limit is not None:
            check_limit(limit)

        def limited(now: notes.Controls) -> notes.Controls:
            others = {name: other for name, other in now.limits.items() if name != scope}
            if limit is not None and len(others) >= MAX_FLEET_LIMITS:
                problem = f"the store already has {len(others):,} limits that were set at run time, the maximum"
                raise InvalidTask("scope", f"{problem}: remove some, or declare a limit by key in the code")
            return replace(now, limits=others if limit is None else {**others, scope: replace(limit, key=None)})

        control = await notes.change(self._engine, notes.CONTROL, notes.Controls, limited)
        await notify_listeners(hold=False)
        return control
