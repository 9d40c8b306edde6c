"""OpenTelemetry spans of submissions and runs, connected by the task's `trace_id`.

This module never imports OpenTelemetry. It uses the library only if the program has imported it, so other programs pay
only for a dict lookup. A `trace_id` from the user is kept, and used as the trace if it is a valid one.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any, Self

from msgspec.structs import replace

from qo.model import NewTask, Task

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")  # W3C traceparent
_TRACE = re.compile(r"[0-9a-f]{32}")
_NOTHING = "0" * 32


class Off:
    """A span that does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def marked(self, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        return tasks


OFF = Off()


def is_on() -> bool:
    """Whether the program traces: otherwise all spans do nothing."""
    return "opentelemetry.trace" in sys.modules and _api() is not None


def submitting(tasks: Sequence[NewTask]) -> "Off | Traced":
    """The span of a submission; `marked` adds its context to the tasks."""
    api = _api()
    if api is None or not tasks:
        return OFF
    first = tasks[0]
    attributes = _attributes(first) | {"messaging.operation.type": "send", "messaging.batch.message_count": len(tasks)}
    return Traced(api, f"enqueue {first.type}", api.SpanKind.PRODUCER, attributes, None)


def running(task: Task) -> "Off | Traced":
    """The span of a handler, in the trace of the submission."""
    api = _api()
    if api is None:
        return OFF
    attributes = _attributes(task) | {"messaging.operation.type": "process", "qo.task.attempt": task.attempt}
    return Traced(api, f"run {task.type}", api.SpanKind.CONSUMER, attributes, _context(api, task))


def call(task: Task, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with running(task):
        return function(*args, **kwargs)


class Traced(Off):
    def __init__(self, api: ModuleType, name: str, kind: Any, attributes: dict[str, Any], context: Any) -> None:
        self._api, self._kind = api, kind
        tracer = api.get_tracer("qo")
        self._span = tracer.start_span(name, context=context, kind=kind, attributes=attributes)
        self._use = api.use_span(self._span, end_on_exit=True)

    def __enter__(self) -> Self:
        self._use.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kind is self._api.SpanKind.CONSUMER:
            self._span.set_attribute("qo.task.status", "completed" if error is None else "failed")
        if error is not None:
            # `use_span` does this only for an Exception, but sys.exit and a timeout are failures too.
            self._span.set_status(self._api.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._use.__exit__(kind, error, trace)

    def marked(self, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        context = self._span.get_span_context()
        if not context.is_valid:
            return tasks
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        return [task if task.trace_id is not None else replace(task, trace_id=parent) for task in tasks]


def _api() -> ModuleType | None:
    """OpenTelemetry, if the program has set a tracer provider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = getattr(api, "_TRACER_PROVIDER", None)  # the public getter would create one
    return None if provider is None else api


def _attributes(task: NewTask | Task) -> dict[str, Any]:
    attributes = {
        "messaging.system": "qo",
        "messaging.destination.name": task.queue,
        "messaging.message.id": task.id,
        "qo.task.type": task.type,
    }
    return attributes if task.trace_id is None else attributes | {"qo.task.trace_id": task.trace_id}


def _context(api: ModuleType, task: Task) -> Any:
    """The parent context of a run. For a trace id without a span, the parent's id is derived from the task's."""
    given = task.trace_id or ""
    if (parent := _PARENT.fullmatch(given)) is not None:
        trace, span, flags = parent.groups()
    elif _TRACE.fullmatch(given.replace("-", "")):
        trace, span, flags = given.replace("-", ""), task.id.replace("-", "")[:16], "01"
    else:
        return None
    if _NOTHING.startswith(span) or trace == _NOTHING:
        return None
    context = api.SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=api.TraceFlags(int(flags, 16)))
    return api.set_span_in_context(api.NonRecordingSpan(context))
