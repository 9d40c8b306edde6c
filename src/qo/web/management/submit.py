"""Create tasks."""

from typing import Any

from litestar import Request, post
from litestar.params import JSONBody
from msgspec import Struct

from qo.client import parse_instant
from qo.clock import iso
from qo.errors import InvalidTask
from qo.model import SLOW_POLICY, OnDuplicate, UniqueUntil
from qo.web.http.access import CHECKED, SUBMIT, caller_of
from qo.web.http.openapi import Attempts, BatchName, Instant, Seconds, TypeName
from qo.web.http.problems import problems
from qo.web.http.request import UniqueBy, encode_payload, rename_field, trace_of, unique_of, with_own_key
from qo.web.http.server import log_transition, server_of
from qo.web.http.visibility import check_may_submit, found
from qo.web.management.views import Word, word

MAX_ATTEMPTS = 10_000
_NAMES = {
    "max_retries": "options.maxAttempts",
    "run_at": "options.runAfter",
    "batch": "options.batch",
    "unique": "options.unique",
    "unique.by": "options.unique.by",
    "unique.within": "options.unique.withinSeconds",
}


class ManagedUnique(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """At most one task of a type with the same payload, or with the same fields of it. As in `/api/v1/tasks`."""

    by: UniqueBy = "args"
    within_seconds: Seconds | None = None
    until: UniqueUntil = "finished"
    on_duplicate: OnDuplicate = "keep"


class EnqueueOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    max_attempts: Attempts = 3
    run_after: Instant | None = None
    batch: BatchName | None = None
    unique: ManagedUnique | None = None


class NewManagedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    type: TypeName
    payload: Any
    options: EnqueueOptions = EnqueueOptions()


class CreatedTask(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    type: str
    status: Word
    created_at: str


@post("/", opt=SUBMIT | CHECKED, responses=problems(409, 413, 415))
async def create_task(request: Request[Any, Any, Any], data: JSONBody[NewManagedTask]) -> CreatedTask:
    """Create a task. If its unique arguments belong to an existing task, the response shows that one."""
    client = server_of(request).client
    if not 1 <= data.options.max_attempts <= MAX_ATTEMPTS:
        raise InvalidTask("options.maxAttempts", f"must be a whole number from 1 to {MAX_ATTEMPTS:,}")
    try:
        task = client.new_task(
            data.type,
            encode_payload(data.payload),
            max_retries=data.options.max_attempts - 1,
            retry=SLOW_POLICY,
            run_at=None if data.options.run_after is None else parse_instant("run_at", data.options.run_after),
            trace_id=trace_of(request),
            batch=data.options.batch,
            unique=unique_of(data.options.unique),
        )
    except InvalidTask as error:
        raise rename_field(error, _NAMES) from error
    check_may_submit(request, [task])
    submitted = await client.submit(with_own_key(task, caller_of(request)))
    stored = await found(request, submitted.id)  # the store sets created_at
    log_transition(request, "queued", stored)
    return CreatedTask(id=stored.id, type=stored.type, status=word(stored), created_at=iso(stored.created_at))
