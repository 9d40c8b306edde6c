"""What must hold for tasks of the first schema once its store is migrated: 20 tasks, in lanes of all priorities."""

from qo.engine import Engine
from qo.model import CountKey, Filter, Status, complete, renew
from qo.testing.samples import claim, new, task_id


async def check_lanes(engine: Engine) -> None:
    """Each lane of all priorities has become one lane for each priority."""
    await engine.open()
    try:
        assert await engine.count() == {CountKey("q", type, Status.PENDING, n): 1 for type in "tu" for n in range(10)}
        await engine.add([new(30, priority=0, run_at=1e9)])
        assert {task.id for task in await claim(engine, limit=5)} == {task_id(n) for n in range(5)}
        able = await claim(engine, types=("u",), capabilities=frozenset({"gpu"}))
        assert {task.priority for task in able} == {*range(10)}
    finally:
        await engine.close()


async def check_reports(engine: Engine) -> None:
    """Tasks that were stored without batches, progress and logs get them."""
    await engine.open()
    try:
        assert await engine.count("b") == {}
        await engine.add([new(30, batch="b", priority=9)])
        task, *_ = await claim(engine, limit=1)
        assert (task.id, task.batch, task.progress) == (task_id(0), None, None)
        assert await engine.apply([renew(task, 60.0, progress=0.5)]) == [True]
        assert await engine.apply([complete(task, log="done")]) == [True]
        assert [event.log for event in await engine.history(task.id)] == [None, None, "done"]
        assert [task.id for task in await engine.find(Filter(batch="b"), limit=9)] == [task_id(30)]
        assert sum((await engine.count("b")).values()) == 1
    finally:
        await engine.close()
