"""What /metrics shows, by the names of docs/http.md."""

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx
import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from qo import notes
from qo.client import Client
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.errors import Fail, StorageError
from qo.metrics import Measured, Meters
from qo.model import ANY, FailureKind, Filter, PromotionTimes, after_error, complete, expire, fail, release
from qo.notes import WorkerNote
from qo.tasks import Registry, make_handler, make_options
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim_one, new
from qo.transitions import REASONS, reason_of
from qo.web.stats.server_metrics import ServerMetrics
from qo.web.stats.wait_times import percentiles, wait_percentiles
from qo.worker import Worker, WorkerSettings
from tests.conditions import TIMEOUT, until
from tests.engines.http_server import Server
from tests.servers.plain_http import NO_CERTIFICATES
from tests.web.promql import Shown, problems, selectors, shown

ROOT = Path(__file__).parents[2]
NAMED = {  # the specification's list, line by line
    "queue_depth": {"priority"},
    "queue_age_seconds": {"priority", "percentile"},
    "tasks_promoted_total": {"from", "to"},
    "task_duration_seconds_count": {"priority", "status"},
    "task_retries_total": {"priority", "reason"},
    "task_state_total": {"status"},
    "tasks_pending": {"kind"},
    "workers_total": {"status"},
    "worker_capacity_used_ratio": set(),
    "worker_heartbeat_failures_total": set(),
    "tasks_failed_total": {"reason"},
    "tasks_dlq_total": set(),
    "schedule_fires_total": {"outcome"},
    "schedules": {"status"},
}


async def scrape(served: Server) -> str:
    async with httpx.AsyncClient(verify=NO_CERTIFICATES, timeout=30) as http:
        response = await http.get(f"{served.url}/metrics")
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain; version=")
        return response.text


def value(meters: Meters | ServerMetrics, name: str, **labels: str) -> float:
    found = meters.registry.get_sample_value(name, labels)
    assert found is not None, name
    return found


async def gauge(served: Server, name: str, **labels: str) -> float:
    await scrape(served)
    return value(served.app.state["metrics"], name, **labels)


# --- the server


@pytest.mark.usefixtures("client")
async def test_every_metric_of_the_specification_is_shown_with_its_labels(served: Server) -> None:
    series = shown(await scrape(served))
    for name, labels in NAMED.items():
        assert {frozenset(each) for each in series[name]} == {frozenset(labels)}, name


async def test_depth_and_age_by_priority(served: Server, client: Client, clock: ManualClock) -> None:
    await client.engine.add([new(n, priority=0) for n in range(3)] + [new(9, priority=9), new(10, delay=500.0)])
    clock.advance(60)
    assert await gauge(served, "queue_depth", priority="high") == 3
    assert await gauge(served, "queue_depth", priority="low") == 1
    assert await gauge(served, "queue_age_seconds", priority="low", percentile="p99") == pytest.approx(60)
    assert await gauge(served, "queue_age_seconds", priority="medium", percentile="p99") == 0
    assert await gauge(served, "task_state_total", status="pending") == 5


async def test_the_age_of_a_long_queue_is_read_from_pages_over_its_whole_length(clock: ManualClock) -> None:
    engine = MemoryEngine(clock)
    for n in range(1000):
        await engine.add([new(n)])
        clock.advance(1)
    ages = await wait_percentiles(engine, [clock.now - 1000], clock.now)
    assert 400 < ages["medium"]["p50"] < 600 and 850 < ages["medium"]["p99"] <= 1000


def test_percentiles() -> None:
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    assert percentiles([float(n) for n in range(100)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


async def test_workers_by_status_and_their_load(served: Server, client: Client, clock: ManualClock) -> None:
    for name, silent, status in (("a", 0, "active"), ("b", 10, "draining"), ("c", 91, "active")):
        note = WorkerNote(
            worker_id=name, status=status, started_at=0, last_heartbeat=clock.now - silent, capacity=4, current_load=3
        )
        await client.engine.write_note(notes.WORKERS + name, msgspec.json.encode(note), expected=ANY)
    numbers = [await gauge(served, "workers_total", status=status) for status in ("active", "draining", "dead")]
    assert numbers == [1, 1, 1]
    assert await gauge(served, "worker_capacity_used_ratio") == 0.75


async def test_what_workers_settle_through_the_server_is_counted_there(served: Server, client: Client) -> None:
    await scrape(served)  # what was done before a server's first look is not counted by it
    await client.enqueue("t", priority="high")
    await client.enqueue("t", priority="high")
    async with httpx.AsyncClient(base_url=f"{served.url}/internal/workers", verify=NO_CERTIFICATES) as http:
        worker = (await http.post("/register", json={})).json()["worker_id"]
        tasks = (await http.post(f"/{worker}/poll", json={"available_capacity": 9})).json()["tasks"]
        for task, status in zip(sorted(tasks, key=lambda task: task["task_id"]), ("completed", "failed"), strict=True):
            report = {"task_id": task["task_id"], "status": status, "retriable": False}
            for _ in range(2):  # told twice, counted once
                await http.post(f"/{worker}/result", json=report)
    assert await until(gauge, served, "tasks_failed_total", reason="error") == 1  # a read serves a second of requests
    assert await gauge(served, "task_duration_seconds_count", priority="high", status="completed") == 1
    assert await gauge(served, "task_run_seconds_count", type="t") == 2
    assert await gauge(served, "tasks_dlq_total") == 0  # it gave up before its retries were used up


# --- workers


class TestMeasured(EngineContract):
    """An engine that is watched is still that engine."""

    @pytest.fixture
    async def engine(self, clock: ManualClock) -> Measured:
        self.below = MemoryEngine(clock)
        return Measured(self.below, Meters(clock=clock))

    async def damage(self, engine: Engine, task_id: str) -> None:  # noqa: ARG002 - the engine below is damaged
        self.below.damage(task_id)


async def test_what_a_worker_settles_is_counted() -> None:
    def good() -> None: ...

    def bad() -> None:
        raise Fail("no")

    registry, meters = Registry(), Meters()
    for function in (good, bad):
        registry.add(make_handler(function, type=function.__name__, options=make_options(function)))
    async with Client(MemoryEngine()) as client:
        for type in ("good", "good", "bad", "nobody_knows_it"):
            await client.enqueue(type, {}, priority="high")
        await Worker(meters.measured(client), registry, WorkerSettings(drain=True, fail_unknown_types=0.0)).run()
    assert value(meters, "task_duration_seconds_count", priority="high", status="completed") == 2
    assert value(meters, "task_duration_seconds_count", priority="high", status="failed") == 2
    assert value(meters, "tasks_failed_total", reason="error") == 1
    assert value(meters, "tasks_failed_total", reason="unknown_type") == 1
    assert value(meters, "tasks_dlq_total") == 0  # they gave up with retries left
    assert value(meters, "task_run_seconds_count", type="good") == 2


async def test_retries_promotions_and_losses_are_counted_once(clock: ManualClock) -> None:
    meters = Meters(clock=clock)
    engine = Measured(MemoryEngine(clock), meters)
    await engine.add([new(0, priority=9), new(1), new(2)])
    clock.advance(700)
    late = await claim_one(engine)
    change = after_error(late, "timed out after 3 s", kind=FailureKind.TIMEOUT, random=0.5)
    assert await engine.apply([change]) == await engine.apply([change]) == [True]
    assert value(meters, "task_retries_total", priority="medium", reason="timeout") == 1
    low = next(task for task in [await claim_one(engine), await claim_one(engine)] if task.priority == 9)
    assert value(meters, "tasks_promoted_total", **{"from": "low", "to": "medium"}) == 1
    clock.advance(31)
    lost = await engine.find(Filter(expired_for=0.0), limit=9)
    await engine.apply([expire(task, random=0.5, grace=0) for task in lost])
    assert value(meters, "tasks_failed_total", reason="lost") == 2
    assert await engine.apply([complete(low)]) == [False]
    assert value(meters, "task_duration_seconds_count", priority="low", status="completed") == 0


async def test_handing_back_is_no_failure_and_nothing_is_remembered_for_ever(clock: ManualClock) -> None:
    meters = Meters(clock=clock)
    engine = Measured(MemoryEngine(clock), meters)
    await engine.add([new(0)])
    await engine.apply([release(await claim_one(engine))])
    await engine.apply([fail(await claim_one(engine), "x")])
    assert value(meters, "tasks_failed_total", reason="error") == 1
    assert not engine.held


async def test_a_heartbeat_that_does_not_arrive_is_counted() -> None:
    class Away(MemoryEngine):
        async def write_note(self, name: str, data: bytes, *, expected: str) -> str:  # noqa: ARG002
            raise StorageError("away")

    meters = Meters()
    with pytest.raises(StorageError):
        await Measured(Away(), meters).write_note(f"{notes.WORKERS}w", b"", expected=ANY)
    assert value(meters, "worker_heartbeat_failures_total") == 1


async def test_a_reason_is_not_parsed_from_the_text_of_an_error(clock: ManualClock) -> None:
    engine = MemoryEngine(clock)
    await engine.add([new()])
    task = await claim_one(engine)
    assert [reason_of(fail(task, "timed out after 1 s", kind=kind)) for kind in REASONS] == list(REASONS)
    assert reason_of(fail(task, "lost: the keys")) == "error"


def test_a_worker_shows_its_meters_on_a_port(unused_tcp_port: int) -> None:
    Meters().serve(unused_tcp_port)
    with urlopen(f"http://127.0.0.1:{unused_tcp_port}/metrics", timeout=TIMEOUT) as response:
        series = shown(response.read().decode())
    assert {"tasks_dlq_total", "task_duration_seconds_bucket", "tasks_promoted_total"} <= series.keys()


# --- the documents


@pytest.fixture
async def series(served: Server, client: Client) -> Shown:
    await client.enqueue("t")
    (task,) = await client.dequeue()
    await client.ack(task)
    return shown(await scrape(served))


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "docs/alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_low_tasks_alert_at_the_same_age_everywhere_and_before_they_go_first() -> None:
    limit = 25 * 60
    assert rules()["QoLowPriorityWaiting"]["expr"].endswith(f"> {limit // 60} * 60")
    panels = json.loads((ROOT / "docs/grafana.json").read_text())["panels"]
    (panel,) = [panel for panel in panels if "queue_age_seconds" in panel["targets"][0]["expr"]]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] == limit
    page = (ROOT / "docs/http.md").read_text()
    assert f"more than {limit // 60} minutes" in page and panel["title"] in page
    times = PromotionTimes()
    assert limit + 5 * 60 == times.low_to_medium + times.medium_to_high


def test_every_alert_is_named_in_the_documentation() -> None:
    page = (ROOT / "docs/http.md").read_text()
    assert [name for name in rules() if f"`{name}`" not in page] == []


def test_there_is_an_alert_for_each_of_the_specification() -> None:
    waits = {name: (rule["labels"], rule.get("for", "0m")) for name, rule in rules().items()}
    critical, warning = {"severity": "critical"}, {"severity": "warning"}
    assert waits == {
        "QoNoActiveWorkers": (critical, "2m"),
        "QoHighPriorityQueueDeep": (critical, "0m"),
        "QoTaskFailureRateHigh": (critical, "0m"),
        "QoDeadLettersGrowing": (critical, "0m"),
        "QoWorkersBusy": (warning, "10m"),
        "QoLowPriorityWaiting": (warning, "0m"),
        "QoQueueDeep": (warning, "0m"),
    }


async def test_failures_in_any_process_are_what_alerts_ask_for(
    served: Server, client: Client, clock: ManualClock
) -> None:
    def total(text: str, name: str, **labels: str) -> float:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

    before = await scrape(served)
    async with Client(client.engine, clock=clock) as elsewhere:
        await elsewhere.submit_many([elsewhere.new_task("t", b"null", max_retries=0) for _ in range(20)])
        for number, task in enumerate(await elsewhere.dequeue(batch_size=20)):
            await (elsewhere.nack(task, "boom") if number % 3 else elsewhere.ack(task))

    async def counted() -> Any:
        found = await scrape(served)
        return found if total(found, "tasks_dlq_total") else None

    after = await until(counted)  # a read serves a second of requests
    failed, dead, completed = (
        total(after, name, **labels) - total(before, name, **labels)
        for name, labels in (
            ("tasks_failed_total", {"reason": "error"}),
            ("tasks_dlq_total", {}),
            ("task_duration_seconds_count", {"status": "completed"}),
        )
    )
    assert (failed, dead, completed) == (13, 13, 7)
    assert failed / (failed + completed) > 0.25 and dead > 10  # within a minute: both alerts fire


@pytest.mark.parametrize("name", rules())
async def test_alerts_ask_for_what_is_shown(name: str, series: Shown) -> None:
    assert problems(str(rules()[name]["expr"]), series) == []


async def test_the_dashboard_asks_for_what_is_shown_and_shows_everything(series: Shown) -> None:
    panels = json.loads((ROOT / "docs/grafana.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert [wrong for each in expressions for wrong in problems(each, series)] == []
    asked = {selector.metric for each in expressions for selector in selectors(each)}
    assert NAMED.keys() <= asked
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(tasks_lost_total[5m])) > 1",
        'max(queue_depth{priority="urgent"}) > 1',
        'max(queue_depth{prio="high"}) > 1',
        "max by (queue) (queue_depth) > 1",
        "max(queue_depth",
    ],
)
async def test_the_checker_finds_what_is_wrong(expression: str, series: Shown) -> None:
    assert problems(expression, series)
