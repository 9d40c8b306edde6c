"""Why a task is waiting: a pure function, and the reads that it needs."""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from qo import notes
from qo.clock import iso
from qo.engine import Engine
from qo.errors import DamagedNote
from qo.fleet_limits.limit_status import reasons_to_wait
from qo.handled_types import Consumers, read_consumers
from qo.model import (
    FILLS_RESULTS,
    FINISHED,
    Counts,
    Filter,
    PendingKind,
    Status,
    Task,
    effective_rank,
    lane_matcher,
    node_address,
    pending_kind,
    plural,
)
from qo.notes import CONTROL, DEAD_AFTER, Controls, WorkerNote, is_dead, read_or, workers
from qo.workflows import read_graph

_MAX_PARENTS_NAMED = 5
_MAX_COMPARED = 1000  # due tasks of the queue that are read to count those before a task

WaitKind = Literal[
    "finished", "running", "scheduled", "retrying", "blocked", "paused", "no_worker", "no_capability", "limited",
    "rate_limited", "busy", "position",
]  # fmt: skip


class WaitReason(Struct, frozen=True, kw_only=True):
    """One reason why a task is waiting. `is_blocking`: the task cannot start while the reason persists."""

    kind: WaitKind
    text: str
    is_blocking: bool = True


class TasksBefore(Struct, frozen=True, kw_only=True):
    """How many due tasks of the same queue go before a task."""

    number: int
    is_exact: bool  # False: an upper limit, because there are too many to compare


class ParentsLeft(Struct, frozen=True, kw_only=True):
    """The tasks that a task of a workflow is waiting for."""

    number: int  # of all its parents
    left: tuple[str, ...]  # those that have not completed: type, id and status


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a task is waiting, the most important reason first."""

    task_id: str
    status: Status
    kind: PendingKind | None
    reasons: tuple[WaitReason, ...]

    @property
    def text(self) -> str:
        return "; ".join(reason.text for reason in self.reasons)


def explain(
    task: Task,
    now: float,
    *,
    controls: Controls,
    workers: Iterable[WorkerNote] = (),
    consumers: Consumers | None = None,
    before: TasksBefore | None = None,
    limits: Iterable[str] = (),
    parents: ParentsLeft | None = None,
    dead_after: float = DEAD_AFTER,
) -> Explanation:
    """Why a task is waiting at `now`. A task that is not waiting has a single reason that states this.

    `limits`: the fleet limits that keep it from starting, as text.
    """
    kind = pending_kind(task, now)
    if kind is None:
        reasons = [_not_waiting(task)]
    elif kind is PendingKind.BLOCKED:
        reasons = [_blocked(parents)]
    else:
        alive = [worker for worker in workers if worker.status == "active" and not is_dead(worker, now, dead_after)]
        taken = consumers.taken(now) if consumers else []
        reasons = [
            *_due(task, kind, now),
            *_paused(task, controls),
            *_workers(task, alive, taken),
            *(WaitReason(kind="limited", text=text) for text in limits),
            *_rates(task, controls),
        ]
        if kind is PendingKind.READY:
            reasons += _position(before, is_blocked=any(reason.is_blocking for reason in reasons))
    return Explanation(task_id=task.id, status=task.status, kind=kind, reasons=tuple(reasons))


def _not_waiting(task: Task) -> WaitReason:
    if task.status in FINISHED:
        return WaitReason(kind="finished", text=f"not waiting: the task is {task.status}", is_blocking=False)
    if task.is_claimed_only:
        return WaitReason(
            kind="running", text=f"worker {task.worker_id} has claimed it and will start it next", is_blocking=False
        )
    return WaitReason(kind="running", text=f"not waiting: worker {task.worker_id} is running it", is_blocking=False)


def _due(task: Task, kind: PendingKind, now: float) -> list[WaitReason]:
    at = f"{iso(task.available_at)}, in {_duration(task.available_at - now)}"
    if kind is PendingKind.SCHEDULED:
        return [WaitReason(kind="scheduled", text=f"due at {at}")]
    if kind is PendingKind.RETRYING:
        failed = f"attempt {task.attempt} failed"
        return [WaitReason(kind="retrying", text=f"{failed}; waiting for the retry at {at}")]
    return []


def _blocked(parents: ParentsLeft | None) -> WaitReason:
    if parents is None:
        return WaitReason(kind="blocked", text="waiting for other tasks of its workflow, whose graph cannot be read")
    names = ", ".join(parents.left[:_MAX_PARENTS_NAMED])
    more = len(parents.left) - _MAX_PARENTS_NAMED
    of = f"{len(parents.left):,} of {plural(parents.number)}"
    rest = f", and {more:,} more" if more > 0 else ""
    return WaitReason(kind="blocked", text=f"waiting for {of} of its workflow: {names}{rest}")


def _paused(task: Task, controls: Controls) -> list[WaitReason]:
    texts = []
    if controls.paused:
        texts.append("all tasks are paused")
    if task.queue in controls.paused_queues:
        texts.append(f"queue {task.queue} is paused")
    if task.type in controls.paused_types:
        texts.append(f"type {task.type} is paused")
    return [WaitReason(kind="paused", text=text) for text in texts]


def _workers(task: Task, alive: Sequence[WorkerNote], taken: Sequence[tuple[str, str]]) -> list[WaitReason]:
    """Which workers can take the task. Clients that call `dequeue` do not register capabilities or slots."""
    if any(queue in ("", task.queue) and type_ in ("", task.type) for queue, type_ in taken):
        return []
    if not alive:
        return [WaitReason(kind="no_worker", text="no worker is running")]
    handling = [worker for worker in alive if lane_matcher(worker.queues, worker.types)(task.queue, task.type)]
    if not handling:
        text = f"no running worker handles type {task.type} of queue {task.queue}"
        return [WaitReason(kind="no_worker", text=text)]
    needs = [need for need in task.needs if need != FILLS_RESULTS]  # every worker of this build has it
    able = [worker for worker in handling if set(needs).issubset(worker.capabilities)]
    if not able:
        offered = {name for worker in handling for name in worker.capabilities}
        missing = [need for need in needs if need not in offered] or needs
        text = f"no running worker that handles type {task.type} has {_names('capability', 'capabilities', missing)}"
        return [WaitReason(kind="no_capability", text=text)]
    if able and all(worker.current_load >= worker.capacity for worker in able):
        slots = sum(worker.capacity for worker in able)
        busy = "the only slot of the workers that can run it is busy"
        text = busy if slots == 1 else f"all {slots:,} slots of the workers that can run it are busy"
        return [WaitReason(kind="busy", text=text, is_blocking=False)]
    return []


def _rates(task: Task, controls: Controls) -> list[WaitReason]:
    reasons = []
    if rate := controls.rate_limits.get(task.type, 0.0):
        reasons.append(f"each worker starts at most {plural(rate)} of type {task.type} per second")
    if controls.rate_limit:
        reasons.append(f"each worker starts at most {plural(controls.rate_limit)} per second")
    return [WaitReason(kind="rate_limited", text=text, is_blocking=False) for text in reasons]


def _position(before: TasksBefore | None, *, is_blocked: bool) -> list[WaitReason]:
    if before is None:
        return []
    if before.number:
        how = "" if before.is_exact else "at most "
        text = f"{how}{plural(before.number)} in its queue {'goes' if before.number == 1 else 'go'} before it"
    elif is_blocked:
        return []
    else:
        text = "it is next in its queue"
    return [WaitReason(kind="position", text=text, is_blocking=False)]


def _names(one: str, many: str, names: Sequence[str]) -> str:
    return f"{one if len(names) == 1 else many} {', '.join(names)}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


async def explain_task(engine: Engine, task: Task, now: float, *, dead_after: float = DEAD_AFTER) -> Explanation:
    """As `explain`, with the current content of the store. Reads at most `_MAX_COMPARED` tasks."""
    if task.status is not Status.PENDING:
        return explain(task, now, controls=Controls())
    kind = pending_kind(task, now)
    if kind is PendingKind.BLOCKED:
        return explain(task, now, controls=Controls(), parents=await _parents_left(engine, task))
    is_due = kind is PendingKind.READY
    controls = await read_or(engine, CONTROL, Controls, Controls())
    return explain(
        task,
        now,
        controls=controls,
        workers=await workers(engine),
        consumers=await read_consumers(engine),
        before=await _tasks_before(engine, task, now) if is_due else None,
        limits=await reasons_to_wait(engine, task, controls, now) if is_due else (),
        dead_after=dead_after,
    )


async def _parents_left(engine: Engine, task: Task) -> ParentsLeft | None:
    address = node_address(task.id)
    try:
        graph = None if address is None else await read_graph(engine, address.token)
    except DamagedNote as error:
        notes.report(error)
        return None
    if address is None or graph is None or address.node >= len(graph.nodes):
        return None
    indexes = graph.nodes[address.node].parents
    left: list[str] = []
    for start in range(0, len(indexes), _MAX_COMPARED):
        some = [graph.task_id(index) for index in indexes[start : start + _MAX_COMPARED]]
        parents = zip(indexes[start:], some, await engine.get_without_values(some), strict=False)
        for index, task_id, parent in parents:
            if parent is None or parent.ended_as is not Status.COMPLETED:
                status = "is missing" if parent is None else f"is {parent.ended_as}"
                left.append(f"{graph.nodes[index].type} ({task_id}) {status}")
    return ParentsLeft(number=len(indexes), left=tuple(left))


async def _tasks_before(engine: Engine, task: Task, now: float) -> TasksBefore:
    """Compare the due tasks of the queue, or add up counts if there are too many."""
    counts = await engine.count()
    if _pending(counts, task.queue) > _MAX_COMPARED:
        limit = _pending(counts, task.queue, up_to=task.priority)
        return TasksBefore(number=max(0, limit - 1), is_exact=False)
    where = Filter(statuses=(Status.PENDING,), pending=(PendingKind.READY,), queues=(task.queue,))
    found = await engine.find_without_values(where, limit=_MAX_COMPARED)
    place = _place(task, now)
    return TasksBefore(number=sum(_place(other, now) < place for other in found), is_exact=len(found) < _MAX_COMPARED)


def _place(task: Task, now: float) -> tuple[float, float, str]:
    return effective_rank(task.rank, task.due_at, now), task.created_at, task.id


def _pending(counts: Counts, queue: str, *, up_to: int = 9) -> int:
    return sum(
        number
        for key, number in counts.items()
        if key.status is Status.PENDING and key.queue == queue and key.priority <= up_to
    )
