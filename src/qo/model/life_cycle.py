"""Documentation of the life cycle, generated from the rules: `python -m qo.model.life_cycle`."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from qo.model.change import (
    STATUSES,
    Change,
    Guard,
    apply,
    archive,
    cancel,
    claim,
    complete,
    is_due,
    release,
    renew,
    replay,
    replay_finished,
    reschedule,
    retry_now,
    run_now,
    set_priority,
    withdraw,
)
from qo.model.failures import (
    after_error,
    expire,
    fail,
    reject,
    set_apart,
)
from qo.model.filter import ClaimRequest
from qo.model.ranking import HIGH
from qo.model.task import BLOCKED_AT, FINISHED, FailureKind, Status, Task
from qo.model.workflow import NodeState, cancel_child, replay_node, unblock
from qo.model.workflow_graph import GraphNode, WorkflowGraph

REFUSED = "-"
GONE = "gone"
NOW = 1_000.0


class LifeCycleStep(NamedTuple):
    """A transition of a task. `change` is None for claiming and deleting, which are not a Change."""

    name: str
    who: str
    change: Callable[[Task], Change] | None
    meaning: str


def _with_retries(task: Task) -> Task:
    return replace(task, max_retries=task.failures + 1)


def _without_retries(task: Task) -> Task:
    return replace(task, max_retries=task.failures)


_GRAPH = WorkflowGraph(
    token="0" * 20,
    name="sample",
    created_at=NOW,
    nodes=(GraphNode(type="parent"), GraphNode(type="child", parents=(0,))),
)

STEPS = (
    LifeCycleStep("claim", "worker", None, "Takes a due task under a new lease; `attempt` grows by one."),
    LifeCycleStep("renew", "worker", lambda task: renew(task, 60.0), "Extends the lease of a running task."),
    LifeCycleStep("complete", "worker", complete, "Stores the result and clears the error of earlier attempts."),
    LifeCycleStep(
        "retry",
        "worker",
        lambda task: after_error(_with_retries(task), "error", random=0.5),
        "`after_error` while `failures` is below `max_retries`: the task runs again after the back-off.",
    ),
    LifeCycleStep(
        "give up",
        "worker",
        lambda task: after_error(_without_retries(task), "error", random=0.5),
        "`after_error` when the retries are used up.",
    ),
    LifeCycleStep("fail", "worker", lambda task: fail(task, "error"), "Fails permanently, even if retries are left."),
    LifeCycleStep(
        "reject",
        "worker",
        lambda task: reject(task, "error"),
        "Fails a pending task of a type that no worker handles, if the worker was started with `--fail-unknown-types`."
        " Without that option such a task stays pending. `attempt` and `failures` do not change.",
    ),
    LifeCycleStep("release", "worker", release, "Returns an unfinished task to the queue; `failures` does not change."),
    LifeCycleStep(
        "set apart",
        "worker",
        lambda task: set_apart(task, "error"),
        "As `release`, for a task whose process died, possibly because of another task. It runs alone in a process next"
        " time.",
    ),
    LifeCycleStep(
        "expire",
        "monitor",
        lambda task: expire(_with_retries(task), random=0.5, grace=0.0),
        "The worker stopped renewing the lease: counts as a failure, with back-off.",
    ),
    LifeCycleStep(
        "expire, last",
        "monitor",
        lambda task: expire(_without_retries(task), random=0.5, grace=0.0),
        "The same when the retries are used up: a task that kills its workers ends as failed.",
    ),
    LifeCycleStep(
        "cancel", "anyone", lambda task: cancel(task.id), "Ends the task; a worker that runs it loses its lease."
    ),
    LifeCycleStep(
        "replay",
        "anyone",
        lambda task: replay(task.id),
        "Starts over: due now, `failures` 0, the submitted timeout, no result. The last error stays until the task"
        " completes, so that a task that killed its process still runs alone in one.",
    ),
    LifeCycleStep(
        "replay finished", "anyone", lambda task: replay_finished(task.id), "As `replay`, also for a completed task."
    ),
    LifeCycleStep(
        "retry now",
        "anyone",
        lambda task: retry_now(task.id),
        "Ends the back-off: due now, `failures` 0. Refused once a worker has the task.",
    ),
    LifeCycleStep(
        "run now",
        "anyone",
        lambda task: run_now(task.id),
        "Makes a scheduled or retrying task due now; `failures` does not change. Refused if the task is already due.",
    ),
    LifeCycleStep(
        "reschedule",
        "anyone",
        lambda task: reschedule(task.id, NOW),
        "Sets the time at which a pending task becomes due.",
    ),
    LifeCycleStep(
        "set priority",
        "anyone",
        lambda task: set_priority(task.id, HIGH),
        "Changes the priority of a pending task, which then ranks as if it had been submitted with it.",
    ),
    LifeCycleStep(
        "withdraw", "anyone", lambda task: withdraw(task.id), "As `cancel`, but only while no worker has the task."
    ),
    LifeCycleStep(
        "unblock",
        "anyone",
        lambda _: unblock(_GRAPH, 1),
        "All parents of a blocked task have completed: the task is due now.",
    ),
    LifeCycleStep(
        "cancel child",
        "anyone",
        lambda _: cancel_child(_GRAPH, 1, 0, NodeState(Status.FAILED)),
        "Cancels a blocked task because one of its parents did not complete.",
    ),
    LifeCycleStep(
        "block again",
        "anyone",
        lambda _: replay_node(_GRAPH, 1, is_blocked=True),
        "Replays a finished task of a workflow together with one of its parents: it waits for that parent again.",
    ),
    LifeCycleStep("archive", "anyone", lambda task: archive(task.id), "Removes the task from normal listings."),
    LifeCycleStep("delete", "anyone", None, "Deletes the task and its history."),
)

GUARDS = {
    Guard.HELD: "the task runs under the lease that the change names, so a worker with an old lease is refused.",
    Guard.EXPIRED: "as `held`, and that lease expired at least `grace` seconds ago, so a late renewal still wins.",
    Guard.WAITING: "the task is pending, so no worker has it.",
    Guard.NOT_DUE: "the task is pending and not due yet.",
    Guard.BLOCKED: "the task is pending and waits for other tasks of its workflow.",
    Guard.UNFINISHED: "the task has not ended.",
    Guard.ENDED: "the task has ended and is not archived yet.",
    Guard.REPLAYABLE: "the task ended without success, or is archived.",
    Guard.FINISHED: "the task has ended, with or without success, or is archived.",
}


KINDS = {
    FailureKind.ERROR: "the handler raised an error, or its worker reported a failure.",
    FailureKind.TIMEOUT: "the attempt took longer than its timeout.",
    FailureKind.LOST: "the worker or the process of the handler died, or the lease expired.",
    FailureKind.UNKNOWN_TYPE: "no worker handles the type of the task (`reject`).",
    FailureKind.CANCELLED: "only as `TaskFailed.kind`: the task was cancelled.",
    FailureKind.PARENT: "the task was cancelled because one of its parents in a workflow did not complete.",
    FailureKind.PARENT_REPLAYED: "of a pending task: one of its parents in a workflow was replayed.",
    FailureKind.STARTED_ALONE: "of a pending task: a user started it before its parents in a workflow had completed.",
}


def sample(status: Status) -> Task:
    """A task in the given status to which every change can apply: it is due, and its lease has just expired."""
    held = status is Status.RUNNING
    return Task(
        id="00000000-0000-8000-8000-000000000000",
        queue="default",
        type="sample",
        status=status,
        attempt=1,
        available_at=NOW,
        lease_expires_at=NOW if held else None,
        created_at=NOW,
        updated_at=NOW,
        completed_at=NOW if status in FINISHED else None,
        rank=NOW,
        lease_id="lease",
    )


def outcome(step: LifeCycleStep, status: Status) -> str:
    """The status after the step, or GONE or REFUSED, for a task in this status."""
    task = sample(status)
    if step.change is not None:
        if guard(step) is Guard.NOT_DUE:
            task = replace(task, available_at=NOW + 1)
        if guard(step) is Guard.BLOCKED:
            task = replace(task, available_at=BLOCKED_AT)
        changed = apply(task, step.change(task), NOW)
        return REFUSED if changed is None else changed.status.value
    if step.name == "delete":
        return GONE if status in FINISHED else REFUSED
    request = ClaimRequest(worker_id="worker", lease_id="fresh")
    return claim(task, request, NOW).status.value if is_due(task, NOW) else REFUSED


def guard(step: LifeCycleStep) -> Guard | None:
    return None if step.change is None else step.change(sample(Status.RUNNING)).guard


def render() -> str:
    """The whole page, as Markdown."""
    return "\n".join([*_head(), *_table(), "", *_guards(), "", *_steps(), "", *_kinds(), "", *_diagram(), ""])


def _head() -> Iterator[str]:
    yield "# The life cycle of a task"
    yield ""
    yield "Generated from `qo.model` by `python -m qo.model.life_cycle > docs/life-cycle.md`; a test compares them."
    yield ""
    yield "The table shows the status after each step, for each status before it, if its guard holds. `-` is refused."
    yield ""


def _table() -> Iterator[str]:
    yield _row("step", "by", "guard", *Status)
    yield _row(*["---"] * (3 + len(Status)))
    for step in STEPS:
        yield _row(step.name, step.who, guard(step) or "", *(outcome(step, status) for status in Status))


def _guards() -> Iterator[str]:
    yield "A change is written only if its guard holds; otherwise the engine returns False and writes nothing."
    yield "A settlement repeated under the same lease returns True again: the first response may have been lost."
    yield ""
    for each, sentence in GUARDS.items():
        statuses = ", ".join(status for status in Status if status in STATUSES[each])
        yield f"- `{each}` ({statuses}): {sentence}"


def _steps() -> Iterator[str]:
    for step in STEPS:
        yield f"- **{step.name}**: {step.meaning}"


def _kinds() -> Iterator[str]:
    yield "`failure_kind` is the reason for the failure that `error` describes. It is kept as long as `error` is."
    yield "`archived_from` is the status that a task had before it was archived."
    yield ""
    for kind, sentence in KINDS.items():
        yield f"- `{kind}`: {sentence}"


def _diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> pending: add"
    for status in Status:
        arrows: dict[str, list[str]] = {}
        for step in STEPS:
            to = outcome(step, status)
            if to != REFUSED:
                arrows.setdefault("[*]" if to == GONE else to, []).append(step.name)
        for to, names in arrows.items():
            yield f"    {status} --> {to}: {' / '.join(names)}"
    yield "```"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - the output
