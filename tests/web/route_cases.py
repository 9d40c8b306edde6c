"""For every route one request or more, each about a target of its own; and a store with tasks of others."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo import notes, wire
from qo.codec import encode_value
from qo.engines.memory import MemoryEngine
from qo.ids import new_id
from qo.model import ADMIN_NOTES, ANY, ClaimRequest, Filter, NewTask, Status, cancel, complete, fail
from qo.notes import Controls, WorkerNote
from qo.schedules.decision import created_note
from qo.schedules.schedule import make_schedule
from qo.schedules.schedule_notes import SCHEDULES
from qo.web.callers import Scope

# Everything about the target begins with `mine-`, everything about the tasks of others with `secret-`.
MINE, TYPE = "mine-queue", "mine-type"
SECRET, SECRET_TYPE = "secret-queue", "secret-type"
CONTROL = Controls(
    paused_queues=frozenset({SECRET}), paused_types=frozenset({SECRET_TYPE}), rate_limits={SECRET_TYPE: 5.0}
)
ANYWAY = frozenset({"queue", "type"})


class World:
    """The store behind the routes."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()

    async def rebuild(self) -> None:
        """The tasks, workers and controls of others, and nothing else."""
        tasks = await self.engine.find(Filter(), limit=10_000)
        tasks += await self.engine.find(Filter(statuses=(Status.ARCHIVED,)), limit=10_000)
        ids = list({task.id for task in tasks})
        await self.engine.apply([cancel(task_id) for task_id in ids])
        await self.engine.delete(ids)
        for note in await self.engine.notes(""):
            if not note.name.startswith(ADMIN_NOTES):
                await self.engine.drop_note(note.name)
        await self.engine.write_note(notes.CONTROL, msgspec.json.encode(CONTROL), expected=ANY)
        for state in ("pending", "running", "failed", "completed"):
            await self.add(state, SECRET, SECRET_TYPE, "secret")
        (running,) = await self.engine.find(Filter(statuses=(Status.RUNNING,)), limit=1)
        await self.register("secret-worker", SECRET, SECRET_TYPE, "someone", running.id)
        await self.schedule("secret-schedule", SECRET, SECRET_TYPE)

    async def add(self, state: str, queue: str = MINE, type: str = TYPE, word: str = "mine") -> str:
        task_id = new_id()
        payload = encode_value({"marker": f"{word}-payload"})
        new = NewTask(id=task_id, queue=queue, type=type, payload=payload, max_retries=0, trace_id=f"{word}-trace")
        new = replace(new, batch="shared-batch" if state == "pending" else f"{word}-batch")
        if state == "scheduled":
            new, state = replace(new, delay=3600.0), "pending"
        await self.engine.add([new])
        if state != "pending":
            request = ClaimRequest(
                worker_id=f"{word}-worker", lease_id=f"{word}-lease-{task_id}", queues=(queue,), types=(type,)
            )
            (task,) = await self.engine.claim(request)
            if state == "failed":
                await self.engine.apply([fail(task, f"{word}-error")])
            elif state == "completed":
                await self.engine.apply([complete(task, encode_value(f"{word}-result"))])
        return task_id

    async def register(self, worker_id: str, queue: str, type: str, owner: str, *current: str) -> None:
        note = WorkerNote(
            worker_id=worker_id,
            started_at=0.0,
            last_heartbeat=0.0,
            queues=(queue,),
            types=(type,),
            capacity=1,
            owner=owner,
            current_tasks=current,
            host=f"{worker_id}-host",
        )
        await self.engine.write_note(notes.WORKERS + worker_id, msgspec.json.encode(note), expected=ANY)

    async def schedule(self, name: str, queue: str, type: str) -> None:
        new = NewTask(id=new_id(), queue=queue, type=type, payload=b"1")
        note = created_note(make_schedule(name, new, every=60.0), 0.0, from_code=False)
        await self.engine.write_note(SCHEDULES + name, msgspec.json.encode(note), expected=ANY)

    async def versions(self, *queues: str) -> dict[str, int]:
        live = await self.engine.find(Filter(queues=queues), limit=10_000)
        archived = await self.engine.find(Filter(queues=queues, statuses=(Status.ARCHIVED,)), limit=10_000)
        return {task.id: task.version for task in (*live, *archived)}

    async def control(self) -> Controls:
        return await notes.read(self.engine, notes.CONTROL, Controls)


Made = tuple[str, Any]  # the path, and the body: JSON, or bytes for the engine port
Make = Callable[[World, str], Awaitable[Made]]  # of the world and the id of the caller


class Case(Struct, frozen=True, kw_only=True):
    method: str
    path: str  # as in the table
    make: Make
    inside: frozenset[str] = ANYWAY  # the limits, by queue or by type, that its target is inside of
    scope: Scope | None = None  # where it is not the route's


CASES: list[Case] = []


def about(
    method: str, path: str, state: str = "", body: Any = None, *, query: str = "", more: dict[str, Any] | None = None
) -> None:
    """A request about a task in this state, if any. `ID` in the query and the body stands for it."""

    async def make(world: World, _: str) -> Made:
        task_id = await world.add(state or "pending")
        text = msgspec.json.encode(body).decode().replace("ID", task_id)
        return path.replace("{task_id}", task_id) + query.replace("ID", task_id), msgspec.json.decode(text)

    CASES.append(Case(method=method, path=path, make=make, **(more or {})))


V1 = "/api/v1"
NEW = {"task_type": TYPE, "queue": MINE}
BY_QUEUE, BY_TYPE = {"inside": frozenset({"queue"})}, {"inside": frozenset({"type"})}
WHOLE_ONLY: dict[str, Any] = {"inside": frozenset()}

about("POST", f"{V1}/tasks", body=NEW)
about("POST", f"{V1}/tasks", body=NEW | {"idempotency_key": "mine-key"})
about("POST", f"{V1}/tasks", body=NEW | {"batch": "shared-batch", "unique": {}})
about("POST", f"{V1}/tasks/bulk", body={"tasks": [NEW, NEW]})
about("GET", f"{V1}/tasks")
about("GET", f"{V1}/tasks", query=f"?queue={MINE}&queue={SECRET}&type={TYPE}")
about("GET", f"{V1}/tasks", query=f"?queue={SECRET}")
about("GET", f"{V1}/tasks", query="?worker=secret-worker")
about("GET", f"{V1}/tasks", query="?batch=shared-batch")
about("GET", f"{V1}/tasks/{{task_id}}")
about("GET", f"{V1}/tasks/{{task_id}}", "running")
about("DELETE", f"{V1}/tasks/{{task_id}}")
about("GET", f"{V1}/tasks/{{task_id}}/history", "running")
about("GET", f"{V1}/tasks/{{task_id}}/result", "completed")
about("POST", f"{V1}/tasks/{{task_id}}/replay", "failed")
about("POST", f"{V1}/tasks/{{task_id}}/archive", "completed")
about("POST", f"{V1}/tasks/{{task_id}}/delete", "completed")
about("POST", f"{V1}/tasks/{{task_id}}/run-now", "scheduled")
about("POST", f"{V1}/tasks/{{task_id}}/reschedule", body={"delay_seconds": 5})
about("POST", f"{V1}/tasks/{{task_id}}/priority", body={"priority": "high"})
about("GET", f"{V1}/tasks/{{task_id}}/explain")
about("POST", f"{V1}/tasks/replay", "failed", {})
about("POST", f"{V1}/tasks/replay", "failed", {"queue": [SECRET]})
about("POST", f"{V1}/tasks/cancel", "pending", {"status": ["queued"]})
about("POST", f"{V1}/tasks/cancel", "pending", {"queue": [SECRET]})
about("POST", f"{V1}/tasks/archive", "completed", {"status": ["completed"]})
about("POST", f"{V1}/tasks/delete", "completed", {"status": ["completed", "dead_letter"]})
about("POST", f"{V1}/tasks/run-now", "scheduled", {"status": ["queued"]})
about("POST", f"{V1}/tasks/reschedule", body={"status": ["queued"], "delay_seconds": 60})
about("POST", f"{V1}/tasks/priority", body={"status": ["queued"], "priority": "high"})
about("GET", f"{V1}/queue/stats")
about("GET", f"{V1}/workers", "running")
about("GET", f"{V1}/batches")
about("GET", f"{V1}/schedules")
about("GET", f"{V1}/controls")
for verb in ("pause", "resume"):
    about("POST", f"{V1}/controls/{verb}", body={"queue": MINE}, more=BY_QUEUE)
    about("POST", f"{V1}/controls/{verb}", body={"type": TYPE}, more=BY_TYPE)
    about("POST", f"{V1}/controls/{verb}", body={"queue": MINE, "type": TYPE}, more=WHOLE_ONLY)
    about("POST", f"{V1}/controls/{verb}", body={}, more=WHOLE_ONLY)
about("POST", f"{V1}/controls/rate-limit", body={"tasks_per_second": 1, "type": TYPE}, more=BY_TYPE)
about("POST", f"{V1}/controls/rate-limit", body={"tasks_per_second": 1}, more=WHOLE_ONLY)
about("GET", f"{V1}/limits")
about("POST", f"{V1}/limits", body={"concurrency": 1, "type": TYPE}, more=BY_TYPE)
about("POST", f"{V1}/limits", body={"concurrency": 1, "queue": MINE}, more=BY_QUEUE)
about("POST", f"{V1}/limits", body={"concurrency": 1, "key": "customer=1"}, more=WHOLE_ONLY)
about("POST", f"{V1}/controls/max-types", body={"max_types": 5000}, more=WHOLE_ONLY)
about("GET", f"{V1}/events")
about("GET", f"{V1}/audit")
about("POST", "/auth/logout")

BOARD = f"{V1}/dashboard"
about("GET", f"{BOARD}/session")
about("GET", f"{BOARD}/overview", "failed")
about("GET", f"{BOARD}/tasks")
about("GET", f"{BOARD}/tasks", query="?text=secret")
about("GET", f"{BOARD}/tasks", query="?text=ID")
about("GET", f"{BOARD}/tasks", query=f"?queue={SECRET}&sort=updated")
about("GET", f"{BOARD}/tasks/{{task_id}}", "running")
about("GET", f"{BOARD}/tasks/{{task_id}}/history", "running")
about("GET", f"{BOARD}/workers", "running")
about("POST", f"{BOARD}/act", "failed", {"action": "replay", "ids": ["ID"]})
about("POST", f"{BOARD}/act", "pending", {"action": "cancel", "filter": {}})
about("POST", f"{BOARD}/act", "completed", {"action": "archive", "filter": {"text": "payload"}})
about("POST", f"{BOARD}/act", "scheduled", {"action": "run_now", "filter": {}})
about("POST", f"{BOARD}/act", body={"action": "reschedule", "ids": ["ID"], "run_at": "2100-01-01T00:00:00Z"})
about("POST", f"{BOARD}/act", body={"action": "priority", "ids": ["ID"], "priority": 1})
about("POST", f"{BOARD}/act", "pending", {"action": "cancel_and_delete", "ids": ["ID"]}, more={"scope": Scope.ADMIN})
about("POST", f"{BOARD}/act", "completed", {"action": "delete", "ids": ["ID"]}, more={"scope": Scope.ADMIN})
about("POST", f"{BOARD}/cleanup", "completed", {"older_than": 0, "status": ["completed", "failed"]})

MANAGED = "/api/tasks"
about("GET", MANAGED)
about("GET", MANAGED, query=f"?type={SECRET_TYPE}")
about("GET", MANAGED, query="?batch=shared-batch")
about("GET", f"{MANAGED}/stats", "failed")
about("POST", f"{MANAGED}/retry", "failed", {})
about("POST", f"{MANAGED}/cancel", "pending", {"batch": "shared-batch"})
about("POST", f"{MANAGED}/delete", "completed", {"status": ["completed", "failed"]})
about("POST", f"{MANAGED}/run-now", "scheduled", {"status": ["pending"]})
about("POST", f"{MANAGED}/reschedule", body={"type": [SECRET_TYPE], "runAt": "2100-01-01T00:00:00Z"})
about("POST", f"{MANAGED}/priority", body={"status": ["pending"], "priority": 0})
about("GET", f"{MANAGED}/{{task_id}}")
about("DELETE", f"{MANAGED}/{{task_id}}", "completed")
about("POST", f"{MANAGED}/{{task_id}}/retry", "failed")
about("POST", f"{MANAGED}/{{task_id}}/cancel", "pending")
about("POST", f"{MANAGED}/{{task_id}}/run-now", "scheduled")
about("POST", f"{MANAGED}/{{task_id}}/reschedule", body={"runAt": "2100-01-01T00:00:00Z"})
about("POST", f"{MANAGED}/{{task_id}}/priority", body={"priority": 0})
about("DELETE", MANAGED, "completed", query="?olderThan=2100-01-01")
about("POST", f"{MANAGED}/pause")
about("POST", f"{MANAGED}/resume")
about("POST", f"{MANAGED}/rate-limit", body={"tasksPerSecond": 0})
# It has no queues: what it creates is in the queue `default`, which no token of these tests is limited to.
about("POST", MANAGED, body={"type": TYPE, "payload": {"marker": "mine-payload"}}, more=BY_TYPE)
about("GET", "/metrics")
WORKERS = "/internal/workers"
about("POST", f"{WORKERS}/register", body={"queues": [MINE], "types": [TYPE]})


async def _drain(world: World, _: str) -> Made:
    await world.register("mine-worker", MINE, TYPE, "someone")
    return f"{V1}/workers/mine-worker/drain", None


def _of_batch(state: str) -> Make:
    """A batch of tasks of this state: others have pending ones in it, too."""

    async def make(world: World, _: str) -> Made:
        await world.add(state)
        return f"{V1}/batches/{'shared' if state == 'pending' else 'mine'}-batch", None

    return make


def _on_schedule(end: str = "", body: Any = None) -> Make:
    async def make(world: World, _: str) -> Made:
        await world.schedule("mine-schedule", MINE, TYPE)
        return f"{V1}/schedules/mine-schedule{end}", body

    return make


async def _new_schedule(_: World, __: str) -> Made:
    return f"{V1}/schedules/mine-new", {"type": TYPE, "queue": MINE, "every": 60}


POLL = {"available_capacity": 9}


def _as_worker(verb: str, body: Callable[[str], Any]) -> Make:
    """A worker of the caller, whatever its token says of queues: a note may lie."""

    async def make(world: World, caller_id: str) -> Made:
        task_id = await world.add("running" if verb == "result" else "pending")
        worker_id = new_id()
        note = WorkerNote(worker_id=worker_id, started_at=0.0, last_heartbeat=0.0, capacity=9, owner=caller_id)
        await world.engine.write_note(notes.WORKERS + worker_id, msgspec.json.encode(note), expected=ANY)
        if verb == "result":
            await _take(world, task_id, worker_id)
        return f"{WORKERS}/{worker_id}/{verb}", body(task_id)

    return make


async def _take(world: World, task_id: str, worker_id: str) -> None:
    """Make the caller's worker the holder."""
    (task,) = await world.engine.get([task_id])
    assert task is not None
    await world.engine.apply([cancel(task_id)])
    await world.engine.delete([task_id])
    await world.engine.add([NewTask(id=task_id, queue=MINE, type=TYPE, payload=task.payload, max_retries=0)])
    await world.engine.claim(
        ClaimRequest(worker_id=worker_id, lease_id=f"own-{task_id}", queues=(MINE,), types=(TYPE,))
    )


async def _foreign_worker(world: World, _: str) -> Made:
    task_id = await world.add("pending")
    worker_id = new_id()
    await world.register(worker_id, MINE, TYPE, "another token", task_id)
    return f"{WORKERS}/{worker_id}/poll", POLL


CASES += [
    Case(method="GET", path=f"{V1}/batches/{{name}}", make=_of_batch("pending")),
    Case(method="GET", path=f"{V1}/batches/{{name}}", make=_of_batch("completed")),
    Case(method="GET", path=f"{V1}/schedules/{{name}}", make=_on_schedule()),
    Case(method="PUT", path=f"{V1}/schedules/{{name}}", make=_new_schedule),
    Case(method="DELETE", path=f"{V1}/schedules/{{name}}", make=_on_schedule()),
    *(
        Case(method="POST", path=f"{V1}/schedules/{{name}}/{verb}", make=_on_schedule(f"/{verb}"))
        for verb in ("pause", "resume", "run")
    ),
    Case(method="POST", path=f"{V1}/workers/{{worker_id}}/drain", make=_drain),
    Case(method="POST", path=f"{WORKERS}/{{worker_id}}/poll", make=_as_worker("poll", lambda _: POLL)),
    Case(
        method="POST",
        path=f"{WORKERS}/{{worker_id}}/result",
        make=_as_worker("result", lambda task_id: {"task_id": task_id, "status": "completed"}),
    ),
    Case(
        method="POST",
        path=f"{WORKERS}/{{worker_id}}/heartbeat",
        make=_as_worker("heartbeat", lambda task_id: {"current_tasks": [task_id]}),
    ),
]
FOREIGN_WORKER = Case(method="POST", path=f"{WORKERS}/{{worker_id}}/poll", make=_foreign_worker)

WANT = ClaimRequest(worker_id="w", lease_id="l", queues=(MINE,))
ASKED: dict[str, Callable[[str], Any]] = {
    "hello": lambda _: None,
    "add": lambda _: [NewTask(id=new_id(), queue=MINE, type=TYPE, payload=b"1")],
    "claim": lambda _: WANT,
    "apply": lambda task_id: [cancel(task_id)],
    "delete": lambda task_id: [task_id],
    "get": lambda task_id: [task_id],
    "find": lambda _: wire.Find(where=Filter(), limit=10),
    "count": lambda _: None,
    "history": lambda task_id: task_id,
    "wait": lambda _: wire.Wait(request=WANT, timeout=0.0),
    "read_note": lambda _: "control",
    "write_note": lambda _: wire.WriteNote(name="some", data=b"{}", expected=ANY),
    "notes": lambda _: "",
    "drop_note": lambda _: "some",
}


def _on_the_port(call: str) -> Make:
    async def make(world: World, _: str) -> Made:
        return f"{wire.PATH}/{call}", wire.encode(ASKED[call](await world.add("pending")))

    return make


CASES += [Case(method="POST", path=f"{wire.PATH}/{call}", make=_on_the_port(call)) for call in ASKED]
