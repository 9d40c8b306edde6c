"""Each transition of a task is one line in the log, whichever process makes it."""

import json
import logging
from typing import Any

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import Fail
from qo.log_output import JsonFormatter
from qo.model import RetryPolicy
from qo.monitor import Monitor
from qo.tasks import Registry, make_handler, make_options
from qo.testing import ManualClock
from qo.transitions import shown_duration
from qo.worker import Worker, WorkerSettings
from tests.web.serving import served

WORK = "/internal/workers"
FIELDS = {"transition", "task_id", "type", "queue", "attempt", "trace_id", "status"}


@pytest.fixture(autouse=True)
def _every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qo.tasks")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """As a machine reads them."""
    told = [record for record in caplog.records if record.name == "qo.tasks"]
    read = [json.loads(JsonFormatter().format(record)) for record in told]
    assert all(line.keys() >= FIELDS for line in read)
    return read


def transitions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line["transition"] for line in lines(caplog)]


async def test_a_worker_logs_each_transition_of_its_tasks(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def flaky() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("no luck")

    def hopeless() -> None:
        raise Fail("never")

    registry = Registry()
    quick = RetryPolicy(initial=0.01, jitter=0.0)
    for function in (flaky, hopeless):
        registry.add(make_handler(function, type=function.__name__, options=make_options(function)))
    async with Client(MemoryEngine()) as client:
        flaky_id = (await client.enqueue("flaky", {}, retry=quick, trace_id="trace-1")).id
        await Worker(client, registry, WorkerSettings(id="w1", drain=True)).run()
        told = lines(caplog)
        assert [line["transition"] for line in told] == [
            "queued", "started", "retried", "started", "retried", "started", "completed",
        ]  # fmt: skip
        assert {(line["task_id"], line["trace_id"]) for line in told} == {(flaky_id, "trace-1")}
        assert all(line["worker_id"] == "w1" for line in told[1:])
        assert [line["attempt"] for line in told] == [0, 1, 1, 2, 2, 3, 3]
        assert all(line["duration"] >= 0 for line in told if line["transition"] in {"retried", "completed"})
        assert [line["level"] for line in told[:3]] == ["info", "info", "warning"] and told[-1]["level"] == "info"
        assert "failed: ValueError: no luck; retrying in " in told[2]["message"]
        assert told[2]["message"].endswith("(attempt 2 of 4)") and told[2]["reason"] == "error"
        assert " completed in " in told[-1]["message"]
        caplog.clear()
        await client.enqueue("hopeless", {})
        await Worker(client, registry, WorkerSettings(drain=True)).run()
    last = lines(caplog)[-1]
    assert (last["transition"], last["level"], last["error"]) == ("failed", "error", "never")
    assert "failed permanently after 1 attempt: never" in last["message"]


def test_a_server_logs_each_transition_it_makes(caplog: pytest.LogCaptureFixture) -> None:
    with served(MemoryEngine()) as api:
        for type_ in ("a", "b", "c"):
            api.post("/api/v1/tasks", {"task_type": type_, "max_retries": 1})
        cancelled = api.post("/api/v1/tasks", {"task_type": "d", "required_capabilities": ["x"]}).json()["task_id"]
        api.client.delete(f"/api/v1/tasks/{cancelled}")
        api.client.delete(f"/api/v1/tasks/{cancelled}")  # again: nothing happens
        api.post("/api/v1/tasks/" + cancelled + "/replay")
        worker = api.post(f"{WORK}/register", {}).json()["worker_id"]
        tasks = api.post(f"{WORK}/{worker}/poll", {"available_capacity": 9}).json()["tasks"]
        ids = {task["task_type"]: task["task_id"] for task in tasks}
        for type_, status, retriable in (("a", "completed", True), ("b", "failed", True), ("c", "failed", False)):
            report = {"task_id": ids[type_], "status": status, "retriable": retriable, "error": "boom"}
            for _ in range(2):
                api.post(f"{WORK}/{worker}/result", report)
    told = lines(caplog)
    kinds = [line["transition"] for line in told]
    assert kinds == ["queued"] * 4 + ["cancelled", "queued"] + ["started"] * 3 + ["completed", "retried", "failed"]
    assert {line["worker_id"] for line in told[-6:]} == {worker}


async def test_the_process_that_finds_a_lost_task_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    client = Client(MemoryEngine(clock), clock=clock)
    await client.enqueue("t", max_retries=1)
    for _ in range(2):
        await client.dequeue("t", lease=10)
        clock.advance(60)
        await Monitor(client, id="m", clock=clock).check_once()
        clock.advance(60)
    assert transitions(caplog) == ["queued", "started", "lost", "started", "failed"]
    lost, failed = lines(caplog)[2], lines(caplog)[4]
    assert lost["reason"] == failed["reason"] == "lost" and "retrying in" in lost["message"]


def test_durations_are_shown_as_people_say_them() -> None:
    spans = [0.0004, 0.0234, 0.6, 1.26, 59.9, 90.0]
    assert [shown_duration(span) for span in spans] == ["0 ms", "23 ms", "0.6 s", "1.3 s", "59.9 s", "1.5 min"]
