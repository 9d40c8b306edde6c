"""What a worker claims ahead: by the rate and the run times of its tasks, and by how long a claim takes."""

import pytest

from qo.engines.memory import MemoryEngine
from qo.executors.run import Run
from qo.executors.run_table import LeasedRuns
from qo.executors.start_queue import StartQueue
from qo.tasks import make_handler, make_options
from qo.testing import ManualClock
from qo.testing.samples import claim, new
from qo.worker import WorkerSettings
from qo.worker.claim_plan import ClaimPlan, Prefetch
from qo.worker.controls import ClaimScope


@pytest.mark.parametrize("unused", [0, 1, 3])
async def test_types_that_have_no_tasks_do_not_keep_quick_ones_from_being_claimed_ahead(unused: int) -> None:
    async def quick() -> None: ...

    names = ["quick", *(f"unused{n}" for n in range(unused))]
    handlers = {name: make_handler(quick, type=name, options=make_options(quick)) for name in names}
    clock, settings = ManualClock(), WorkerSettings(concurrency=8)
    scope = ClaimScope(MemoryEngine(), handlers, settings, worker_id="w", clock=clock)
    queue = StartQueue(8, clock=clock)
    claiming = ClaimPlan(scope, LeasedRuns(), queue, settings, worker_id="w", clock=clock)
    claiming.prefetch.ran("quick", 0.0005, 800)
    queue.ended_runs += 800
    await _be_busy(queue, clock, 0.1)
    request = claiming.request()
    assert request is not None
    assert request.limit == 400  # half of what ran in the last 0.1 s
    assert request.per_type_limits.get("quick", request.limit) == 400
    of_unknown_speed = [request.per_type_limits[name] for name in names if name != "quick"]
    assert len(of_unknown_speed) == unused and sum(of_unknown_speed) <= 8


def _new_plan(
    queue: StartQueue, clock: ManualClock, types: tuple[str, ...] = ("t",), leased_runs: LeasedRuns | None = None
) -> ClaimPlan:
    """The plan of a worker with 8 slots."""
    handlers = {type: make_handler(lambda: None, type=type, options=make_options(lambda: None)) for type in types}
    settings = WorkerSettings(concurrency=8)
    scope = ClaimScope(MemoryEngine(), handlers, settings, worker_id="w", clock=clock)
    return ClaimPlan(
        scope, LeasedRuns() if leased_runs is None else leased_runs, queue, settings, worker_id="w", clock=clock
    )


async def test_a_worker_in_which_many_tasks_wait_makes_no_claim_for_a_few_more() -> None:
    clock = ManualClock()
    queue = StartQueue(8, clock=clock)
    plan = _new_plan(queue, clock)
    plan.prefetch.ran("t", 0.002, 800)
    queue.ended_runs += 800
    await _be_busy(queue, clock, 0.1)  # 8,000/s, of which the slots start 400 within the horizon
    for _ in range(8 + 150):
        await _put_run(queue)
    request = plan.request()
    assert request is not None
    assert request.per_type_limits == {"t": 250}
    for _ in range(50):
        await _put_run(queue)
    assert plan.request() is None


async def test_a_claim_of_few_tasks_does_not_wait_while_a_slot_is_free_or_a_type_is_slow_or_no_task_waits() -> None:
    async def limit(runs: int, types: tuple[str, ...] = ("t",), *, are_started: bool = True) -> int | None:
        """How many tasks of `t` a worker claims that has so many runs. Its slots start 50 within the horizon."""
        clock = ManualClock()
        queue = StartQueue(8, clock=clock)
        plan = _new_plan(queue, clock, types)
        plan.prefetch.ran("t", 0.016, 800)
        queue.ended_runs += 800
        await _be_busy(queue, clock, 0.1)
        if not are_started:
            queue.close()
        for _ in range(runs):
            await _put_run(queue)
        request = plan.request()
        return None if request is None else request.per_type_limits["t"]

    assert await limit(8 + 1) is None
    assert await limit(8) == 50
    assert await limit(1, are_started=False) == 7 + 50 - 1
    assert await limit(8 + 1, ("t", "slow")) == 50 - 1


@pytest.mark.parametrize(("claim_time", "part"), [(0.01, 200), (0.05, 533)])
async def test_a_worker_claims_half_of_its_prefetch_and_on_a_slow_store_a_third(claim_time: float, part: int) -> None:
    """On a slow store, a part runs while another one is claimed and the last one settled."""
    clock = ManualClock()
    queue, leased_runs = StartQueue(8, clock=clock), LeasedRuns()
    plan = _new_plan(queue, clock, leased_runs=leased_runs)
    for _ in range(2):
        plan.prefetch.claimed(claim_time)
    plan.prefetch.ran("t", 0.0001, 400)
    queue.ended_runs += 400
    await _be_busy(queue, clock, 0.1)  # 4,000/s, for the next 0.1 s or 0.4 s
    for first in (0, part):
        request = plan.request()
        assert request is not None
        assert request.limit == part
        for number in range(first, first + part):
            leased_runs.add(await _put_run(queue, number))
    assert (plan.request() is None) == (part == 200)


async def test_runs_count_for_the_rate_before_a_slow_store_has_settled_them() -> None:
    clock = ManualClock()
    queue = StartQueue(8, clock=clock)
    plan = _new_plan(queue, clock)
    for _ in range(8):
        run = await _put_run(queue)
        assert queue.begin(run)
        clock.advance(0.01)
        queue.release_slot(run)
    assert plan.prefetch.ahead() == 10  # of 100/s


async def test_the_run_time_of_a_type_is_that_of_all_runs_of_a_settlement_and_not_of_the_last_ones() -> None:
    clock = ManualClock()
    queue = StartQueue(8, clock=clock)
    plan = _new_plan(queue, clock)
    runs = [await _put_run(queue) for _ in range(100)]
    for number, run in enumerate(runs):
        run.began, run.ended = 0.0, 0.02 if number < 95 else 1.0
    plan.settled(runs)
    assert plan.prefetch.ahead_of("t") == int(8 * 0.1 / 0.069)
    quick = [await _put_run(queue) for _ in range(20)]
    for run in quick:
        run.began, run.ended = 0.0, 0.01
    plan.settled(quick)
    assert plan.prefetch.ahead_of("t") == 74  # of 0.0107 s: twenty runs outweigh the average before them


class Taking:
    """An executor that takes every run."""

    def __init__(self, queue: StartQueue) -> None:
        self._queue = queue

    def pull(self) -> bool:
        return self._queue.take(self) is not None


async def _put_run(queue: StartQueue, number: int = 0) -> Run:
    engine = MemoryEngine()
    await engine.add([new(number)])
    (task,) = await claim(engine)
    run = Run(task, make_handler(lambda: None, type="t", options=make_options(lambda: None)), lambda *_: None)
    run.executor = Taking(queue)
    queue.put([run])
    return run


async def _be_busy(queue: StartQueue, clock: ManualClock, seconds: float) -> None:
    """Let one run occupy a slot for some seconds."""
    run = await _put_run(queue)
    clock.advance(seconds)
    queue.release_slot(run)


async def test_the_time_in_which_a_worker_has_nothing_to_run_does_not_count() -> None:
    clock = ManualClock()
    queue = StartQueue(2, clock=clock)
    pace = Prefetch(500, 10, queue.busy_time, ended := Ended())
    for _ in range(3):
        clock.advance(0.4)  # a slow claim
        await _be_busy(queue, clock, 0.02)
        ended.number += 10
        clock.advance(0.4)  # a slow settlement
        assert pace.ahead() == 50  # of 500/s, and not of 12/s


async def test_runs_that_go_back_unstarted_no_longer_keep_a_worker_busy() -> None:
    clock = ManualClock()
    queue = StartQueue(1, clock=clock)
    began = queue.busy_time()
    await _be_busy(queue, clock, 1.0)
    queue.close()  # the next run waits
    await _put_run(queue)
    clock.advance(2.0)
    assert len(queue.take_back()) == 1
    clock.advance(4.0)
    assert queue.busy_time() - began == 3.0


def test_the_first_rate_is_known_after_a_few_quick_tasks() -> None:
    clock = ManualClock()
    pace = Prefetch(500, 10, clock, ended := Ended())
    clock.advance(0.004)
    ended.number += 3
    assert pace.ahead() == 0
    ended.number += 1
    assert pace.ahead() == 100  # of 1,000/s
    clock.advance(0.001)
    ended.number += 100
    assert pace.ahead() == 100  # later ones are measured over a longer time


class Ended:
    """The number of runs that have ended."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number


def test_a_worker_claims_ahead_of_each_type_what_starts_within_a_moment() -> None:
    pace = Prefetch(500, 10, ManualClock(), Ended())
    assert pace.ahead_of("a") == 0  # nothing is known of it
    pace.ran("a", 0.001)
    pace.ran("b", 0.5)
    pace.ran("c", 60.0)
    assert (pace.ahead_of("a"), pace.ahead_of("b"), pace.ahead_of("c")) == (500, 2, 0)
    for _ in range(2):
        pace.claimed(took=1.0)
    assert (pace.ahead_of("b"), pace.ahead_of("c")) == (20, 0)


def test_a_worker_claims_ahead_only_as_far_as_its_tasks_are_quick() -> None:
    clock = ManualClock()
    pace = Prefetch(500, 10, clock, ended := Ended())
    assert pace.ahead() == 0
    for _ in range(20):
        clock.advance(0.1)
        ended.number += 1000
        pace.ahead()
    assert pace.ahead() == 500
    for _ in range(20):
        clock.advance(1)
        ended.number += 1
        pace.ahead()
    assert pace.ahead() == 0


def test_a_worker_that_gets_faster_prefetches_more_immediately() -> None:
    clock = ManualClock()
    pace = Prefetch(500, 10, clock, ended := Ended())
    clock.advance(0.5)
    ended.number += 1000
    assert pace.ahead() == 200
    clock.advance(0.5)
    assert pace.ahead() == 100  # one that gets slower is given the benefit of the suspect


def test_a_worker_holds_enough_to_work_on_during_a_slow_claim() -> None:
    clock = ManualClock()
    pace = Prefetch(500, 10, clock, ended := Ended())
    clock.advance(0.5)
    ended.number += 200
    pace.claimed(took=0.01)
    assert pace.ahead() == 40
    for _ in range(2):
        pace.claimed(took=0.025)
    assert pace.ahead() == 80
    for _ in range(2):
        pace.claimed(took=30.0)  # others may be free by then
    assert pace.ahead() == 400


def test_a_single_slow_claim_does_not_make_a_worker_hoard_tasks() -> None:
    clock = ManualClock()
    pace = Prefetch(500, 10, clock, ended := Ended())
    clock.advance(0.5)
    ended.number += 200
    for took in (30.0, 0.001, 30.0, 0.001):
        pace.claimed(took)
        assert pace.ahead() == 40
