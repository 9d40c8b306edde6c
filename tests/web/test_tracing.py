import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from qo import tracing
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import Fail
from qo.tasks import Registry, make_handler, make_options
from qo.testing.samples import new
from qo.worker import Worker, WorkerSettings


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # for one test: the real way is once a process
    yield exporter
    provider.shutdown()


seen: list[int] = []


async def good() -> None:
    seen.append(trace.get_current_span().get_span_context().trace_id)


def plain() -> None:
    seen.append(trace.get_current_span().get_span_context().trace_id)


def bad() -> None:
    raise Fail("no such address")


async def work(client: Client) -> None:
    registry = Registry()
    for function in (good, plain, bad):
        registry.add(make_handler(function, type=function.__name__, options=make_options(function)))
    await Worker(client, registry, WorkerSettings(drain=True)).run()


def of_kind(spans: Sequence[ReadableSpan], kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in spans if span.kind is kind]


@pytest.mark.parametrize("type", ["good", "plain"])
async def test_a_run_belongs_to_the_trace_that_submitted_it(exporter: InMemorySpanExporter, type: str) -> None:
    seen.clear()
    async with Client(MemoryEngine()) as client:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            await client.enqueue(type, {}, queue="mail")
        await work(client)
    spans = exporter.get_finished_spans()
    (sent,) = of_kind(spans, SpanKind.PRODUCER)
    (run,) = of_kind(spans, SpanKind.CONSUMER)
    assert sent.parent is not None and sent.parent.span_id == request.get_span_context().span_id
    assert run.parent is not None and run.context is not None
    assert run.parent.span_id == sent.context.span_id
    assert seen == [request.get_span_context().trace_id]
    assert run.name == f"run {type}" and run.attributes is not None
    assert (run.attributes["qo.task.type"], run.attributes["messaging.destination.name"]) == (type, "mail")
    assert (run.attributes["qo.task.attempt"], run.attributes["qo.task.status"]) == (1, "completed")


async def test_a_failed_run_is_an_error_in_the_trace(exporter: InMemorySpanExporter) -> None:
    async with Client(MemoryEngine()) as client:
        await client.enqueue("bad", {})
        await work(client)
    (run,) = of_kind(exporter.get_finished_spans(), SpanKind.CONSUMER)
    assert run.status.status_code is StatusCode.ERROR and run.attributes is not None
    assert run.status.description == "Fail: no such address"
    assert run.attributes["qo.task.status"] == "failed"


@pytest.mark.parametrize("given", ["4bf92f3577b34da6a3ce929d0e0e4736", "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"])
async def test_a_trace_id_of_the_users_own_is_kept_and_joined(exporter: InMemorySpanExporter, given: str) -> None:
    async with Client(MemoryEngine()) as client:
        submitted = await client.enqueue("good", {}, trace_id=given)
        await work(client)
        task = await client.get(submitted.id)
    (run,) = of_kind(exporter.get_finished_spans(), SpanKind.CONSUMER)
    assert task is not None and task.trace_id == given
    assert run.context is not None and run.context.trace_id == int(given.replace("-", ""), 16)


@pytest.mark.parametrize("given", ["order 66", "0" * 32, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é"])
async def test_a_trace_id_that_is_not_a_trace_is_an_attribute(exporter: InMemorySpanExporter, given: str) -> None:
    async with Client(MemoryEngine()) as client:
        await client.enqueue("good", {}, trace_id=given)
        await work(client)
    (run,) = of_kind(exporter.get_finished_spans(), SpanKind.CONSUMER)
    assert run.parent is None and run.attributes is not None
    assert run.attributes["qo.task.trace_id"] == given


async def test_many_tasks_submitted_at_once_share_one_span(exporter: InMemorySpanExporter) -> None:
    async with Client(MemoryEngine()) as client:
        submitted = await client.submit_many([new(n) for n in range(3)])
        tasks = await client.engine.get([each.id for each in submitted])
    (sent,) = exporter.get_finished_spans()
    assert sent.attributes is not None and sent.attributes["messaging.batch.message_count"] == 3
    assert len({task.trace_id for task in tasks if task is not None}) == 1


def test_without_a_provider_nothing_is_traced() -> None:
    assert tracing.submitting([new()]) is tracing.OFF


def test_qo_itself_never_imports_opentelemetry() -> None:
    script = "import sys, qo, qo.worker, qo.tracing; assert not [m for m in sys.modules if 'opentelemetry' in m]"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
