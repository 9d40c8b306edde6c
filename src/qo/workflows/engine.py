"""An engine that advances workflows. Every client wraps the engine of its store in one.

The id of a task shows whether it belongs to a workflow, so other tasks cost one comparison. For tasks of workflows

- `apply` releases or cancels the children of finished tasks, and makes replayed tasks wait for their parents again;
- `claim` fills payloads with results of parents;
- `delete` removes the graph with the last task.

With `http://` the server does the first and the last, and the client does the second, because only the client can
decrypt.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from qo.backoff import Backoff
from qo.engine import Engine
from qo.errors import EncryptedValue, InvalidWorkflow, QoError, StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.ids import new_token
from qo.model import (
    BLOCKED_AT,
    FILLS_RESULTS,
    SUBMIT_DEADLINE,
    UNFINISHED,
    WORKFLOW_ID_SUFFIX,
    Change,
    ClaimRequest,
    Guard,
    NodeAddress,
    NodeState,
    Status,
    Task,
    WorkflowGraph,
    fail,
    needs_results,
    node_address,
    release,
    wait_again,
    was_told_to_wait,
)
from qo.workflows.graph_note import GRAPHS, extend_graph, read_graph
from qo.workflows.open_markers import drop_markers, mark_open, replay_marker
from qo.workflows.parent_results import (
    LaterClaim,
    ParentReader,
    ParentRunsError,
    Parents,
    ParentsOrReason,
    address_of,
    with_results,
)
from qo.workflows.preparation import is_replay, permitted, prepare_replay
from qo.workflows.tracker import WorkflowTracker, state_of_change

log = logging.getLogger("qo.workflows")
_ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.1, 10.0  # seconds, while the store is unreachable
_APPLY_SIZE = 1000  # changes in one request; a worker settles about as many at once
_RELEASE_DELAY = 1.0  # seconds until a task is due again if its parents could not be read
_CLOSE_DEADLINE = 5.0  # seconds to write the consequences of the last changes
_NO_KEY_DELAY = 60.0  # seconds, if this process has no key for the result of a parent; as in executors/run.py


class _Undone(NamedTuple):
    """Changes of a workflow whose consequences may not be written yet."""

    replayed: frozenset[int] = frozenset()
    markers: frozenset[str] = frozenset()  # of these replays; replays that are still being written have others


class WorkflowEngine(ForwardingEngine):
    def __init__(self, engine: Engine, on_cancelled: Callable[[Sequence[str]], Awaitable[None]] | None = None) -> None:
        super().__init__(engine)
        self.tracker = WorkflowTracker(engine)
        self._parents = ParentReader(engine, self.tracker.cache)
        if on_cancelled is not None:
            self.tracker.on_cancelled = on_cancelled
        self._undone: dict[str, _Undone] = {}  # by workflow
        self._following: set[asyncio.Task[None]] = set()
        self._retrying: asyncio.Task[None] | None = None

    @classmethod
    def around(cls, engine: Engine, on_cancelled: Callable[[Sequence[str]], Awaitable[None]] | None = None) -> Engine:
        """A WorkflowEngine around `engine`, or `engine` itself if it already advances workflows.

        `on_cancelled` is called with the ids of tasks that were cancelled because of a parent.
        """
        return engine if engine.advances_workflows else cls(engine, on_cancelled)

    @property
    def advances_workflows(self) -> bool:
        return True

    async def close(self) -> None:
        if self._following:
            await asyncio.wait(self._following, timeout=_CLOSE_DEADLINE)
        if self._retrying is not None:
            self._retrying.cancel()
            with suppress(asyncio.CancelledError):
                await self._retrying
        await super().close()

    # --- settling

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if self.engine.is_remote:
            return await self.engine.apply(changes)
        for change in changes:
            if change.id.endswith(WORKFLOW_ID_SUFFIX) and node_address(change.id) and change.to is not Status.RUNNING:
                return await self._apply(changes)
        return await self.engine.apply(changes)

    async def _apply(self, changes: Sequence[Change]) -> list[bool]:
        allowed, replayed, marker = changes, dict[str, set[int]](), ""
        if any(change.guard is not Guard.HELD for change in changes):  # not only settlements of a worker
            tokens = [address.token for change in changes if is_replay(change) and (address := node_address(change.id))]
            replayed, marker = {token: set() for token in tokens}, new_token()
            for token in replayed:
                changes = await prepare_replay(self.engine, token, changes, marker)
            allowed = await permitted(self.engine, changes)
        addressed = [(change, node_address(change.id)) for change in allowed]
        ending = {address.token for change, address in addressed if address is not None and change.to in _ENDED}
        epochs = {token: self.tracker.cache.epoch(token) for token in ending}
        answers: dict[str, bool] = {}
        for start in range(0, len(allowed), _APPLY_SIZE):
            some = allowed[start : start + _APPLY_SIZE]
            answers |= zip((change.id for change in some), await self.engine.apply(some), strict=True)
        ended: dict[str, dict[int, NodeState]] = {}
        for change, address in addressed:
            if address is None or not answers[change.id]:
                continue
            if change.to in _ENDED:
                ended.setdefault(address.token, {})[address.node] = state_of_change(change)
            elif is_replay(change):
                replayed[address.token].add(address.node)
        if ended or replayed:
            # The changes are stored, so their consequences are written even if the caller no longer waits.
            following = asyncio.create_task(self._follow(ended, replayed, epochs, marker))
            self._following.add(following)
            following.add_done_callback(self._following.discard)
            await asyncio.shield(following)
        return [answers.get(change.id, False) for change in changes]

    async def _follow(
        self,
        ended: dict[str, dict[int, NodeState]],
        replayed: dict[str, set[int]],
        epochs: Mapping[str, int | None],
        marker: str = "",
    ) -> None:
        """Write the consequences. The changes are stored, so an error here must not fail the call: it is retried.

        `marker` is that of the replays.
        """
        undone = {token: replayed.get(token, set()) for token in ended.keys() | replayed.keys()}
        try:
            for token, nodes in list(undone.items()):
                await self._follow_replay(token, nodes)
                if token in ended:
                    await self.tracker.settled(token, ended[token], epochs[token])
                elif not nodes:
                    await self.tracker.review(token)
                if token in replayed and marker:
                    await self.engine.drop_note(replay_marker(token, marker))
                del undone[token]
        except StorageError as error:
            log.warning("the next tasks of a workflow wait for the store: %s", error)
            for token, nodes in undone.items():
                before = self._undone.get(token, _Undone())
                markers = before.markers | ({marker} if token in replayed and marker else frozenset())
                self._undone[token] = _Undone(before.replayed | nodes, markers)  # a new object: `_retry` notices
            if self._retrying is None or self._retrying.done():
                self._retrying = asyncio.create_task(self._retry())

    async def _follow_replay(self, token: str, replayed: Collection[int]) -> None:
        if not replayed:
            return
        # Between the two writes of the epoch a process may have read these tasks as finished and closed the workflow.
        # The second write invalidates that.
        with suppress(InvalidWorkflow):
            graph = await extend_graph(self.engine, token, (), epoch=1)
            await mark_open(self.engine, graph)
        await self.tracker.follow_replay(token, replayed)

    async def _retry(self) -> None:
        backoff = Backoff(_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE)
        while self._undone:
            await asyncio.sleep(backoff.next())
            token, work = next(iter(self._undone.items()))
            try:
                await self._follow_replay(token, work.replayed)
                await self.tracker.review(token)
                for marker in work.markers:
                    await self.engine.drop_note(replay_marker(token, marker))
            except StorageError as error:
                log.warning("the next tasks of a workflow wait for the store: %s", error)
                self._undone[token] = self._undone.pop(token)  # others may be readable
            else:
                backoff.reset()
                if self._undone[token] is work:  # otherwise more work was added in the meantime
                    del self._undone[token]

    # --- claiming

    async def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await self.engine.claim(replace(request, capabilities=request.capabilities | {FILLS_RESULTS}))
        for task in tasks:
            if task.id.endswith(WORKFLOW_ID_SUFFIX) and (needs_results(task.id) or was_told_to_wait(task)):
                return await self._filled(tasks)
        return tasks

    async def _filled(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks with their results. A task without them is released, or fails if it cannot get them."""
        filled = []
        try:
            parents = await self._parents.read([task for task in tasks if needs_results(task.id)])
            for task in tasks:
                is_special = needs_results(task.id) or was_told_to_wait(task)
                filled += await self._fill(task, parents.get(task.id)) if is_special else [task]
        except BaseException:
            await asyncio.shield(self.engine.apply([release(task, None) for task in tasks]))
            raise
        return filled

    async def _fill(self, task: Task, parents: ParentsOrReason | None) -> list[Task]:
        address = address_of(task)
        if address is None:
            return [task]  # it only looks like a task of a workflow
        try:
            return [await self._with_results(task, address, parents)]
        except StorageError as error:
            log.warning("task %s: the results of its parents cannot be read: %s", task.id, error)
            change = release(task, _RELEASE_DELAY)
        except EncryptedValue as error:
            log.error("handing task %s (%s) back: the result of a parent: %s", task.id, task.type, error)  # noqa: TRY400 - no traceback
            change = release(task, _NO_KEY_DELAY)
        except LaterClaim:
            change = release(task, None)
        except ParentRunsError:
            change = wait_again(release(task))
        except QoError as error:
            change = fail(task, str(error))
        with suppress(StorageError):  # otherwise its lease expires
            await self.apply([change])
            if change.run_at == BLOCKED_AT:
                await self._follow({}, {address.token: set()}, {})  # the parent may have completed in the meantime
        return []

    async def _with_results(self, task: Task, address: NodeAddress, parents: ParentsOrReason | None) -> Task:
        if was_told_to_wait(task) and not await self.tracker.cache.may_start(*address):
            raise ParentRunsError
        if parents is None:  # it needs no results
            return task
        if not isinstance(parents, Parents):
            raise parents
        return await with_results(self.tracker.cache, parents.graph, address.node, task, parents.tasks)

    # --- deleting

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        if not self.engine.is_remote:
            tokens = {address.token for task_id in ids if (address := node_address(task_id)) is not None}
            for token in sorted(tokens):
                await self._forget_if_last(token, frozenset(ids))
        return await self.engine.delete(ids)

    async def _forget_if_last(self, token: str, deleted: frozenset[str]) -> None:
        """Drop the graph if these are the last tasks of its workflow, before they are deleted.

        If the process dies in between, tasks without a graph remain, which retention deletes like any other.
        """
        tracked = await self.tracker.cache.load(token)  # also with the nodes that other processes have added
        if tracked is None:
            return
        graph = tracked.graph
        others = [task_id for task_id in graph.task_ids() if task_id not in deleted]
        for start in range(0, len(others), 500):
            if any(await self.engine.get_without_values(others[start : start + 500])):
                return
        tasks = await self.engine.get_without_values(sorted(deleted & set(graph.task_ids())))
        if any(task is not None and task.status in UNFINISHED for task in tasks):
            return
        # Another process may have deleted these tasks in the meantime, and the workflow may be submitted again.
        current = await read_graph(self.engine, token)
        if current is not None and current.submission == graph.submission and not await self._is_arriving(current):
            await self.engine.drop_note(GRAPHS + token)
            await drop_markers(self.engine, graph)

    async def _is_arriving(self, graph: WorkflowGraph) -> bool:
        """Whether its submission is not complete: the tasks may be those of an earlier workflow with the same key."""
        return not graph.is_stored and await self.engine.now() < graph.stored_from(0) + SUBMIT_DEADLINE
