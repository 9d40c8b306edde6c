"""A worker's everyday: tasks run, results are kept, failures are retried, bad tasks are refused."""

import asyncio
import threading

import pytest

from qo.client import Client
from qo.clock import boot_clock
from qo.engines.memory import MemoryEngine
from qo.errors import Fail, NewerFormat, Retry
from qo.executors.run_table import LeasedRuns
from qo.executors.start_queue import StartQueue
from qo.model import ClaimRequest, RetryPolicy, Status, Task
from qo.running_task import current_task
from qo.web.remote.checks import check_claim_request
from qo.worker import Worker, WorkerSettings
from qo.worker.claim_plan import ClaimPlan
from tests.worker.bench import Bench

QUICK = RetryPolicy(initial=0.01, max=0.02)


async def test_async_and_plain_functions_run_and_their_results_are_kept(bench: Bench) -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    def shout(text: str) -> dict[str, str]:
        return {"text": text.upper(), "thread": threading.current_thread().name}

    bench.handle(double)
    bench.handle(shout)
    ids = [await bench.submit("double", {"n": n}) for n in range(20)] + [await bench.submit("shout", {"text": "a"})]
    tasks = await bench.run_all(ids)
    assert {task.status for task in tasks} == {Status.COMPLETED}
    assert [task.result for task in tasks[:20]] == [b"%d" % (2 * n) for n in range(20)]
    assert tasks[20].result is not None and b'"A"' in tasks[20].result


async def test_a_failing_task_is_retried_then_given_up_with_its_traceback(bench: Bench) -> None:
    async def boom() -> None:
        raise ValueError("no luck")

    bench.handle(boom)
    (task,) = await bench.run_all([await bench.submit("boom", max_retries=2, retry=QUICK)])
    assert (task.status, task.attempt, task.failures) == (Status.FAILED, 3, 3)
    assert task.error is not None
    assert task.error.startswith("ValueError: no luck\nTraceback")


async def test_a_handler_may_ask_for_a_retry_or_give_up(bench: Bench) -> None:
    async def again() -> int:
        if current_task().attempt < 3:
            raise Retry("not yet", after=0.01)
        return current_task().attempt

    def never() -> None:
        raise Fail("no such customer")

    bench.handle(again)
    bench.handle(never)
    again_id, never_id = await bench.submit("again"), await bench.submit("never")
    first, second = await bench.run_all([again_id, never_id])
    assert (first.status, first.result) == (Status.COMPLETED, b"3")
    assert (second.status, second.attempt, second.error) == (Status.FAILED, 1, "no such customer")


async def test_invalid_arguments_fail_permanently_with_the_reason(bench: Bench) -> None:
    async def greet(name: str) -> None: ...

    bench.handle(greet)
    ids = [await bench.submit("greet", payload) for payload in ({"name": 7}, {"nam": "x"}, [1], b"\xff")]
    for task in await bench.run_all(ids):
        assert (task.status, task.attempt) == (Status.FAILED, 1)
        assert task.error is not None
        assert task.error.startswith("payload: greet()")


async def test_a_result_that_cannot_be_stored_fails_permanently(bench: Bench) -> None:
    async def odd() -> object:
        return object()

    async def huge() -> str:
        return "x" * 300_000

    bench.handle(odd)
    bench.handle(huge)
    for task in await bench.run_all([await bench.submit("odd"), await bench.submit("huge")]):
        assert (task.status, task.attempt) == (Status.FAILED, 1)
        assert task.error is not None
        assert task.error.startswith("result: ")


async def test_a_server_takes_what_a_worker_asks_for_however_many_types_and_queues_there_are(bench: Bench) -> None:
    async def known() -> None: ...

    bench.handle(known)
    tasks = [bench.client.new_task(f"t{n}", b"{}", queue=f"q{n}") for n in range(1200)]
    await bench.client.submit_many(tasks)
    await bench.client.controls.pause(queues=["q0"])
    scope = bench.scope()
    await scope.read()
    plan = ClaimPlan(scope, LeasedRuns(), StartQueue(8), WorkerSettings(), worker_id="w", clock=boot_clock)
    request = plan.request()
    assert request is not None and check_claim_request(request) == request
    assert "q0" not in request.queues and len(request.queues) == 1000


async def test_draining_ends_when_nothing_is_due_and_no_retry_is_waiting(bench: Bench) -> None:
    async def flaky() -> None:
        if current_task().attempt == 1:
            raise ValueError

    bench.handle(flaky)
    ids = [await bench.submit("flaky", retry=QUICK) for _ in range(5)]
    later = await bench.submit("flaky", delay=3600)
    await asyncio.wait_for(Worker(bench.client, bench.registry, WorkerSettings(drain=True, poll=0.05)).run(), 30)
    assert {task.status for task in [await bench.ended(task_id) for task_id in ids]} == {Status.COMPLETED}
    task = await bench.client.get(later)
    assert task is not None
    assert task.status is Status.PENDING


async def test_a_worker_ends_when_a_newer_qo_has_upgraded_the_store() -> None:
    """The store will not come back for this build, so the worker does not wait for it."""

    class Upgraded(MemoryEngine):
        async def claim(self, want: ClaimRequest) -> list[Task]:
            raise NewerFormat(f"too new for {want.worker_id}")

    async def fine() -> None: ...

    bench = Bench(Client(Upgraded()))
    bench.handle(fine)
    with pytest.raises(NewerFormat, match="too new for w"):
        async with asyncio.timeout(30):
            await Worker(bench.client, bench.registry, WorkerSettings(id="w")).run()
