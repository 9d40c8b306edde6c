"""The workflows of a store: submits, reads, cancels and replays them."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from qo.backoff import Backoff
from qo.client.batches import BatchProgress, read_progress
from qo.client.describe import PlannedTask, check_payloads, digest_of, stored_task, stored_tasks
from qo.client.workflow_results import GraphReader, WorkflowResults, read_graphs, read_tasks
from qo.client.workflow_view import WorkflowView, view_of
from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import (
    Conflict,
    InvalidWorkflow,
    KeyReused,
    LeaseLost,
    WrongStatus,
)
from qo.ids import new_token
from qo.model import (
    BLOCKED_AT,
    NEW,
    SUBMIT_DEADLINE,
    Change,
    Filter,
    NewTask,
    Status,
    Task,
    WorkflowGraph,
    WorkflowStatus,
    cancel,
    check_idempotency_key,
    check_name,
    derived_token,
    node_address,
    node_state,
    random_token,
    replay_changes,
    show,
)
from qo.workflows import (
    GRAPHS,
    WorkflowTracker,
    drop_markers,
    encode_graph,
    extend_graph,
    mark_open,
    newest_open_tokens,
    read_graph,
)

if TYPE_CHECKING:
    from qo.client.client import Client

_SUBMISSION_TIMEOUT = 10.0  # seconds for which a cancellation waits for tasks that are being submitted
_MIN_SUBMISSION_POLL, _MAX_SUBMISSION_POLL = 0.005, 0.25  # seconds between two reads of such tasks
_PAGE_SIZE = 500  # tasks in one request
_LISTED_TASKS = 1000  # newest tasks among which finished workflows are listed


class SubmittedWorkflow(Struct, frozen=True, kw_only=True):
    graph: WorkflowGraph
    new: bool  # False: a workflow with this name and idempotency key already existed


class WorkflowsClient:
    def __init__(self, client: "Client") -> None:
        self._client = client

    @property
    def _engine(self) -> Engine:
        return self._client.engine

    # --- submitting

    async def submit(
        self, name: str, planned: Sequence[PlannedTask], *, idempotency_key: str | None = None
    ) -> SubmittedWorkflow:
        """Store a workflow. With an idempotency key a repeat finds it, and completes an interrupted submission.

        Raises InvalidTask, InvalidWorkflow, and KeyReused if the key belongs to another workflow.
        """
        check_name("workflow", name)
        check_idempotency_key(idempotency_key)
        if not planned:
            raise InvalidWorkflow(f"workflow {name!r} has no tasks")
        token = random_token(new_token()) if idempotency_key is None else derived_token(name, idempotency_key)
        graph = WorkflowGraph(
            token=token,
            name=name,
            created_at=await self._engine.now(),
            nodes=tuple(each.node for each in planned),
            key=idempotency_key,
            digest="" if idempotency_key is None else digest_of(planned),  # of payloads that may be encrypted
            submission="" if idempotency_key is None else new_token(),
            is_stored=idempotency_key is None,
        )
        encode_graph(graph)  # raises before anything is stored
        tasks = stored_tasks(graph, planned)
        check_payloads(tasks, self._client.payload_limit)
        stored = None if idempotency_key is None else await read_graph(self._engine, token)
        if stored is None:
            await mark_open(self._engine, graph)
            stored = await self._write(graph)
        is_new = stored is graph
        if stored.digest != graph.digest:
            raise KeyReused(
                f"workflow {stored.id}: the idempotency key {show(idempotency_key)} belongs to a workflow "
                "with other tasks or arguments"
            )
        if is_new:
            await self._store(tasks, graph)
        elif not stored.is_stored:
            await self._resume(token, tasks)
        if not stored.is_stored:
            stored = await extend_graph(self._engine, token, is_stored=True)
        return SubmittedWorkflow(graph=stored, new=is_new)

    async def _store(self, tasks: Sequence[NewTask], new: WorkflowGraph | None = None) -> None:
        """Tasks that can run immediately come last, so that nothing runs before the others are stored.

        `new` is the graph if this call has written it.
        """
        blocked = [task for task in tasks if task.run_at == BLOCKED_AT]
        for some in (blocked, [task for task in tasks if task.run_at != BLOCKED_AT]):
            handles = await self._client.submit_many(some)
            if new is not None and (left := {handle.id for handle in handles if not handle.new}):
                await self._store_again([task for task in some if task.id in left], new)

    async def _store_again(self, tasks: Sequence[NewTask], new: WorkflowGraph) -> None:
        """Replace tasks of an earlier workflow with the same key: its graph is deleted, and they are about to be."""
        graph = await read_graph(self._engine, new.token)
        if graph is None or (graph.submission, graph.epoch) != (new.submission, new.epoch):
            return  # a repeat of this submission may have stored them
        await self._engine.delete([task.id for task in tasks])
        await self._client.submit_many(tasks)

    async def _resume(self, token: str, tasks: Sequence[NewTask]) -> None:
        """Continue an interrupted submission. Some tasks may have been cancelled because others were missing."""
        graph = await extend_graph(self._engine, token, epoch=1, resumed_at=await self._engine.now())
        await mark_open(self._engine, graph)
        await self._store(tasks)
        await WorkflowTracker(self._engine).review(token)

    async def _write(self, graph: WorkflowGraph) -> WorkflowGraph:
        """Write a new graph, or return the one that another process has written under the same key."""
        while True:
            try:
                await self._engine.write_note(GRAPHS + graph.token, encode_graph(graph), expected=NEW)
            except Conflict:
                stored = await read_graph(self._engine, graph.token)
                if stored is not None:  # otherwise it was deleted in the meantime
                    await drop_markers(self._engine, graph)
                    return stored
            else:
                return graph

    async def add(self, token: str, planned: Sequence[PlannedTask]) -> list[int]:
        """Add tasks to a workflow from one of its running tasks, which their nodes name in `added_by`.

        Returns their indexes. Raises LeaseLost, and drops the tasks, if that attempt has ended.
        """
        check_payloads([each.new for each in planned], self._client.payload_limit)
        now = await self._engine.now()
        graph = await extend_graph(self._engine, token, tuple(replace(each.node, added_at=now) for each in planned))
        await mark_open(self._engine, graph)
        first = len(graph.nodes) - len(planned)
        tasks = [stored_task(graph, first + at, each.new) for at, each in enumerate(planned)]
        await self._client.submit_many(tasks)
        await self._check_adders(graph, {each.node.added_by for each in planned})
        return list(range(first, len(graph.nodes)))

    async def _check_adders(self, graph: WorkflowGraph, added_by: Iterable[tuple[int, int] | None]) -> None:
        """If the attempt has ended, no process decides about tasks that it added later: do so, and raise LeaseLost."""
        attempts = [each for each in added_by if each is not None]
        tasks = await self._engine.get_without_values([graph.task_id(adder) for adder, _ in attempts])
        for task, (adder, attempt) in zip(tasks, attempts, strict=True):
            if task is None or task.status is not Status.RUNNING or task.attempt != attempt:
                await WorkflowTracker(self._engine).review(graph.token)
                raise LeaseLost(
                    f"attempt {attempt} of task {graph.task_id(adder)} has ended; the tasks that it adds are dropped"
                )

    # --- reading

    async def graph(self, id: str) -> WorkflowGraph:
        """Raises WorkflowNotFound."""
        return await GraphReader(self._engine, id).read()

    async def read(self, id: str) -> WorkflowView:
        """A workflow with the states of all its tasks. Raises WorkflowNotFound."""
        graph = await self.graph(id)
        while True:
            view = view_of(graph, await self._tasks(graph), await self._engine.now())
            if view.status is WorkflowStatus.RUNNING:
                return view
            number, graph = len(graph.nodes), await self.graph(id)
            if len(graph.nodes) == number:  # otherwise a task added others before it finished
                return view

    async def status(self, id: str) -> WorkflowStatus:
        return (await self.read(id)).status

    async def progress(self, id: str) -> BatchProgress:
        """How many tasks have finished, and how long the others may take."""
        await self.graph(id)
        return await read_progress(self._engine, id)

    async def list(self, *, limit: int = 50) -> list[WorkflowView]:
        """Workflows, newest first: unfinished ones, and those of the newest tasks of the store."""
        newest = await self._engine.find_without_values(Filter(), limit=_LISTED_TASKS)
        addresses = (node_address(task.id) for task in newest if task.batch is not None)
        recent = dict.fromkeys(address.token for address in addresses if address is not None)
        # Only the newest of both: there may be thousands, and each graph is a request.
        tokens = {*islice(recent, limit), *await newest_open_tokens(self._engine, limit)}
        found = await read_graphs(self._engine, sorted(tokens))
        graphs = sorted(found, key=lambda graph: -graph.created_at)[:limit]
        tasks = iter(await self._tasks(*graphs))
        now = await self._engine.now()
        return [view_of(graph, list(islice(tasks, len(graph.nodes))), now) for graph in graphs]

    async def _tasks(self, *graphs: WorkflowGraph) -> Sequence[Task | None]:
        """All tasks of these workflows, one workflow after the other."""
        return await read_tasks(self._engine, [task_id for graph in graphs for task_id in graph.task_ids()])

    async def result(
        self, id: str, *, timeout: float | None = None, decode: Callable[[Task], Any] | None = None
    ) -> Any:
        """Wait for the tasks that no other task depends on. Returns the result of the only one, or the list of results.

        Raises TaskFailed if one of them did not complete, and ResultTimeout.
        """
        return await WorkflowResults(self._engine, id).wait(timeout, decode)

    # --- changing

    async def cancel(self, id: str, *, progress: Callable[[int], None] | None = None) -> int:
        """Cancel all unfinished tasks; returns their number. Raises WrongStatus if there are none.

        `progress` is called with the number of changed tasks after each write: a later write may fail.
        """
        graph = await self.graph(id)
        missing = await self._in_submission(graph)
        # Children first, so that none of them starts because its parent completes in the meantime.
        number = await self._cancel(graph.task_ids()[::-1], progress)
        number += await self._cancel_later(missing, progress)
        if not number:
            raise WrongStatus(f"workflow {id}: all of its tasks have finished")
        return number

    async def _cancel(self, ids: Sequence[str], progress: Callable[[int], None] | None) -> int:
        return await self._apply([cancel(task_id) for task_id in ids], _PAGE_SIZE, progress)

    async def _in_submission(self, graph: WorkflowGraph) -> Sequence[str]:
        """The tasks that another process may be about to store, except for those that a running task adds."""
        if await self._engine.now() >= graph.stored_from(0) + SUBMIT_DEADLINE:
            return ()
        ids = [graph.task_id(index) for index, node in enumerate(graph.nodes) if node.added_by is None]
        return await self._missing(ids)

    async def _missing(self, ids: Sequence[str]) -> Sequence[str]:
        tasks = await read_tasks(self._engine, ids)
        return [task_id for task_id, task in zip(ids, tasks, strict=True) if task is None]

    async def _cancel_later(self, missing: Sequence[str], progress: Callable[[int], None] | None) -> int:
        """Cancel missing tasks when they are stored. The process that submits them may have died."""
        number, until = 0, boot_clock() + _SUBMISSION_TIMEOUT
        backoff = Backoff(_MIN_SUBMISSION_POLL, _MAX_SUBMISSION_POLL)
        while missing and boot_clock() < until:
            await asyncio.sleep(backoff.next())
            left = await self._missing(missing)  # before the write, which otherwise may come too early for some
            number += await self._cancel(missing, progress)
            missing = left
        return number

    async def replay(
        self, id: str, start: Iterable[int | str] = (), *, progress: Callable[[int], None] | None = None
    ) -> int:
        """Rerun the tasks that did not complete, or the tasks of `start` and everything that depends on them.

        `start` are indexes or ids of tasks. Returns the number of tasks. Raises WrongStatus if there are none.
        `progress`: as in `cancel`.
        """
        graph = await self.graph(id)
        indexes = {_index(graph, each) for each in start}
        states = dict(enumerate(map(node_state, await self._tasks(graph))))
        changes = replay_changes(graph, states, indexes)
        # In one call, so that the consequences of a replay are written once. Over HTTP a server accepts only pages.
        page_size = _PAGE_SIZE if self._engine.is_remote else max(1, len(changes))
        number = await self._apply(changes, page_size, progress)
        if not number:
            what = "the chosen tasks have not finished" if indexes else "none of its tasks failed or was cancelled"
            raise WrongStatus(f"workflow {id}: {what}")
        return number

    async def _apply(self, changes: Sequence[Change], page_size: int, progress: Callable[[int], None] | None) -> int:
        changed = 0
        for start in range(0, len(changes), page_size):
            number = sum(await self._client.apply(changes[start : start + page_size], page_size=page_size))
            changed += number
            if progress is not None:
                progress(number)
        return changed


def _index(graph: WorkflowGraph, given: int | str) -> int:
    address = node_address(given) if isinstance(given, str) else None
    index = address.node if address is not None and address.token == graph.token else given
    if not isinstance(index, int) or not 0 <= index < len(graph.nodes):
        raise InvalidWorkflow(f"workflow {graph.id} has no task {show(given)}")
    return index
