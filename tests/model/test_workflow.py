"""Workflows without a store: ids, decisions, replays and the status of a whole graph."""

import pytest
from msgspec.structs import replace

from qo.model import (
    BLOCKED_AT,
    MISSING,
    Binding,
    FailureKind,
    GraphNode,
    Guard,
    NodeState,
    ParentFailure,
    PendingKind,
    Status,
    WorkflowGraph,
    WorkflowStatus,
    apply,
    cancel,
    decide,
    derived_token,
    is_added,
    is_due,
    live_nodes,
    mark_blocked,
    needs_results,
    node_address,
    node_state,
    pending_kind,
    random_token,
    replay_changes,
    run_now,
    sinks,
    start_alone,
    token_of,
    was_started_alone,
    was_told_to_wait,
    workflow_id,
    workflow_status,
)
from tests.model.samples import NOW, described, pending, running

TOKEN = derived_token("import", "2026-11-16")
COMPLETED, FAILED, CANCELLED = (
    NodeState(Status.COMPLETED, 1),
    NodeState(Status.FAILED, 1),
    NodeState(Status.CANCELLED, 1),
)
READY, RUNNING = NodeState(Status.PENDING, 0), NodeState(Status.RUNNING, 1)
BLOCKED = NodeState(Status.PENDING, 0, is_blocked=True)
BY_PARENT = NodeState(Status.CANCELLED, 0, is_cancelled_by_parent=True)


def graph(*parents: tuple[int, ...], policy: ParentFailure = ParentFailure.CANCEL) -> WorkflowGraph:
    nodes = tuple(GraphNode(type=f"step{n}", parents=some, on_parent_failure=policy) for n, some in enumerate(parents))
    return WorkflowGraph(token=TOKEN, name="import", created_at=0.0, nodes=nodes)


def states(*each: NodeState) -> dict[int, NodeState]:
    return dict(enumerate(each))


def growing(attempt: int = 1) -> WorkflowGraph:
    """A task, and one that its attempt added."""
    nodes = (GraphNode(type="crawl"), GraphNode(type="page", parents=(0,), added_by=(0, attempt)))
    return WorkflowGraph(token=TOKEN, name="crawl", created_at=0.0, nodes=nodes)


class TestIds:
    def test_an_id_names_the_workflow_and_the_index(self) -> None:
        flow = graph((), (0,))
        assert [node_address(id) for id in flow.task_ids()] == [(TOKEN, 0), (TOKEN, 1)]
        assert token_of(flow.id) == TOKEN and flow.id == workflow_id("import", TOKEN)

    def test_an_id_shows_whether_results_are_passed(self) -> None:
        bound = GraphNode(type="merge", parents=(0,), bindings=(Binding(path=("rows",), parents=(0,)),))
        flow = WorkflowGraph(token=TOKEN, name="n", created_at=0.0, nodes=(GraphNode(type="fetch"), bound))
        assert [needs_results(id) for id in flow.task_ids()] == [False, True]

    def test_other_ids_name_no_workflow(self) -> None:
        assert node_address(described().id) is None
        assert not needs_results(described().id)

    @pytest.mark.parametrize("text", ["", "import", "import-zz", f"-{TOKEN}", f"import-{TOKEN[:-1]}g"])
    def test_other_texts_are_no_ids_of_workflows(self, text: str) -> None:
        assert token_of(text) is None

    def test_an_id_whose_index_is_no_number_names_no_workflow(self) -> None:
        (id_,) = graph(()).task_ids()
        assert node_address(id_[:27] + "zzzz" + id_[31:]) is None

    def test_a_random_token_is_as_long_as_a_derived_one(self) -> None:
        assert len(random_token("0123456789abcdef" * 2)) == len(TOKEN)

    def test_the_tasks_are_spread_over_all_shards(self) -> None:
        assert len({id[0] for id in graph(*[()] * 16).task_ids()}) == 16

    def test_children_are_the_reverse_of_parents(self) -> None:
        assert graph((), (0,), (0, 1)).children() == [[1, 2], [2], []]


class TestStates:
    def test_a_missing_task_has_ended(self) -> None:
        assert node_state(None) is MISSING and MISSING.has_ended

    def test_a_blocked_task_is_pending_for_ever(self) -> None:
        assert node_state(pending(run_at=BLOCKED_AT)).is_blocked
        assert not node_state(pending()).is_blocked

    def test_a_task_cancelled_by_a_user_is_not_cancelled_by_a_parent(self) -> None:
        flow, blocked = graph((), (0,)), pending(run_at=BLOCKED_AT)
        (change,) = decide(flow, states(FAILED, BLOCKED))
        by_parent, by_user = apply(blocked, change, NOW), apply(blocked, cancel(blocked.id), NOW)
        assert node_state(by_parent).is_cancelled_by_parent
        assert not node_state(by_user).is_cancelled_by_parent

    def test_a_blocked_task_is_neither_scheduled_nor_claimable(self) -> None:
        assert pending_kind(pending(run_at=BLOCKED_AT), NOW) is PendingKind.BLOCKED
        assert not is_due(pending(run_at=BLOCKED_AT), NOW)

    def test_only_a_blocked_task_is_released(self) -> None:
        (change,) = decide(graph((), (0,)), states(COMPLETED, BLOCKED))
        assert apply(pending(run_at=BLOCKED_AT), change, NOW) is not None
        assert apply(pending(), change, NOW) is None
        assert apply(running(), change, NOW) is None


class TestDecisions:
    def test_a_task_is_released_when_its_last_parent_has_completed(self) -> None:
        flow = graph((), (), (0, 1))
        assert decide(flow, states(COMPLETED, RUNNING, BLOCKED)) == []
        (change,) = decide(flow, states(COMPLETED, COMPLETED, BLOCKED))
        assert (change.id, change.guard, change.to) == (flow.task_id(2), Guard.BLOCKED, Status.PENDING)

    def test_a_delay_begins_when_the_task_is_released(self) -> None:
        later = (
            GraphNode(type="a"),
            GraphNode(type="b", parents=(0,), delay=5.0),
            GraphNode(type="c", parents=(0,), run_at=9.0),
        )
        flow = WorkflowGraph(token=TOKEN, name="n", created_at=0.0, nodes=later)
        changes = decide(flow, states(COMPLETED, BLOCKED, BLOCKED))
        assert [(change.delay, change.run_at) for change in changes] == [(5.0, None), (None, 9.0)]

    def test_a_failure_cancels_all_dependents_immediately(self) -> None:
        flow = graph((), (0,), (1,))
        changes = decide(flow, states(FAILED, BLOCKED, BLOCKED))
        assert [change.to for change in changes] == [Status.CANCELLED] * 2
        assert "step0" in str(changes[0].error) and "failed" in str(changes[0].error)
        assert "step1" in str(changes[1].error) and "was cancelled" in str(changes[1].error)
        assert changes[0].failure_kind is FailureKind.PARENT

    def test_a_deleted_parent_is_a_failure_and_is_named(self) -> None:
        (change,) = decide(graph((), (0,)), states(MISSING, BLOCKED))
        assert change.to is Status.CANCELLED and "missing" in str(change.error)

    def test_a_task_may_run_although_a_parent_failed(self) -> None:
        (change,) = decide(graph((), (0,), policy=ParentFailure.RUN), states(FAILED, BLOCKED))
        assert change.to is Status.PENDING and change.guard is Guard.BLOCKED

    def test_a_task_may_wait_until_a_failed_parent_is_replayed(self) -> None:
        assert decide(graph((), (0,), policy=ParentFailure.WAIT), states(FAILED, BLOCKED)) == []

    def test_a_child_waits_again_when_its_failed_parent_is_replayed(self) -> None:
        flow = graph((), (0,))
        (change,) = decide(flow, states(READY, BY_PARENT))
        assert (change.guard, change.to, change.run_at) == (Guard.REPLAYABLE, Status.PENDING, BLOCKED_AT)
        (change,) = decide(flow, states(COMPLETED, BY_PARENT))  # it has completed meanwhile
        assert (change.delay, change.run_at) == (0.0, None)
        assert decide(flow, states(FAILED, BY_PARENT)) == []

    def test_a_released_child_waits_again_when_its_parent_is_replayed(self) -> None:
        flow = graph((), (0,))
        (change,) = decide(flow, states(READY, READY), replayed=[0])
        assert (change.id, change.guard, change.run_at) == (flow.task_id(1), Guard.WAITING, BLOCKED_AT)
        assert decide(flow, states(READY, READY)) == []
        assert decide(flow, states(READY, RUNNING), replayed=[0]) == []

    def test_the_same_states_give_the_same_changes(self) -> None:
        flow, found = graph((), (0,), (1,)), states(COMPLETED, BLOCKED, BLOCKED)
        first = decide(flow, found)
        assert len(first) == 1 and decide(flow, found) == []  # as if the change were written

    @pytest.mark.parametrize(
        ("adder", "to"),
        [(COMPLETED, Status.PENDING), (NodeState(Status.COMPLETED, 2), Status.CANCELLED), (FAILED, Status.CANCELLED)],
    )
    def test_an_added_task_counts_only_if_the_attempt_that_added_it_completed(
        self, adder: NodeState, to: Status
    ) -> None:
        (change,) = decide(growing(), states(adder, BLOCKED))
        assert change.to is to
        assert (to is Status.PENDING) or "attempt 1 of crawl" in str(change.error)


class TestReplays:
    def test_everything_that_did_not_complete_runs_again_after_its_parents(self) -> None:
        flow = graph((), (0,), (1,))
        changes = replay_changes(flow, states(COMPLETED, FAILED, BY_PARENT))
        assert [(change.id, change.run_at) for change in changes] == [
            (flow.task_id(1), None),
            (flow.task_id(2), BLOCKED_AT),
        ]

    def test_a_task_runs_again_with_all_that_depends_on_it(self) -> None:
        flow = graph((), (0,), (1,), (0,))
        changes = replay_changes(flow, states(COMPLETED, COMPLETED, COMPLETED, COMPLETED), [1])
        assert [change.id for change in changes] == [flow.task_id(1), flow.task_id(2)]

    @pytest.mark.parametrize("start", [[], [0]])
    def test_tasks_that_a_replayed_task_had_added_are_left(self, start: list[int]) -> None:
        flow, attempt = growing(), NodeState(Status.FAILED, 1) if not start else COMPLETED
        changes = replay_changes(flow, states(attempt, BY_PARENT), start)
        assert [change.id for change in changes] == [flow.task_id(0)]


class TestStatus:
    def test_only_tasks_of_the_current_attempt_are_live(self) -> None:
        assert live_nodes(growing(), states(RUNNING, BLOCKED)) == {0, 1}
        assert live_nodes(growing(), states(NodeState(Status.RUNNING, 2), BLOCKED)) == {0}

    def test_only_a_task_that_was_added_by_another_is_added(self) -> None:
        crawl, page = growing().nodes
        assert [is_added(node, states(RUNNING, BLOCKED)) for node in (crawl, page)] == [False, True]

    def test_a_submission_begins_with_the_workflow_its_repeat_or_the_addition(self) -> None:
        flow = replace(graph((), ()), nodes=(GraphNode(type="a"), GraphNode(type="b", added_at=9.0)), created_at=1.0)
        assert [flow.stored_from(0), flow.stored_from(1)] == [1.0, 9.0]
        assert replace(flow, resumed_at=5.0).stored_from(0) == 5.0

    def test_sinks_are_the_tasks_that_no_other_waits_for(self) -> None:
        assert sinks(graph((), (0,), (0,)), {0, 1, 2}) == [1, 2]

    @pytest.mark.parametrize(
        ("each", "expected"),
        [
            ((COMPLETED, RUNNING, BLOCKED), WorkflowStatus.RUNNING),
            ((FAILED, FAILED, BLOCKED), WorkflowStatus.WAITING),
            ((COMPLETED, COMPLETED, COMPLETED), WorkflowStatus.COMPLETED),
            ((FAILED, COMPLETED, COMPLETED), WorkflowStatus.COMPLETED),
            ((FAILED, COMPLETED, BY_PARENT), WorkflowStatus.FAILED),
            ((COMPLETED, COMPLETED, MISSING), WorkflowStatus.FAILED),
            ((COMPLETED, CANCELLED, CANCELLED), WorkflowStatus.CANCELLED),
        ],
    )
    def test_the_status_of_a_workflow(self, each: tuple[NodeState, ...], expected: WorkflowStatus) -> None:
        assert workflow_status(graph((), (), (0, 1)), states(*each)) is expected


def test_a_task_whose_parent_runs_again_is_told_apart_from_one_that_a_user_started() -> None:
    made = graph((), (0,))
    blocked = replace(pending(id=made.task_id(1)), available_at=BLOCKED_AT)
    told = apply(blocked, mark_blocked(made, 1), NOW)
    assert told is not None
    assert (told.available_at, was_told_to_wait(told), was_started_alone(told)) == (BLOCKED_AT, True, False)
    started = apply(told, start_alone(run_now(told.id)), NOW)
    assert started is not None
    assert (is_due(started, NOW), was_told_to_wait(started), was_started_alone(started)) == (True, False, True)


def test_a_replay_and_an_addition_raise_the_revision_of_a_graph() -> None:
    submitted = graph((), (0,))
    assert submitted.revision == (0, 0)
    assert growing().revision == (0, 2)
    assert submitted.revision < growing().revision < replace(submitted, epoch=1).revision
