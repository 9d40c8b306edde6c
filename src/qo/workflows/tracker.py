"""Decides which tasks are released or cancelled after tasks of workflows have finished, and writes the changes.

Each process caches the graphs that it has read and the tasks known to have finished. After a task has finished, the
tracker examines its children. For each child it reads only the first parent that is not known to have finished: while
that parent runs, the child must wait anyway. A callback of 10,000 tasks therefore costs one read in most settlements,
and each process reads each parent at most once.

Every process reads after its own write is durable. If two processes settle the last two parents of a task at the same
time, at least one of them therefore sees both outcomes. The monitor completes with `review` what a crash leaves undone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import InvalidWorkflow, StorageError
from qo.model import (
    BLOCKED_AT,
    Change,
    Effect,
    Guard,
    NodeState,
    Status,
    WorkflowGraph,
    cancel_child,
    decide,
    effect_of,
    node_address,
    node_state,
)
from qo.workflows.graph_note import extend_graph
from qo.workflows.open_markers import drop_markers
from qo.workflows.workflow_cache import PAGE_SIZES, TrackedWorkflow, WorkflowCache, page_sizes

log = logging.getLogger("qo.workflows")
_APPLY_SIZE = 500  # changes in one request
_REPLAY_DEADLINE = 60.0  # seconds for decisions about a workflow that other processes replay in the meantime
_MIN_REPLAY_PAUSE, _MAX_REPLAY_PAUSE = 0.002, 0.5  # seconds between two attempts


_STATES = {status: NodeState(status) for status in Status}


class _Applied(NamedTuple):
    cancelled: dict[int, NodeState]
    is_due_again: bool  # a task that should be released was cancelled because of a parent: it must be revived


async def _ignore(_: Sequence[str]) -> None: ...


class WorkflowTracker:
    """One per client, on its event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.cache = engine, WorkflowCache(engine)
        self.on_cancelled: Callable[[Sequence[str]], Awaitable[None]] = (
            _ignore  # called with the ids of cancelled tasks
        )

    # --- after settlements

    async def settled(self, token: str, ended: Mapping[int, NodeState], epoch: int | None = None) -> None:
        """Write the consequences of finished tasks. `epoch` is the epoch before they finished. Raises StorageError."""
        tracked = await self.cache.load(token)
        if tracked is None:
            return
        ended = {index: state for index, state in ended.items() if index < len(tracked.graph.nodes)}
        if tracked.graph.epoch not in {0, epoch}:
            # A replay may have begun after these tasks finished, and may have replayed them.
            states = await self.cache.read(tracked, sorted(ended))
            ended = {index: state for index, state in states.items() if state.has_ended}
        await self._settle(tracked, ended)

    async def _settle(self, tracked: TrackedWorkflow, ended: Mapping[int, NodeState]) -> None:
        all_ended = set[int]()
        while ended:
            for index, state in ended.items():
                tracked.record(index, state)
            all_ended |= ended.keys()
            changes = await self._changes(tracked, ended)
            if _needs_others(tracked.graph, changes, ended) and await self.cache.is_replayed(tracked):
                await self.review(tracked.graph.token)
                return
            applied = await self._apply(tracked, changes)
            if applied.is_due_again:
                await self.review(tracked.graph.token)
                return
            ended = applied.cancelled
        if tracked.may_have_ended(all_ended):
            await self._close_if_ended(tracked)

    async def _changes(self, tracked: TrackedWorkflow, ended: Mapping[int, NodeState]) -> list[Change]:
        """The changes that the children of these nodes need."""
        changes: dict[int, Change] = {}
        for parent, state in ended.items():
            if state.status is not Status.COMPLETED:
                for child in tracked.children[parent]:
                    if effect_of(tracked.graph.nodes[child], parent, state) is Effect.CANCEL:
                        changes.setdefault(child, cancel_child(tracked.graph, child, parent, state))
        children = {child for parent in ended for child in tracked.children[parent]}
        waiting = [child for child in sorted(children) if child not in changes and child not in tracked.known]
        fresh = {index: state for index, state in ended.items() if index not in tracked.adders}
        for page_size in page_sizes(tracked):
            waiting = await self._step(tracked, waiting, page_size, changes, fresh)
            if not waiting:
                break
        return [changes[child] for child in sorted(changes)]

    async def _step(
        self,
        tracked: TrackedWorkflow,
        waiting: Sequence[int],
        page_size: int,
        changes: dict[int, Change],
        fresh: dict[int, NodeState],
    ) -> list[int]:
        """Decide for those children for which enough is known. Read more parents, and return the other children."""
        needed: dict[int, int] = {}  # by child: the first parent that is not known to have finished
        pages: set[int] = set()
        for child in waiting:
            found = tracked.look(child, fresh, page_size)
            if isinstance(found, Change):
                changes[child] = found
            elif found:
                needed[child] = found[0]
                pages.update(parent for parent in found if parent not in tracked.known)
        if pages:
            fresh |= await self.cache.read(tracked, sorted(pages))
        return [child for child, parent in needed.items() if fresh[parent].has_ended]

    async def _apply(self, tracked: TrackedWorkflow, changes: Sequence[Change]) -> "_Applied":
        cancelled: dict[int, NodeState] = {}
        is_due_again = False
        for start in range(0, len(changes), _APPLY_SIZE):
            some = changes[start : start + _APPLY_SIZE]
            answers, is_late = await self._write(some)
            is_due_again = is_due_again or is_late
            for change, done in zip(some, answers, strict=True):
                address = node_address(change.id)
                if done and change.to is Status.CANCELLED and address is not None:
                    cancelled[address.node] = NodeState(Status.CANCELLED, is_cancelled_by_parent=True)
        if cancelled:
            await self.on_cancelled([tracked.graph.task_id(index) for index in cancelled])
        return _Applied(cancelled, is_due_again)

    async def _write(self, changes: Sequence[Change]) -> tuple[list[bool], bool]:
        """Write changes. Returns the answers, and whether a task to release was cancelled because of a parent.

        A task that was just submitted may be visible to reads, but not yet to `apply`.
        """
        answers = await self._engine.apply(changes)
        refused = [at for at, done in enumerate(answers) if not done and changes[at].guard is Guard.BLOCKED]
        if not refused:
            return answers, False
        tasks = await self._engine.get_without_values([changes[at].id for at in refused])
        states = dict(zip(refused, map(node_state, tasks), strict=True))
        again = [at for at in refused if states[at].is_blocked]
        if again:
            for at, done in zip(again, await self._engine.apply([changes[at] for at in again]), strict=True):
                answers[at] = done
        # The process that cancelled it wrote late: the parent had been replayed and completed before that write.
        is_late = any(states[at].is_cancelled_by_parent and changes[at].to is Status.PENDING for at in refused)
        return answers, is_late

    async def _close_if_ended(self, tracked: TrackedWorkflow) -> None:
        """Remove the markers of the workflow if all its tasks have finished."""
        for page_size in page_sizes(tracked):
            page = tracked.unended(page_size)
            if not page:
                break
            states = await self.cache.read(tracked, page)
            if not states[page[0]].has_ended:
                return
        revivable, is_stored = tracked.take_revivable(), True
        for start in range(0, len(revivable), PAGE_SIZES[-1]):
            states = await self.cache.read(tracked, revivable[start : start + PAGE_SIZES[-1]])
            is_stored = is_stored and all(state.status is not None for state in states.values())
        graph = tracked.graph
        if tracked.unended(1):
            return
        if revivable and await self._revive(tracked):
            return
        await self._close(graph, is_stored=is_stored)

    async def _revive(self, tracked: TrackedWorkflow) -> bool:
        """Whether a task was cancelled although its parents have been replayed since.

        It is then run, unless it already was.
        """
        graph = tracked.graph  # it may be extended during the read
        states = await self.cache.states(tracked)
        changes = decide(graph, states)
        if changes:
            await self._apply(tracked, changes)
        return bool(changes) or not all(state.has_ended for state in states.values())

    async def _close(self, graph: WorkflowGraph, *, is_stored: bool) -> None:
        """Remove the markers of the revision of which all tasks are known to have finished."""
        if is_stored and not graph.is_stored:  # its submission ended before it could write this
            with suppress(InvalidWorkflow):
                await extend_graph(self._engine, graph.token, submission=graph.submission, is_stored=True)
        await drop_markers(self._engine, graph)
        self.cache.forget(graph.token)

    # --- for replays and the monitor

    async def follow_replay(self, token: str, replayed: Collection[int]) -> None:
        """Write the consequences of a replay of these nodes. Raises StorageError.

        The nodes run if their parents allow it. Children that have not started wait again, and those that were
        cancelled because of a parent are revived. Only the affected tasks are read.
        """
        cancelled: dict[int, NodeState] = {}
        async for _ in _attempts(token):
            tracked = await self.cache.load(token)
            if tracked is None:
                return
            states, affected = await self._affected(tracked, replayed)
            changes = decide(tracked.graph, states, replayed, affected)
            if changes and await self.cache.is_replayed(tracked):
                continue
            applied = await self._apply(tracked, changes)
            cancelled |= applied.cancelled
            # A task that waits again is checked once more: its parents may have completed before this write, when it
            # was not yet blocked.
            if not applied.is_due_again and not any(change.run_at == BLOCKED_AT for change in changes):
                await self._settle(tracked, cancelled)
                return

    async def _affected(
        self, tracked: TrackedWorkflow, replayed: Collection[int]
    ) -> tuple[dict[int, NodeState], Sequence[int]]:
        """The nodes that a replay of some nodes may change, and the states of these and of their parents."""
        level = sorted(index for index in replayed if index < len(tracked.graph.nodes))
        found: dict[int, NodeState] = {}
        while level:
            states = await self.cache.states(tracked, level)
            found |= states
            parents = [index for index in level if index in replayed or states[index].is_cancelled_by_parent]
            level = sorted({child for parent in parents for child in tracked.children[parent]} - found.keys())
        affected = [
            index for index in sorted(found) if not found[index].has_ended or found[index].is_cancelled_by_parent
        ]
        needed = {parent for index in affected for parent in tracked.graph.nodes[index].parents}
        return found | await self.cache.states(tracked, sorted(needed - found.keys())), affected

    async def review(self, token: str) -> bool:
        """Read all tasks of a workflow and write the due changes. Returns whether all have finished.

        Raises StorageError.
        """
        async for _ in _attempts(token):
            tracked = await self.cache.load(token)
            if tracked is None:
                return True
            graph = tracked.graph  # it may be extended during the read
            states = await self.cache.states(tracked)
            changes = decide(graph, states)
            if changes and await self.cache.is_replayed(tracked):
                continue
            if (await self._apply(tracked, changes)).is_due_again:
                continue
            if not all(state.has_ended for state in states.values()):
                return False
            await self._close_if_ended(tracked)
            break
        return True


async def _attempts(token: str) -> AsyncIterator[None]:
    """Attempts with growing pauses, until the caller stops. Raises StorageError after `_REPLAY_DEADLINE`."""
    deadline = boot_clock() + _REPLAY_DEADLINE
    backoff = Backoff(_MIN_REPLAY_PAUSE, _MAX_REPLAY_PAUSE, jitter=(0.0, 1.0))
    while True:
        yield
        if boot_clock() >= deadline:
            raise StorageError(f"workflow {token} is being replayed by other processes; try again")
        await asyncio.sleep(backoff.next())


def _needs_others(graph: WorkflowGraph, changes: Sequence[Change], ended: Collection[int]) -> bool:
    """Whether one of the changes releases a task because of parents other than those that have just finished."""
    addresses = (node_address(change.id) for change in changes if change.to is Status.PENDING)
    released = (address.node for address in addresses if address is not None)
    return any(parent not in ended for child in released for parent in graph.nodes[child].parents)


def state_of_change(change: Change) -> NodeState:
    """The state of a task after a change that ended it."""
    return _STATES[change.to]
