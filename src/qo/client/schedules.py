"""Schedules of a store: add, list, pause, resume, run and remove them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

from qo import notes
from qo.client.describe import Seconds, TaskOptions, parse_instant, seconds
from qo.clock import Clock
from qo.codec import SEALED, encode_value
from qo.engine import Engine
from qo.errors import DamagedNote, InvalidTask, ScheduleNotFound
from qo.ids import new_id
from qo.model import UNFINISHED, NewTask, cancel, check_name, show
from qo.schedules.decision import created_note, defined, delivered, is_active, paused, resumed, started_by_hand
from qo.schedules.schedule import CatchUp, Fire, Overlap, Schedule, ScheduleNote, make_schedule, task_of
from qo.schedules.schedule_notes import (
    MAX_SCHEDULES,
    SCHEDULES,
    change_schedule,
    decode_schedule,
    read_schedule,
    read_schedules,
)
from qo.schedules.view import LAST_RESULTS, ScheduleInfo, view_of

if TYPE_CHECKING:
    from qo.client.client import Client

Instant: TypeAlias = datetime | float | str
_Infos: TypeAlias = list[ScheduleInfo]  # inside the class, `list` is a method
OnFire: TypeAlias = Callable[[Fire], None]
_MAX_STATUSES = 500  # tasks that a list reads: some stores need a request for each


class TimingOptions(TypedDict, total=False):
    """When a schedule fires, and what happens to fire times that are missed or overlap."""

    every: Seconds | None
    timezone: str | None  # of the cron expression; UTC by default
    start_at: Instant | None
    end_at: Instant | None
    jitter: Seconds | None  # each task is due up to this much after its fire time
    catch_up: CatchUp | None  # of fire times that were missed: "last" by default
    catch_up_window: Seconds | None
    overlap: Overlap | None  # while an earlier task of the schedule has not finished: "allow" by default


class ScheduleOptions(TimingOptions, total=False):
    """All options of a schedule."""

    cron: str | None  # "0 3 * * *"; or `every`


def schedule_of(name: str, task: NewTask, options: ScheduleOptions) -> Schedule:
    """A checked schedule. Raises InvalidTask, which names the option."""
    given: dict[str, Any] = dict(options)
    for field in ("every", "jitter", "catch_up_window"):
        if isinstance(given.get(field), timedelta):
            given[field] = seconds(given[field])
    for field in ("start_at", "end_at"):
        if given.get(field) is not None:
            given[field] = parse_instant(field, given[field])
    if given.get("every") is not None and given["every"] == 0:
        raise InvalidTask("every", "must be at least 1 second")
    return make_schedule(name, task, **given)


def check_kwargs(kwargs: object) -> None:
    """Refuse what cannot be passed as keyword arguments. Callers may ignore annotations."""
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise InvalidTask("kwargs", f"{show(kwargs)} is not a mapping from names of arguments to their values")


class SchedulesClient:
    """The schedules of one store. Workers and monitors submit their tasks."""

    def __init__(self, client: "Client", clock: Clock) -> None:
        self._client, self._clock = client, clock
        self.on_fire: OnFire = lambda _: None

    @property
    def _engine(self) -> Engine:
        return self._client.engine

    async def add(
        self,
        name: str,
        *,
        task: str | NewTask,
        kwargs: Mapping[str, Any] | None = None,
        options: TaskOptions | None = None,
        **timing: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Add a schedule, or change the definition of one that was added before. Returns what is stored.

        `task` is a type with `kwargs` and `options`, or a task from `new_task`.
        """
        new = self._new(task, kwargs, options)
        schedule, now = schedule_of(name, new, timing), await self._engine.now()
        if await read_or_none(self._engine, name) is None and len(await self._engine.notes(SCHEDULES)) >= MAX_SCHEDULES:
            raise InvalidTask("name", f"the store has {MAX_SCHEDULES:,} schedules, the limit; remove some")

        def added(note: ScheduleNote | None) -> ScheduleNote:
            if note is None:
                return created_note(schedule, now, from_code=False)
            if note.source == "code" and is_active(note, now):
                raise InvalidTask("name", f"{name!r} is defined in code; change it there or choose another name")
            if note.source == "code":
                return created_note(schedule, now, from_code=False)
            return defined(note, schedule, now)

        note = await change_schedule(self._engine, name, added, replaces_damaged=True)
        return await self._view(_found(name, note))

    def _new(self, task: str | NewTask, kwargs: Mapping[str, Any] | None, options: TaskOptions | None) -> NewTask:
        if isinstance(task, str):
            check_kwargs(kwargs)
            return self._client.new_task(task, encode_value(kwargs or {}), **options or {})
        if not isinstance(task, NewTask):
            raise InvalidTask("task", f"{show(task)} is neither the name of a type nor a task from new_task")
        for name, value in (("kwargs", kwargs), ("options", options)):
            if value:
                raise InvalidTask(name, "apply to a type; the task has its own")
        return task

    async def list(self) -> _Infos:
        """All schedules by name, each with the results of its last five fires; in a long list, of fewer."""
        stored = await read_schedules(self._engine)
        statuses, now = await self._statuses(_last_tasks(stored)), await self._engine.now()
        return [view_of(note, now, statuses) for note in stored]

    async def get(self, name: str) -> ScheduleInfo:
        """Raises ScheduleNotFound, and DamagedNote if the stored schedule cannot be read."""
        return await self._view(_found(name, await read_schedule(self._engine, name)))

    async def pause(self, name: str) -> ScheduleInfo:
        """Submit no tasks of this schedule until it is resumed."""
        return await self._change(name, paused)

    async def resume(self, name: str) -> ScheduleInfo:
        """Submit tasks again, from now on. Fire times during the pause are not caught up."""
        now = await self._engine.now()
        return await self._change(name, lambda note: resumed(note, now))

    async def run(self, name: str) -> str:
        """Submit a task of this schedule now, whether or not it is paused. Returns the id of the task."""
        task_id, now = new_id(self._clock), await self._engine.now()
        unfinished = await self.unfinished(_found(name, await read_schedule(self._engine, name)))
        note = await change_schedule(
            self._engine, name, lambda note: started_by_hand(_found(name, note), task_id, now, unfinished)
        )
        stored = _found(name, note)
        if stored.schedule.task.payload.startswith(SEALED):
            return task_id  # a scheduler with the key finds it in the note and submits it
        fires = [fire for fire in stored.pending if fire.task_id == task_id]
        await self.submit([(stored.schedule, fires)])
        await change_schedule(self._engine, name, lambda note: None if note is None else delivered(note, fires))
        return task_id

    async def remove(self, name: str) -> None:
        """Delete a schedule. Its tasks stay. Raises InvalidTask for one that is defined in code and active."""
        note = await self._engine.read_note(SCHEDULES + check_name("name", name))
        if note is None:
            raise _not_found(name)
        try:
            stored = decode_schedule(note)
            if stored.source == "code" and is_active(stored, await self._engine.now()):
                raise InvalidTask("name", f"{name!r} is defined in code; remove it there, or pause it")
        except DamagedNote as error:
            await notes.set_aside(self._engine, error)
        await self._engine.drop_note(note.name)

    # --- for schedulers

    async def submit(self, decided: Iterable[tuple[Schedule, Sequence[Fire]]]) -> None:
        """Submit the tasks of decided fire times, and cancel those that they replace.

        Each task has the id of its fire time, so that a repetition submits nothing twice.
        """
        pairs = [(schedule, fire) for schedule, fires in decided for fire in fires]
        cancelled = {task_id for _, fire in pairs for task_id in fire.cancels}
        if cancelled:
            await self._client.apply([cancel(task_id) for task_id in sorted(cancelled)])
        await self._client.submit_many([task_of(schedule, fire) for schedule, fire in pairs])

    async def unfinished(self, note: ScheduleNote) -> frozenset[str]:
        """The ids of the recorded tasks of a schedule that have not finished; empty if its tasks may overlap."""
        if note.schedule.overlap == "allow":
            return frozenset()
        statuses = await self._statuses([fire.task_id for fire in note.recent if fire.task_id])
        return frozenset(task_id for task_id, status in statuses.items() if status in UNFINISHED)

    async def _change(self, name: str, how: Callable[[ScheduleNote], ScheduleNote]) -> ScheduleInfo:
        note = await change_schedule(self._engine, name, lambda note: how(_found(name, note)))
        return await self._view(_found(name, note))

    async def _view(self, note: ScheduleNote) -> ScheduleInfo:
        statuses = await self._statuses([fire.task_id for fire in note.recent if fire.task_id])
        return view_of(note, await self._engine.now(), statuses)

    async def _statuses(self, ids: Sequence[str]) -> dict[str, str]:
        tasks = await self._engine.get_without_values(ids) if ids else []
        return {task.id: task.status for task in tasks if task is not None}


async def read_or_none(engine: Engine, name: str) -> ScheduleNote | None:
    """The schedule, or None if there is none that can be read."""
    try:
        return await read_schedule(engine, name)
    except DamagedNote:
        return None


def _last_tasks(stored: Sequence[ScheduleNote]) -> Sequence[str]:
    """The ids of the tasks whose statuses a list shows: of the last fire of each schedule, then of those before."""
    tasks = [[fire.task_id for fire in reversed(note.recent) if fire.task_id][:LAST_RESULTS] for note in stored]
    by_age = [task_id for ids in zip_longest(*tasks) for task_id in ids if task_id is not None]
    return by_age[: max(_MAX_STATUSES, len(stored))]


def _found(name: str, note: ScheduleNote | None) -> ScheduleNote:
    if note is None:
        raise _not_found(name)
    return note


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule is called {name!r:.80}; `qo schedules list` shows all")
