"""How many requests workflows cost, and how many tasks these read."""

from collections import Counter
from collections.abc import Sequence

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.forwarding_engine import ForwardingEngine
from qo.model import Change, Note, Task, complete
from qo.testing.clock import ManualClock
from qo.testing.samples import claim
from qo.testing.workflow_histories import planned
from qo.workflows import GRAPHS, WorkflowTracker

SIZE = 1_200


class MeteredEngine(ForwardingEngine):
    """Counts the tasks that are read, the changes, and the graphs that are read and written."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine)
        self.counts: Counter[str] = Counter()

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        self.counts["changes"] += len(changes)
        return await super().apply(changes)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        self.counts["tasks"] += len(ids)
        return await super().get_without_values(ids)

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        self.counts["gets"] += 1
        self.counts["results"] += len(ids)
        return await super().get(ids)

    async def read_note(self, name: str) -> Note | None:
        self.counts["graphs"] += name.startswith(GRAPHS)
        return await super().read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        self.counts["graphs written"] += name.startswith(GRAPHS)
        return await super().write_note(name, data, expected=expected)


class MeteredStore:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MeteredEngine(MemoryEngine(self.clock))
        self.client = Client(self.engine, clock=self.clock)

    async def finish(self, *, page: int = 100) -> None:
        while tasks := await claim(self.client.engine, limit=page):
            await self.client.engine.apply([complete(task) for task in tasks])

    def take(self) -> Counter[str]:
        taken, self.engine.counts = self.engine.counts, Counter()
        return taken


@pytest.fixture
def store() -> MeteredStore:
    return MeteredStore()


async def test_a_callback_reads_each_task_about_once(store: MeteredStore) -> None:
    await store.client.workflows.submit("group", [*(planned() for _ in range(SIZE)), planned(*range(SIZE))])
    store.take()
    await store.finish()
    assert store.take()["tasks"] < 2 * SIZE


async def test_a_claim_reads_the_graph_and_the_results_of_all_its_tasks_once(store: MeteredStore) -> None:
    tasks = [planned(), planned(), *(planned(0, 1, bound=True) for _ in range(20))]
    await store.client.workflows.submit("fan-out", tasks)
    first, second = await claim(store.client.engine)
    await store.client.engine.apply([complete(first, b"1"), complete(second, b"2")])
    store.take()
    claimed = await claim(store.client.engine, limit=20)
    assert [task.payload for task in claimed] == [b'{"results":[1,2]}'] * 20
    taken = store.take()
    assert (taken["gets"], taken["results"], taken["graphs"]) == (1, 2, 1), taken


async def test_a_replay_of_one_step_reads_only_what_depends_on_it(store: MeteredStore) -> None:
    pairs = [planned(*() if index % 2 == 0 else (index - 1,)) for index in range(SIZE)]
    graph = (await store.client.workflows.submit("pairs", pairs)).graph
    await store.finish()
    store.take()
    await store.client.replay(graph.task_id(10), completed=True)
    taken = store.take()
    assert (taken["tasks"] < 10, taken["changes"] < 10, taken["graphs written"]) == (True, True, 2), taken


async def test_a_replay_of_a_large_workflow_writes_its_graph_twice(store: MeteredStore) -> None:
    tasks = [*(planned() for _ in range(SIZE)), planned(*range(SIZE))]
    graph = (await store.client.workflows.submit("group", tasks)).graph
    await store.finish()
    store.take()
    assert await store.client.workflows.replay(graph.id, range(SIZE)) == SIZE + 1
    taken = store.take()
    assert taken["graphs written"] == 2 and taken["tasks"] < 4 * SIZE, taken


async def test_a_list_reads_only_the_graphs_that_it_shows(store: MeteredStore) -> None:
    for _ in range(200):
        await store.client.workflows.submit("small", [planned(), planned(0)])
        store.clock.advance(1.0)
    store.take()
    found = await store.client.workflows.list(limit=5)
    assert [store.clock.now - view.created_at for view in found] == [1.0, 2.0, 3.0, 4.0, 5.0]
    taken = store.take()
    assert taken["graphs"] <= 10 and taken["tasks"] == 10, taken


async def test_the_monitor_reads_each_task_of_a_workflow_once_a_review(store: MeteredStore) -> None:
    graph = (await store.client.workflows.submit("group", [planned() for _ in range(SIZE)])).graph
    store.take()
    await WorkflowTracker(store.engine).review(graph.token)
    assert store.take()["tasks"] == SIZE
