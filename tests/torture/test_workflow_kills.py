"""Workers are killed with -9 while they run random workflows: every task runs after its parents, and none is lost.

A handler writes a line when it starts and when it ends. A task starts again only if the process was killed that had
started it before.
"""

import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import qo
from qo.client import Client, connect
from qo.ids import new_token
from qo.model import WorkflowStatus
from qo.workflow_run import NodeHandle
from qo.workflows import WorkflowTracker
from tests.conditions import delay, until
from tests.engines.killing_workers import QUICK, Worker, children, end, start_qo
from tests.servers.process import KEYS, S3Place
from tests.torture.stores import STORES, store_url
from tests.torture.workflow_app import app, result_of, step

IS_LONG = bool(os.environ.get("QO_TORTURE"))
SHORT = ("sqlite",)
EVERY = (*STORES, "s3-tasks", "s3-log")
Parents = list[list[int]]


@pytest.fixture(params=EVERY if IS_LONG else SHORT)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param.startswith("s3-"):
        for variable, value in KEYS.items():
            monkeypatch.setenv(variable, value)
        place: S3Place = request.getfixturevalue("seaweed")
        yield f"{place.url('plain', new_token())}&layout={request.param.removeprefix('s3-')}"
        return
    with store_url(request.param, request, tmp_path) as url:
        yield url


async def test_killed_workers_lose_no_task_of_a_workflow(store: str, tmp_path: Path, scale: int, seed: int) -> None:
    dice = random.Random(seed)
    number, kills, size = (10 * scale, 5 * scale, 50) if IS_LONG else (4, 1, 12)
    graphs = [_graph(dice, size) for _ in range(number)]
    killed = set[int]()
    log = tmp_path / "lines.txt"
    workers = [_start(store, tmp_path, log) for _ in range(3 if IS_LONG else 2)]
    try:
        async with connect(store) as client:
            ids = [
                (await client.workflows.submit("random", _flow(at, graph).planned)).graph.id
                for at, graph in enumerate(graphs)
            ]
            for _ in range(kills):
                await until(_is_going_on, log, len(_lines(log)), sum(map(len, graphs)))
                await delay(dice.uniform(0.0, 0.1))  # any moment
                doomed = _at_work(workers, log) or dice.choice(workers)
                workers.remove(doomed)
                killed |= {doomed.pid, *children(doomed.pid)}
                end(doomed, signal.SIGKILL)
                if IS_LONG:  # otherwise the other worker finishes alone
                    workers.append(_start(store, tmp_path, log))
            if not IS_LONG:
                await until(_is_reviewed, client, ids)
            for at, (id, graph) in enumerate(zip(ids, graphs, strict=True)):
                assert await client.workflows.result(id, timeout=300.0) == _expected(graph), f"workflow {at}"
                assert await client.workflows.status(id) is WorkflowStatus.COMPLETED
    finally:
        for worker in workers:
            for pid in (worker.pid, *children(worker.pid)):
                os.kill(pid, signal.SIGKILL)
            worker.wait(60)
    _check(log, graphs, killed)


async def _is_reviewed(client: Client, ids: Sequence[str]) -> bool:
    """Whether all workflows have ended. It does what the monitor does only after half a minute."""
    tokens = [(await client.workflows.graph(id)).token for id in ids]
    return all([await WorkflowTracker(client.engine).review(token) for token in tokens])


def _at_work(workers: Sequence[Worker], log: Path) -> Worker | None:
    """The worker whose handler wrote the last line."""
    pid = int(_lines(log)[-1][-1])
    return next((worker for worker in workers if pid in (worker.pid, *children(worker.pid))), None)


def _start(url: str, folder: Path, log: Path) -> Worker:
    words = ("worker", "tests.torture.workflow_app:app", *QUICK, "--concurrency", "4")
    return start_qo(url, folder, *words, WORKFLOW_LOG=str(log))


def _graph(dice: random.Random, size: int) -> Parents:
    number = dice.randint(2, size)
    return [sorted(dice.sample(range(index), dice.randint(0, min(index, 3)))) for index in range(number)]


def _flow(number: int, graph: Parents) -> qo.Workflow:
    """Tasks with an even index get the results of their parents, the others only wait for them."""
    flow = app.workflow("random")
    handles: list[NodeHandle[int]] = []
    for index, parents in enumerate(graph):
        found = [handles[parent] for parent in parents]
        results = found if index % 2 == 0 else []
        handles.append(flow.add(step.s(number, index, results), after=found))
    return flow


def _expected(graph: Parents) -> object:
    results: list[int] = []
    for index, parents in enumerate(graph):
        results.append(result_of(index, [results[parent] for parent in parents] if index % 2 == 0 else []))
    inner = {parent for parents in graph for parent in parents}
    last = [result for index, result in enumerate(results) if index not in inner]
    return last[0] if len(last) == 1 else last


def _lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def _is_going_on(log: Path, seen: int, tasks: int) -> bool:
    """Whether there are more lines than were seen, or all tasks have ended."""
    lines = _lines(log)
    return len(lines) > seen or len({tuple(line[1:3]) for line in lines if line[0] == "end"}) == tasks


def _check(log: Path, graphs: list[Parents], killed: set[int]) -> None:
    ended: defaultdict[int, set[int]] = defaultdict(set)
    started_by: dict[tuple[int, int], int] = {}
    for word, *numbers in _lines(log):
        flow, index, pid = map(int, numbers)
        if word == "end":
            ended[flow].add(index)
            continue
        late = set(graphs[flow][index]) - ended[flow]
        assert not late, f"task {index} of workflow {flow} starts before its parents {late} end"
        before = started_by.get((flow, index))
        assert before is None or before in killed, f"task {index} of workflow {flow} starts twice"
        started_by[flow, index] = pid
    assert [ended[flow] for flow in range(len(graphs))] == [set(range(len(graph))) for graph in graphs]
