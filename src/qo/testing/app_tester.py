"""Tests of programs that use qo: an app in memory whose time passes on request and whose tasks run inline.

with app.test_mode() as t:
    sign_up("ada@example.com")
    t.assert_enqueued(send_email, to="ada@example.com")
    t.drain()
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import ParamSpec, TypeVar, cast
from weakref import WeakSet

from msgspec.structs import replace

from qo.app import App, Enqueuer, replace_background
from qo.background import BackgroundClient
from qo.client import Client, parse_instant
from qo.client.describe import seconds
from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines import open_engine
from qo.errors import InvalidSetting, QoError
from qo.hooks import WorkerContext
from qo.ids import new_token
from qo.model import ClaimRequest, NewTask, Status, Task, is_a
from qo.model.task import created
from qo.monitor.scheduler import Scheduler
from qo.schedules.schedule_notes import SCHEDULES
from qo.store_time import StoreTime
from qo.tasks import Handler, Registry
from qo.testing.attempts import Attempt, InlineRun
from qo.testing.clock import ManualClock
from qo.testing.task_matcher import TaskMatcher, TaskName, check_task, shown
from qo.worker.registration import DeclaredSchedules

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_URL = "memory://"
_WORKER_ID = "test"
_TICK = 1e-5  # seconds between two readings of the store's clock; floats near today distinguish them
_MAX_ATTEMPTS = 1000  # of one drain
_apps_in_test_mode: WeakSet[App] = WeakSet()


@contextmanager
def enter_test_mode(app: App, *, now: datetime | float | None = None, state: object = None) -> Iterator["AppTester"]:
    """See `App.test_mode`."""
    clock = ManualClock(system_clock() if now is None else parse_instant("now", now))
    ticking = _TickingClock(clock)
    background = BackgroundClient(lambda: Client(_engine(app, ticking), app.settings, clock=clock), "qo-test")
    if app in _apps_in_test_mode:
        raise InvalidSetting("the app is already in test mode; use the tester of the outer `with`")
    before = replace_background(app, background)
    _apps_in_test_mode.add(app)
    tester = AppTester(app, background, clock, WorkerContext(_WORKER_ID, state))
    try:
        if app.registry.schedules:
            background.call_client(tester.declare_schedules)
        yield tester
    finally:
        _apps_in_test_mode.discard(app)
        replace_background(app, before)
        tester.close()
        background.close()


def _engine(app: App, clock: Clock) -> Engine:
    engine = open_engine(_URL, clock=clock)
    return engine if app.codec is None else app.codec.wrap(engine)


class _TickingClock:
    """The store's clock. It advances a little with every reading, so that tasks keep the order of their submission."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self._readings = clock, 0

    def __call__(self) -> float:
        self._readings += 1
        return self._clock() + self._readings * _TICK


class AppTester:
    """Runs and examines the tasks of one app in test mode. `App.test_mode` creates it."""

    def __init__(self, app: App, background: BackgroundClient, clock: ManualClock, worker: WorkerContext) -> None:
        self.app, self._background, self._clock, self._worker = app, background, clock, worker
        self._runner: asyncio.Runner | None = None  # one event loop for all async handlers of a plain test

    @property
    def now(self) -> float:
        """The time of the test, in seconds since 1970. It passes only in `advance` and `drain(advance=True)`."""
        return self._clock()

    def advance(self, duration: float | timedelta) -> None:
        """Let time pass. Tasks that become due run in the next `drain`."""
        passed = seconds(duration)
        if not is_a(passed, float, int) or math.isnan(passed):
            raise InvalidSetting(f"advance({duration!r}): pass seconds or a timedelta")
        if passed < 0:
            raise InvalidSetting(f"advance({duration!r}): time cannot go back")
        self._clock.advance(passed)

    # --- schedules

    def fire_schedules(self) -> list[Task]:
        """Submit the tasks of schedules whose fire times have passed, and return them. `drain` runs them.

        The rules of each schedule apply: of several missed fire times, `catch_up="last"` submits one task.
        """
        return self._call(self._fire)

    async def afire_schedules(self) -> list[Task]:
        """As `fire_schedules`, in an async test."""
        return await self._acall(self._fire)

    async def _fire(self, client: Client) -> list[Task]:
        await self.declare_schedules(client)  # as workers do from time to time; otherwise it is inactive after a day
        return await fire_schedules(client, self._clock)

    async def declare_schedules(self, client: Client) -> None:
        """Store the schedules of the app, as a worker does when it starts."""
        await declare_schedules(client, self.app.registry, self._clock, _WORKER_ID)

    # --- running

    def drain(self, *, advance: bool = False, raise_errors: bool = False, limit: int = _MAX_ATTEMPTS) -> list[Attempt]:
        """Run every due task inline, in the order in which a worker would start them, until none is due.

        Tasks that handlers submit run too. A failed task waits for its retry: move the clock with `advance`, or use
        `advance=True`, which moves it to the next time at which a task is due, until no task is left. With
        `raise_errors`, an exception of a handler is raised after its attempt is settled. Raises QoError if tasks are
        still due after `limit` attempts.
        """
        _check_no_loop("drain")
        attempts: list[Attempt] = []
        while (run := self._call(lambda client: self._next(client, len(attempts), advance, limit))) is not None:
            run.run(self._own_loop)
            attempts.append(self._call(run.settle))
            run.announce_end(attempts[-1])
            if raise_errors and run.exception is not None:
                raise run.exception
        return attempts

    async def adrain(
        self, *, advance: bool = False, raise_errors: bool = False, limit: int = _MAX_ATTEMPTS
    ) -> list[Attempt]:
        """As `drain`, in an async test: async handlers run on the event loop of the test."""
        attempts: list[Attempt] = []
        while (run := await self._acall(lambda client: self._next(client, len(attempts), advance, limit))) is not None:
            await run.arun()
            attempts.append(await self._acall(run.settle))
            run.announce_end(attempts[-1])
            if raise_errors and run.exception is not None:
                raise run.exception
        return attempts

    def run(self, task: Enqueuer[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one attempt of a task that is not stored, with `current_task()` as in a worker.

        Returns the result as a caller of `handle.result()` gets it. Raises what the handler raises.
        """
        return self.run_attempt(1, task, *args, **kwargs)

    def run_attempt(self, number: int, task: Enqueuer[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, as the attempt with this number, after the failure of all attempts before it."""
        _check_no_loop("run")
        check_task(task)
        run = self._inline_run(number, task.handler, task.describe(*args, **kwargs))
        run.run(self._own_loop)
        return cast("R", run.result)

    async def arun(self, task: Enqueuer[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, in an async test."""
        return await self.arun_attempt(1, task, *args, **kwargs)

    async def arun_attempt(self, number: int, task: Enqueuer[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        check_task(task)
        run = self._inline_run(number, task.handler, task.describe(*args, **kwargs))
        await run.arun()
        return cast("R", run.result)

    # --- examining

    def tasks(self) -> list[Task]:
        """All tasks of the test, in the order of their submission."""
        return self._call(_all_tasks)

    def enqueued(self, task: TaskName, **arguments: object) -> list[Task]:
        """The submitted tasks of a type, in any status, whose arguments include these, in the order of submission.

        With `task.using(queue=..., delay=...)` the tasks must have these options too.
        """
        wanted = TaskMatcher(self.app, task, arguments)
        return [each for each in self.tasks() if wanted.matches(each)]

    def assert_enqueued(self, task: TaskName, **arguments: object) -> Task:
        """The first task that `enqueued` returns. If there is none, fails with a list of all submitted tasks."""
        found = self.enqueued(task, **arguments)
        if not found:
            wanted = TaskMatcher(self.app, task, arguments)
            raise AssertionError(f"{wanted} was not submitted; {self._submitted(wanted)}")
        return found[0]

    def refute_enqueued(self, task: TaskName, **arguments: object) -> None:
        """Fail if `enqueued` returns a task."""
        found = self.enqueued(task, **arguments)
        if found:
            wanted = TaskMatcher(self.app, task, arguments)
            times = "once" if len(found) == 1 else f"{len(found)} times"
            raise AssertionError(f"{wanted} was submitted {times}, expected none; {self._submitted(wanted)}")

    def _submitted(self, wanted: TaskMatcher) -> str:
        lines = [
            f"  {task.type} {shown(task.payload)} ({task.status}, queue {task.queue}{wanted.options_of(task)})"
            for task in self.tasks()
        ]
        return "\n".join(["the submitted tasks are:", *lines]) if lines else "no task was submitted"

    # --- the store

    async def _next(self, client: Client, done: int, advance: bool, limit: int) -> InlineRun | None:  # noqa: FBT001 - private
        """Lease the task that a worker with all handlers and capabilities would start first; None if none is due."""
        handlers = {handler.type: handler for handler in self.app.registry}
        while True:
            waiting = [task for task in await _all_tasks(client) if _is_waiting(task, handlers)]
            if not waiting:
                return None
            task = await _claim(client, handlers, waiting)
            if task is not None and done >= limit:
                raise QoError(f"{limit} attempts ran and tasks are still due; does a task submit itself? See limit=")
            if task is not None:
                return self._run_of(task, handlers[task.type], client.payload_limit)
            if not advance:
                return None
            self._clock.advance(max(0.0, min(task.due_at for task in waiting) - self._clock()))

    def _inline_run(self, number: int, handler: Handler, new: NewTask) -> InlineRun:
        if number < 1:
            raise InvalidSetting(f"attempt {number} does not exist; the first attempt is 1")
        now = self._clock()
        task = replace(
            created(new, now),
            status=Status.RUNNING,
            attempt=number,
            failures=number - 1,
            worker_id=_WORKER_ID,
            started_at=now,
        )
        return self._run_of(task, handler, self._call(_payload_limit))

    def _run_of(self, task: Task, handler: Handler, limit: int) -> InlineRun:
        return InlineRun(task, handler, limit, self.app.hooks, self._worker)

    def _call(self, function: Callable[[Client], Awaitable[T]]) -> T:
        return self._background.call_client(function)

    async def _acall(self, function: Callable[[Client], Awaitable[T]]) -> T:
        return await self._background.acall_client(function)

    def _own_loop(self) -> asyncio.Runner:
        """The event loop for async handlers. All share it, because they may share connections."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


async def _all_tasks(client: Client) -> list[Task]:
    return (await client.engine.snapshot()).tasks[::-1]


async def _payload_limit(client: Client) -> int:
    return client.payload_limit


def _is_waiting(task: Task, types: Collection[str]) -> bool:
    return task.status is Status.PENDING and task.type in types


async def _claim(client: Client, types: Collection[str], waiting: Collection[Task]) -> Task | None:
    request = ClaimRequest(
        worker_id=_WORKER_ID,
        lease_id=new_token(),
        types=tuple(types),
        capabilities=frozenset(need for task in waiting for need in task.needs),
        takes_groups=True,
    )
    claimed = await client.engine.claim(request)
    return claimed[0] if claimed else None


def _check_no_loop(method: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidSetting(f"{method}() cannot run async handlers inside a running event loop; use `await t.a{method}()`")


async def declare_schedules(client: Client, registry: Registry, clock: Clock, worker_id: str) -> None:
    """Store the schedules of an app."""
    await DeclaredSchedules(client.engine, registry, clock, worker_id=worker_id).declare()


async def fire_schedules(client: Client, clock: Clock) -> list[Task]:
    """Submit the tasks of all fire times that have passed, by the rules of each schedule, and return them."""
    before = {task.id for task in (await client.engine.snapshot()).tasks}
    decided: dict[str, str] | None = None  # versions of the notes, by name
    while decided != (decided := {note.name: note.version for note in await client.engine.notes(SCHEDULES)}):
        # One check decides a part of many fire times.
        await Scheduler(client, clock=StoreTime(client.engine, clock, clock), elapsed=clock).check()
    return [task for task in (await client.engine.snapshot()).tasks[::-1] if task.id not in before]
