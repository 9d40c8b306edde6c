"""A process of the tests: adds, claims and completes in a loop, and logs what was acknowledged.

The log is written with one write(2) a line, so what stands in it survives the process.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from qo.engine import Engine
from qo.engines import open_engine
from qo.ids import new_id, new_token
from qo.model import ClaimRequest, NewTask, RetryPolicy, Status, complete, release
from tests.conditions import delay

ENDLESS = 10**9
LEASE = 0.5  # seconds; short, so that other processes soon get the tasks of a killed one
SOON = RetryPolicy(initial=0.01, max=0.01)
_START_DEADLINE = 60.0  # seconds until all processes must run
# The fork server has imported these modules, so a new process works within milliseconds, not half a second.
_nursery = multiprocessing.get_context("forkserver")
_ENGINES = ["sqlite", "postgres", "layouts", "per_task", "one_object", "sqlite_object", "replicated_log.engine"]
Opener = Callable[[str], Engine]  # a function of a module: another process calls it
_nursery.set_forkserver_preload([__name__, "qo.buckets.folder.bucket", *(f"qo.engines.{name}" for name in _ENGINES)])


def start(
    url: str,
    log: Path,
    rounds: int = ENDLESS,
    *,
    gate: Barrier | None = None,
    pause: float = 0.0,
    opener: Opener = open_engine,
) -> BaseProcess:
    """`pause`: the seconds between a claim and its settlement, for long tests."""
    process = _nursery.Process(target=_run, args=(opener, url, log, rounds, gate, pause, dict(os.environ)), daemon=True)
    process.start()
    return process


def start_at_once(url: str, logs: list[Path], rounds: int) -> list[BaseProcess]:
    """Start processes that wait for each other before they begin."""
    gate = _nursery.Barrier(len(logs) + 1)
    processes = [start(url, log, rounds, gate=gate) for log in logs]
    gate.wait(_START_DEADLINE)
    return processes


def _run(  # noqa: PLR0917 - the arguments of a process have no names
    opener: Opener, url: str, log: Path, rounds: int, gate: Barrier | None, pause: float, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if gate is not None:
        gate.wait(_START_DEADLINE)
    asyncio.run(_work(opener(url), descriptor, rounds, pause))


async def _work(engine: Engine, log: int, rounds: int, pause: float) -> None:
    await engine.open()
    for n in range(rounds):
        added = await engine.add([_new_task() for _ in range(2)])
        single = [_new_task()]
        added += engine.add_directly(single) if engine.adds_directly else await engine.add(single)
        os.write(log, b"".join(b"added %s\n" % task_id.encode() for task_id, _ in added))
        tasks = await engine.claim(ClaimRequest(worker_id="w", lease_id=new_token(), limit=3, lease=LEASE))
        await delay(pause)
        changes = [release(task) if (n + m) % 7 == 0 else complete(task) for m, task in enumerate(tasks)]
        answers = zip(tasks, changes, await engine.apply(changes), strict=True)
        done = [task for task, change, held in answers if held and change.to is Status.COMPLETED]
        os.write(log, b"".join(b"completed %s %d\n" % (task.id.encode(), task.attempt) for task in done))
    await engine.close()


def _new_task() -> NewTask:
    """A task that the workers of `killed_app` can run too."""
    return NewTask(id=new_id(), queue="q", type="count_up", payload=b'{"n":1}', max_retries=100, retry=SOON)
