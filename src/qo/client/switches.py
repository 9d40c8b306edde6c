"""What all workers of a store obey, from wherever it is switched: pauses and rate limits."""

from collections.abc import Iterable

from msgspec.structs import replace

from qo import notes
from qo.client import listeners
from qo.engine import Engine
from qo.errors import InvalidTask
from qo.model import check_names, check_type, check_types, check_whole


class Switches:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last_known = notes.Control()

    async def read(self) -> notes.Control:
        """The switches as they are stored; raises DamagedNote."""
        return await notes.read(self._engine, notes.CONTROL, notes.Control)

    async def in_force(self) -> notes.Control:
        """What workers obey: the last switches that could be read."""
        self._last_known = await notes.read_or(self._engine, notes.CONTROL, notes.Control, self._last_known)
        return self._last_known

    async def pause(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> notes.Control:
        """Stop every worker from starting tasks, or only those of some queues or types. What runs goes on.

        Workers in this process start nothing more once this returns, others within their poll interval, a second at
        most. What they had claimed and not started, they hand back.
        """
        some_queues, some_types = frozenset(check_names("queue", queues)), frozenset(check_types("type", types))

        def paused(now: notes.Control) -> notes.Control:
            return replace(
                now,
                paused=now.paused or not (some_queues or some_types),
                paused_queues=now.paused_queues | some_queues,
                paused_types=now.paused_types | some_types,
            )

        control = await notes.change(self._engine, notes.CONTROL, notes.Control, paused)
        await listeners.tell(hold=True)
        return control

    async def resume(self, *, queues: Iterable[str] = (), types: Iterable[str] = ()) -> notes.Control:
        """Undo `pause`: of some queues or types, or, without any, of everything."""
        some_queues, some_types = frozenset(check_names("queue", queues)), frozenset(check_types("type", types))

        def resumed(now: notes.Control) -> notes.Control:
            if not (some_queues or some_types):
                return replace(now, paused=False, paused_queues=frozenset(), paused_types=frozenset())
            return replace(
                now, paused_queues=now.paused_queues - some_queues, paused_types=now.paused_types - some_types
            )

        control = await notes.change(self._engine, notes.CONTROL, notes.Control, resumed)
        await listeners.tell(hold=False)
        return control

    async def drain(self, workers: Iterable[str]) -> notes.Control:
        """Let these workers end: they take no more tasks, finish what they run, and leave.

        Whoever is not registered here any more is forgotten, so that the note does not grow.
        """
        some = frozenset(check_names("worker_id", workers))
        registered = {note.name.removeprefix(notes.WORKERS) for note in await self._engine.notes(notes.WORKERS)}

        def drained(now: notes.Control) -> notes.Control:
            return replace(now, draining=(now.draining & registered) | some)

        control = await notes.change(self._engine, notes.CONTROL, notes.Control, drained)
        await listeners.tell(hold=False)
        return control

    async def limit_types(self, number: int) -> notes.Control:
        """Limit how many types of unfinished tasks a queue may have; 0 lifts the limit.

        Producers heed it within a minute.
        """
        check_whole("max_types", number)

        def limited(now: notes.Control) -> notes.Control:
            return replace(now, max_types=number)

        return await notes.change(self._engine, notes.CONTROL, notes.Control, limited)

    async def limit_rate(self, tasks_per_second: float, *, type: str | None = None) -> notes.Control:
        """Limit how many tasks a worker starts a second, in all or of one type; 0 lifts the limit."""
        if not 0 <= tasks_per_second < float("inf"):
            raise InvalidTask("rate_limit", f"{tasks_per_second!r} must be a number of tasks a second, 0 for no limit")

        def limited(now: notes.Control) -> notes.Control:
            if type is None:
                return replace(now, rate_limit=float(tasks_per_second))
            return replace(now, rate_limits=now.rate_limits | {check_type("type", type): float(tasks_per_second)})

        control = await notes.change(self._engine, notes.CONTROL, notes.Control, limited)
        await listeners.tell(hold=False)
        return control
