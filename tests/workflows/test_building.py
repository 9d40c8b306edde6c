"""Workflows as a program builds them: signatures, chains, groups, children of running tasks, and what is refused."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

import qo
from qo.app import background_of
from qo.model import MAX_WORKFLOW_TASKS, Note, PendingKind, Status, WorkflowStatus
from qo.testing.app_tester import AppTester
from qo.workflow import Workflow
from qo.workflow_run import NodeHandle
from qo.workflows import GRAPHS, OPEN_WORKFLOWS

app = qo.App("memory://")
seen: list[Any] = []


@app.task
def number(n: int) -> int:
    return n


@app.task
async def total(numbers: list[int], extra: int = 0) -> int:
    return sum(numbers) + extra


@app.task
def note(text: str = "nothing") -> str:
    seen.append(text)
    return text


@app.task(max_retries=0)
def broken(n: int) -> int:
    raise qo.Fail(f"cannot {n}")


@app.task
def either(value: int | None) -> str:
    return "none" if value is None else "some"


@app.task
def raw(size: int) -> bytes:
    return b"x" * size


@app.task
def length(data: bytes) -> int:
    return len(data)


@app.task
def count_down(n: int) -> int:
    if n:
        qo.current_workflow().add(count_down.s(n - 1))
    return n


@app.task
async def fan_out(n: int) -> int:
    flow = qo.current_workflow()
    parts = await flow.aadd_many(number.s(each) for each in range(n))
    await flow.aadd(total.s(parts))
    return n


@app.task(retry=qo.RetryPolicy(initial=0.0, jitter=0.0))
def second_try(n: int) -> int:
    qo.current_workflow().add(note.s(f"attempt {qo.current_task().attempt}"))
    if qo.current_task().attempt < n:
        raise ValueError("not yet")
    return n


@pytest.fixture
def t() -> Iterator[AppTester]:
    seen.clear()
    with app.test_mode() as tester:
        yield tester


def flow() -> Workflow:
    return app.workflow("test")


def test_results_are_arguments_alone_in_lists_and_in_dicts(t: AppTester) -> None:
    @app.task(name="nested")
    def nested(values: dict[str, list[int]]) -> int:
        return sum(sum(each) for each in values.values())

    it = flow()
    one, two = it.add(number.s(1)), it.add(number.s(n=2))
    it.add(nested.s({"a": [one, 10], "b": [two, one]}))
    run = it.submit()
    t.drain()
    assert run.result(0) == 14


def test_a_chain_passes_each_result_as_the_first_open_argument(t: AppTester) -> None:
    run = qo.chain(number.s(3), number.s(), either.s(), note.s()).enqueue()
    t.drain()
    assert (run.result(0), run.view().nodes[2].status) == ("nothing", Status.COMPLETED), "a default stays as it is"


def test_a_group_passes_the_list_of_results(t: AppTester) -> None:
    run = qo.group([number.s(n) for n in range(5)], then=total.s(extra=100)).enqueue()
    t.drain()
    assert run.result(0) == 110
    alone = qo.group([number.s(n) for n in (7, 8)]).enqueue()
    t.drain()
    assert alone.result(0) == [7, 8]


def test_raw_and_large_results_are_passed_on(t: AppTester) -> None:
    run = qo.chain(raw.s(200_000), length.s()).enqueue()
    t.drain()
    assert run.result(0) == 200_000


def test_a_result_of_another_type_fails_the_task_and_names_the_argument(t: AppTester) -> None:
    it = flow()
    it.add(number.s(it.add(note.s("text"))))
    run = it.submit()
    t.drain()
    with pytest.raises(qo.TaskFailed, match=r"Expected `int`, got `str`.*\$\.n"):
        run.result(0)


def test_a_task_that_runs_without_its_parent_gets_none(t: AppTester) -> None:
    it = flow()
    it.add(either.s(it.add(broken.s(1))), on_parent_failure="run")
    run = it.submit()
    t.drain()
    assert (run.result(0), run.status()) == ("none", WorkflowStatus.COMPLETED)


def test_a_task_starts_after_its_parents_and_its_own_delay(t: AppTester) -> None:
    it = flow()
    it.add(note.using(delay=60).s("late"), after=[it.add(number.s(1))])
    run = it.submit()
    t.drain()
    assert run.view().nodes[1].pending_kind is PendingKind.SCHEDULED
    t.advance(61)
    t.drain()
    assert run.result(0) == "late"


def test_a_running_task_adds_tasks_to_its_workflow(t: AppTester) -> None:
    loop, fan = qo.chain(count_down.s(3)).enqueue(), qo.chain(fan_out.s(4)).enqueue()
    t.drain()
    assert (loop.result(0), fan.result(0)) == (0, 6)
    assert [node.added_by for node in loop.view().nodes] == [None, 0, 1, 2]


def test_only_the_attempt_that_completes_adds_tasks(t: AppTester) -> None:
    run = qo.chain(second_try.s(2)).enqueue()
    t.drain()
    assert (seen, run.result(0), run.status()) == (["attempt 2"], "attempt 2", WorkflowStatus.COMPLETED)
    assert [(node.is_live, node.status) for node in run.view().nodes[1:]] == [
        (False, Status.CANCELLED), (True, Status.COMPLETED),
    ]  # fmt: skip


def test_a_replay_from_a_task_runs_everything_that_depends_on_it(t: AppTester) -> None:
    it = flow()
    first = it.add(note.s("first"))
    second = it.add(note.s("second"), after=[first])
    it.add(note.s("third"), after=[second])
    run = it.submit()
    t.drain()
    assert run.replay(second) == 2
    t.drain()
    assert seen == ["first", "second", "third", "second", "third"]


def test_a_cancelled_workflow_runs_to_its_end_after_a_replay(t: AppTester) -> None:
    run = qo.chain(number.s(1), number.s(), number.s()).enqueue()
    assert run.cancel() == 3
    t.drain()
    assert (run.status(), run.progress().cancelled) == (WorkflowStatus.CANCELLED, 3)
    with pytest.raises(qo.WrongStatus, match="all of its tasks have finished"):
        run.cancel()
    assert run.replay() == 3
    t.drain()
    assert run.result(0) == 1


def test_a_blocked_task_can_be_run_now_but_not_rescheduled(t: AppTester) -> None:
    run = qo.chain(number.s(1), note.s("eager")).enqueue()
    child = run.view().nodes[1].task_id
    with pytest.raises(qo.WrongStatus, match="is waiting for other tasks of its workflow"):
        app.reschedule(child, 5_000_000_000.0)
    app.run_now(child)
    t.drain()
    assert "eager" in seen


@pytest.mark.usefixtures("t")
async def test_every_method_has_an_async_form() -> None:
    run = await qo.chain(number.s(1)).aenqueue(idempotency_key="k")
    assert not (await qo.chain(number.s(1)).aenqueue(idempotency_key="k")).new
    assert (await run.astatus(), (await run.aprogress()).total) == (WorkflowStatus.RUNNING, 1)
    assert await run.acancel() == 1 and await run.areplay() == 1
    assert (await run.aview()).total == 1
    with pytest.raises(qo.ResultTimeout):
        await run.aresult(0)


def _after_one_task() -> None:
    made = flow()
    made.add(number.s(2), after=made.add(number.s(1)))  # type: ignore[arg-type]


REFUSALS: dict[str, tuple[type[Exception], str, Any]] = {
    "a wrong type": (qo.InvalidTask, r"number\(\) does not accept n: Expected `int`, got `str`", lambda: number.s("x")),
    "an unknown argument": (qo.InvalidTask, "unexpected keyword argument 'm'", lambda: number.s(m=1)),
    "an open argument": (qo.InvalidTask, "is missing the argument 'n'", lambda: flow().add(number.s())),
    "no tasks": (qo.InvalidWorkflow, "'test' has no tasks", lambda: flow().submit()),
    "an empty chain": (qo.InvalidWorkflow, "'chain' has no tasks", qo.chain),
    "an empty group": (qo.InvalidWorkflow, "'group' has no tasks", lambda: qo.group([])),
    "another workflow": (
        qo.InvalidWorkflow, "is a task of another workflow than 'test'",
        lambda: flow().add(number.s(flow().add(number.s(1)))),
    ),
    "something else in after": (
        qo.InvalidWorkflow, "after: 'x' is not a task of this workflow", lambda: flow().add(number.s(1), after=["x"]),  # type: ignore[list-item]
    ),
    "one task in after": (
        qo.InvalidWorkflow, "after: <NodeHandle 0 number> is not a list of tasks", _after_one_task,
    ),
    "a key that is no text": (
        qo.InvalidTask, "idempotency_key: ", lambda: qo.chain(number.s(1)).submit(idempotency_key=5),  # type: ignore[arg-type]
    ),
    "a key that is too long": (
        qo.InvalidTask, "idempotency_key: ", lambda: qo.chain(number.s(1)).submit(idempotency_key="k" * 10_000),
    ),
    "no signature": (qo.InvalidWorkflow, "is not a signature; pass task.s", lambda: flow().add(number)),  # type: ignore[arg-type]
    "a policy": (
        qo.InvalidWorkflow, "on_parent_failure='stop' is not one of: cancel, run, wait",
        lambda: flow().add(number.s(1), on_parent_failure="stop"),  # type: ignore[arg-type]
    ),
    "a name": (qo.InvalidTask, "workflow: 'a b' is not a name", lambda: app.workflow("a b")),
    "a key of one task": (
        qo.InvalidTask, "cannot be set for a task of a workflow", lambda: number.using(idempotency_key="k").s(1),
    ),
    "an unknown id": (qo.WorkflowNotFound, "there is no workflow 'x'", lambda: app.get_workflow("x").status()),
    "outside a handler": (qo.InvalidSetting, "only inside a handler", qo.current_workflow),
}  # fmt: skip


@pytest.mark.usefixtures("t")
@pytest.mark.parametrize("case", REFUSALS)
def test_mistakes_are_named_and_nothing_is_stored(case: str) -> None:
    kind, says, call = REFUSALS[case]
    with pytest.raises(kind, match=says):
        call()
    assert app.tasks() == []
    assert _notes(GRAPHS) == _notes(OPEN_WORKFLOWS) == []


def _notes(prefix: str) -> list[Note]:
    return background_of(app).call_client(lambda client: client.engine.notes(prefix))


@pytest.mark.usefixtures("t")
def test_too_many_tasks_and_too_many_dependencies_are_refused() -> None:
    with pytest.raises(qo.InvalidWorkflow, match=re.escape("10,001 tasks, the limit is 10,000")):
        qo.group([number.s(1)] * MAX_WORKFLOW_TASKS, then=total.s()).enqueue()
    it = flow()
    roots: list[NodeHandle[int]] = [it.add(number.s(1)) for _ in range(500)]
    for _ in range(500):
        it.add(total.s([1]), after=roots)
    with pytest.raises(qo.InvalidWorkflow, match="250,000 dependencies"):
        it.submit()
    assert app.tasks() == []


@pytest.mark.usefixtures("t")
def test_another_workflow_under_the_same_key_is_refused() -> None:
    qo.chain(number.s(1)).enqueue(idempotency_key="k")
    with pytest.raises(qo.KeyReused, match="other tasks or arguments"):
        qo.chain(number.s(2)).enqueue(idempotency_key="k")
    assert len(app.tasks()) == 1


@pytest.mark.usefixtures("t")
def test_explain_names_the_tasks_that_a_task_waits_for() -> None:
    it = flow()
    it.add(total.s([it.add(number.s(n)) for n in range(8)]))
    view = it.submit().view()
    waits = app_explanation(view.nodes[8].task_id)
    assert waits.startswith(f"waiting for 8 of 8 tasks of its workflow: number ({view.nodes[0].task_id}) is pending")
    assert waits.endswith("and 3 more")


def app_explanation(task_id: str) -> str:
    return background_of(app).call_client(lambda client: client.explain(task_id)).text


@app.task(limit=qo.Limit(concurrency=1, key="customer"))
def charge(customer: str, amount: int = 0) -> str:
    return f"{customer} {amount}"


@app.task(fair_by="tenant")
def render(tenant: str, page: int) -> str:
    return f"{tenant} {page}"


def test_tasks_of_a_workflow_are_in_the_groups_of_their_limits_and_turns(t: AppTester) -> None:
    it = flow()
    one = it.add(number.s(5))
    tenant = it.add(render.s("acme", one))
    it.add(charge.s("a b", one))
    it.add(charge.s(tenant))  # the customer is known when the worker has the result
    run = it.submit()
    tasks = [app.get(node.task_id) for node in run.view().nodes]
    assert [task and task.group for task in tasks] == [None, "tenant=acme", "customer=a%20b", None]
    t.drain()
    assert run.status() is WorkflowStatus.COMPLETED
