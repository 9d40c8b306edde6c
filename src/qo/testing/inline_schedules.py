"""Schedules in tests: declared as a worker does when it starts, and fired when the test asks for it."""

from qo.client import Client
from qo.clock import Clock
from qo.model import Task
from qo.monitor.scheduler import Scheduler
from qo.schedules.schedule_notes import SCHEDULES
from qo.store_time import StoreTime
from qo.tasks import Registry
from qo.worker.declared_schedules import DeclaredSchedules


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
