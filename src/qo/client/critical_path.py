"""The critical path of a workflow: the chain of tasks that takes longest."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from qo.client.workflow_view import WorkflowNodeView

_DEFAULT_DURATION = 1.0  # seconds, if no task of the workflow has ended


class CriticalPath(Struct, frozen=True, kw_only=True):
    indexes: tuple[int, ...]  # of its tasks, in order
    seconds: float
    is_estimate: bool  # some of its tasks have not ended


def critical_path(nodes: Sequence[WorkflowNodeView], now: float) -> CriticalPath:
    """The longest chain of dependent live tasks.

    A task that has not ended counts with the mean duration of its type in this workflow, or of all types, and a running
    one at least with the time since its start. The time between tasks, while no worker was free, does not count.
    """
    durations = _durations(nodes, now)
    lengths = dict[int, tuple[float, int]]()  # seconds and tasks of the longest chain that ends with a node
    previous = dict[int, int]()
    for node in nodes:  # parents come before their children
        if node.is_live:
            parents = [each for each in node.parents if each in lengths]
            longest = max(parents, key=lambda each: lengths[each], default=None)
            seconds, tasks = (0.0, 0) if longest is None else lengths[longest]
            lengths[node.index] = (seconds + durations[node.index], tasks + 1)
            if longest is not None:
                previous[node.index] = longest
    last = max(lengths, key=lambda each: lengths[each], default=None)
    total, path = 0.0 if last is None else lengths[last][0], list[int]()
    while last is not None:
        path.append(last)
        last = previous.get(last)
    indexes = tuple(reversed(path))
    return CriticalPath(
        indexes=indexes, seconds=total, is_estimate=any(nodes[each].completed_at is None for each in indexes)
    )


def _durations(nodes: Sequence[WorkflowNodeView], now: float) -> list[float]:
    known = [_duration(node) for node in nodes]
    by_type = defaultdict[str, list[float]](list)
    for node, seconds in zip(nodes, known, strict=True):
        if seconds is not None:
            by_type[node.type].append(seconds)
    means = {type: fmean(each) for type, each in by_type.items()}
    mean = fmean(means.values()) if means else _DEFAULT_DURATION
    return [
        max(means.get(node.type, mean), _elapsed(node, now)) if seconds is None else seconds
        for node, seconds in zip(nodes, known, strict=True)
    ]


def _duration(node: WorkflowNodeView) -> float | None:
    """Of the last attempt of a task that has ended. A task that was cancelled before its start took no time."""
    if node.completed_at is None:
        return None
    return 0.0 if node.started_at is None else max(0.0, node.completed_at - node.started_at)


def _elapsed(node: WorkflowNodeView, now: float) -> float:
    return 0.0 if node.started_at is None else now - node.started_at
