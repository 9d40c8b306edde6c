"""Workflows as a program builds them: signatures, graphs, chains and groups.

flow = app.workflow("import")
rows = flow.add(fetch.s(url))
parts = [flow.add(parse.s(rows, n)) for n in range(8)]
flow.add(merge.s(parts))
run = flow.submit(idempotency_key="import-2026-11-16")
print(run.result(timeout=60))
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from qo.background import BackgroundClient
from qo.client import Client, Settings, describe
from qo.client.describe import PlannedTask
from qo.client.workflows import SubmittedWorkflow
from qo.errors import InvalidTask, InvalidWorkflow
from qo.model import (
    Binding,
    GraphNode,
    ParentFailure,
    check_name,
    group_by,
    show,
)
from qo.tasks import Handler, Registry
from qo.workflow_run import NodeHandle, WorkflowRun

R = TypeVar("R")
T = TypeVar("T")
OnParentFailure: TypeAlias = Literal["cancel", "run", "wait"]
_REFUSED_OPTIONS = ("idempotency_key", "batch", "connection", "id", "unique")


class WorkflowApp(Protocol):
    """The part of an app that this module uses."""

    settings: Settings
    registry: Registry


class Signature(Generic[R]):
    """A call of a task that is not submitted yet, as a part of a workflow. `task.s(...)` creates it.

    An argument may be the handle of another task of the workflow, a list of handles, or a list or dict that contains
    some. Each handle stands for the result of its task. Arguments without a default may be left open: `chain` and
    `group` pass a result as the first of them.
    """

    def __init__(
        self,
        app: WorkflowApp,
        background: Callable[[], BackgroundClient],
        handler: Handler,
        arguments: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        for name in _REFUSED_OPTIONS:
            if options.get(name) is not None and (name != "unique" or options[name] is not handler.options.unique):
                raise InvalidTask(name, "cannot be set for a task of a workflow; pass idempotency_key to submit()")
        self.app, self.background, self.handler = app, background, handler
        self._arguments = dict(arguments)
        self._options = {name: value for name, value in options.items() if name not in _REFUSED_OPTIONS}
        self._check()

    def _check(self) -> None:
        given = {name: value for name, value in self._arguments.items() if not _handles(value)}
        self.handler.arguments.check_given(given)

    @property
    def open_argument(self) -> str | None:
        """The first argument that has no default and no value."""
        missing: str | None = self.handler.arguments.first_missing(self._arguments)
        return missing

    def with_argument(self, name: str, value: Any) -> "Signature[R]":
        return Signature(self.app, self.background, self.handler, {**self._arguments, name: value}, self._options)

    def plan(
        self,
        index_of: Callable[[NodeHandle[Any]], int],
        after: Iterable[NodeHandle[Any]] = (),
        on_parent_failure: OnParentFailure = "cancel",
        added_by: tuple[int, int] | None = None,
    ) -> PlannedTask:
        """The task and its node. Raises InvalidTask if an argument is open."""
        if (missing := self.open_argument) is not None:
            raise InvalidTask("payload", f"{self.handler.type}() is missing the argument {missing!r}")
        bindings: list[Binding] = []
        arguments = {
            name: _without_handles(value, (name,), index_of, bindings) for name, value in self._arguments.items()
        }
        bound = {str(binding.path[0]) for binding in bindings}
        payload = self.handler.arguments.encode_given(arguments, bound)
        parents = {index_of(handle) for handle in _handles_of(after)}
        parents |= {parent for binding in bindings for parent in binding.parents}
        if added_by is not None:
            parents.add(added_by[0])
        options = _with_known_group(_submit_options(self.handler) | self._options, bound)
        new = describe(self.app.settings, self.handler.type, payload, **options)
        if new.batch is not None:
            new = replace(new, batch=None)
        node = GraphNode(
            type=self.handler.type,
            parents=tuple(sorted(parents)),
            on_parent_failure=_policy(on_parent_failure),
            bindings=tuple(bindings),
            added_by=added_by,
            delay=new.delay if parents else 0.0,
            run_at=new.run_at if parents else None,
        )
        return PlannedTask(node=node, new=new)

    def __repr__(self) -> str:
        return f"<Signature {self.handler.type}>"


def _submit_options(handler: Handler) -> dict[str, Any]:
    options = handler.options
    return {
        "queue": options.queue,
        "priority": options.priority,
        "needs": options.needs,
        "timeout": options.timeout,
        "max_retries": options.max_retries,
        "retry": options.retry,
        "limit": options.limit,
        "fair_by": options.fair_by,
    }


def _with_known_group(options: dict[str, Any], bound: Collection[str]) -> dict[str, Any]:
    """The options without a group if it depends on a result. A worker then finds it in the filled payload."""
    if group_by(options["limit"], options["fair_by"]) in bound:
        return options | {"limit": None, "fair_by": None}
    return options


def _policy(given: str) -> ParentFailure:
    try:
        return ParentFailure(given)
    except ValueError:
        raise InvalidWorkflow(f"on_parent_failure={show(given)} is not one of: {', '.join(ParentFailure)}") from None


def _handles_of(after: Any) -> Sequence[NodeHandle[Any]]:
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise InvalidWorkflow(f"after: {show(after)} is not a list of tasks of this workflow")
    handles = list(after)
    for handle in handles:
        if not isinstance(handle, NodeHandle):
            raise InvalidWorkflow(f"after: {show(handle)} is not a task of this workflow; pass what add() returned")
    return handles


def _handles(value: Any) -> bool:
    """Whether a value is or contains a handle."""
    if isinstance(value, list | tuple):
        return any(map(_handles, value))
    if isinstance(value, dict):
        return any(map(_handles, value.values()))
    return isinstance(value, NodeHandle)


def _without_handles(
    value: Any, path: tuple[str | int, ...], index_of: Callable[[NodeHandle[Any]], int], bindings: list[Binding]
) -> Any:
    """The value with None for each handle, and [] for a list of handles. Their places are added to `bindings`."""
    if isinstance(value, NodeHandle):
        bindings.append(Binding(path, (index_of(value),)))
        return None
    if isinstance(value, list | tuple) and _handles(value):
        if all(isinstance(item, NodeHandle) for item in value):
            bindings.append(Binding(path, tuple(map(index_of, value)), is_list=True))
            return []
        return [_without_handles(item, (*path, at), index_of, bindings) for at, item in enumerate(value)]
    if isinstance(value, dict) and _handles(value):
        by_key = {_json_key(key, path[0]): item for key, item in value.items()}
        return {key: _without_handles(item, (*path, key), index_of, bindings) for key, item in by_key.items()}
    return value


def _json_key(key: Any, argument: str | int) -> str:
    """A key of a dict as it is in the payload."""
    if isinstance(key, str):
        return key
    if type(key) is int:
        return str(key)
    raise InvalidWorkflow(f"argument {argument!r}: the key {show(key)} of a dict with results must be a str or an int")


class Workflow:
    """A graph of tasks that is submitted as a whole. `app.workflow(name)` creates it."""

    def __init__(self, app: WorkflowApp, background: Callable[[], BackgroundClient], name: str) -> None:
        self.name = check_name("workflow", name)
        self._app, self._background = app, background
        self._planned: list[PlannedTask] = []

    def add(
        self,
        signature: Signature[R],
        *,
        after: Iterable[NodeHandle[Any]] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> NodeHandle[R]:
        """Add a task. It waits for the tasks whose results are its arguments, and for those in `after`.

        If one of them fails permanently, is cancelled or deleted, the task is cancelled (`cancel`), runs anyway (`run`;
        a missing result is None), or waits until a replay of that task completes (`wait`).
        """
        self._planned.append(check_signature(signature).plan(self._index, after, on_parent_failure))
        return NodeHandle(self, len(self._planned) - 1, signature.handler.type)

    def _index(self, handle: NodeHandle[Any]) -> int:
        if handle.workflow is not self:
            raise InvalidWorkflow(f"{handle!r} is a task of another workflow than {self.name!r}")
        return handle.index

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def planned(self) -> tuple[PlannedTask, ...]:
        """The tasks so far, for `client.workflows.submit`."""
        return tuple(self._planned)

    def submit(self, *, idempotency_key: str | None = None) -> WorkflowRun:
        """Store all tasks; returns when they are stored.

        With an idempotency key, a workflow of this name is submitted once. A repeat returns the existing one, and
        completes a submission that was interrupted.
        """
        background = self._background()
        return self._run(background, background.call_client(self._submit(idempotency_key)))

    async def asubmit(self, *, idempotency_key: str | None = None) -> WorkflowRun:
        background = self._background()
        return self._run(background, await background.acall_client(self._submit(idempotency_key)))

    enqueue, aenqueue = submit, asubmit

    def _submit(self, key: str | None) -> Callable[[Client], Any]:
        planned = self.planned
        return lambda client: client.workflows.submit(self.name, planned, idempotency_key=key)

    def _run(self, background: BackgroundClient, submitted: SubmittedWorkflow) -> WorkflowRun:
        return WorkflowRun(background, self._app.registry, submitted.graph.id, new=submitted.new)

    def __repr__(self) -> str:
        return f"<Workflow {self.name} with {len(self)} tasks>"


def check_signature(given: Signature[R]) -> Signature[R]:
    if not isinstance(given, Signature):
        raise InvalidWorkflow(f"{show(given)} is not a signature; pass task.s(...)")
    return given


def chain(*signatures: Signature[Any], name: str = "chain") -> Workflow:
    """A workflow in which each task waits for the previous one.

    The result of the previous task is the first argument of the next one that has no default and no value. If there is
    no such argument, the task only waits.
    """
    flow = _started(name, signatures)
    previous: NodeHandle[Any] | None = None
    for signature in signatures:
        previous = _add_after(flow, check_signature(signature), previous, () if previous is None else (previous,))
    return flow


def group(signatures: Iterable[Signature[Any]], then: Signature[Any] | None = None, *, name: str = "group") -> Workflow:
    """A workflow of tasks that run in parallel, and of `then`, which waits for all of them.

    The list of their results is the first argument of `then` that has no default and no value. If there is no such
    argument, it only waits.
    """
    members = list(signatures)
    flow = _started(name, members)
    handles = [flow.add(check_signature(signature)) for signature in members]
    if then is not None:
        _add_after(flow, check_signature(then), handles, handles)
    return flow


def _started(name: str, signatures: Sequence[Signature[Any]]) -> Workflow:
    if not signatures:
        raise InvalidWorkflow(f"workflow {name!r} has no tasks")
    first = check_signature(signatures[0])
    return Workflow(first.app, first.background, name)


def _add_after(flow: Workflow, signature: Signature[R], result: Any, after: Sequence[NodeHandle[Any]]) -> NodeHandle[R]:
    open_argument = None if not after else signature.open_argument
    if open_argument is not None:
        signature = signature.with_argument(open_argument, result)
    return flow.add(signature, after=after)
