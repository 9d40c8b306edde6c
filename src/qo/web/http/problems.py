"""Errors as responses: one sentence, a code and a field, never a stack trace. A wrong word gets the words that fit."""

import logging
import re
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec.inspect
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi import ResponseSpec
from msgspec import UNSET, Struct, UnsetType
from msgspec.inspect import CollectionType, DictType, EnumType, LiteralType, Metadata, StructType, Type, UnionType

from qo.errors import (
    BadBatch,
    Conflict,
    DamagedTask,
    InvalidSetting,
    InvalidTask,
    InvalidWorkflow,
    KeyReused,
    LeaseLost,
    NameNotFound,
    ObjectTooLarge,
    QoError,
    ScheduleNotFound,
    StorageError,
    TaskNotFound,
    WorkflowNotFound,
    WrongStatus,
    is_size_refusal,
)
from qo.web.http.action_recorder import note_failure

log = logging.getLogger("qo.web")
RETRY_AFTER = {"Retry-After": "1"}
STORE_AWAY = "the store is unreachable, or the outcome of the write is unknown; repeating the request is safe"
TOO_LARGE = (
    "the store refuses this because of its size; submit fewer tasks in one call, or raise the limit of the store"
)
_SERVER_ERROR, _UNAVAILABLE = 500, 503
_MISSING = re.compile(r"Missing required \w+ parameter '(.+?)'")
_WRONG_WORD = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"\[[^]]*\]|[^.\[\]]+")


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request was rejected."""

    error: str
    code: str
    field: str | UnsetType = UNSET


class _Answer(NamedTuple):
    kind: type[QoError]
    status: int
    code: str


_TOO_LARGE = _Answer(ObjectTooLarge, 413, "too_large")
_ANSWERS = (
    _Answer(InvalidTask, 400, "invalid"),
    _Answer(InvalidSetting, 400, "invalid"),
    _Answer(BadBatch, 400, "invalid"),
    _Answer(KeyReused, 409, "key_reused"),
    _Answer(TaskNotFound, 404, "not_found"),
    _Answer(ScheduleNotFound, 404, "not_found"),
    _Answer(NameNotFound, 404, "not_found"),
    _Answer(WorkflowNotFound, 404, "not_found"),
    _Answer(InvalidWorkflow, 400, "invalid"),
    _Answer(WrongStatus, 409, "wrong_status"),
    _Answer(LeaseLost, 409, "lease_lost"),
    _Answer(Conflict, 409, "conflict"),
    _Answer(DamagedTask, 500, "damaged"),
    _TOO_LARGE,
    _Answer(StorageError, 503, "store_unavailable"),
)
_CODES = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "wrong_status",
    413: "too_large",
    415: "unsupported_media_type",
    429: "too_many_requests",
    503: "unavailable",
}
_MEANINGS = {
    400: "The request is invalid; `field` names the field.",
    401: "The token is missing, unknown or expired.",
    403: "The scopes or limits of the token do not allow this.",
    404: "There is no such task, batch, schedule or workflow.",
    405: "The path does not support this method.",
    409: "The status of the task does not allow this, or the idempotency key belongs to a task with another payload.",
    413: "The body is larger than the limit, or the store refuses a task of this size.",
    415: "The body is not application/json.",
    429: "The rate limit of the token is exceeded; see Retry-After.",
    503: "The store is unreachable, or the outcome of the write is unknown; repeat after Retry-After.",
}


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The error responses of a route, for OpenAPI. Some are common to all routes."""
    return {
        status: ResponseSpec(Problem, generate_examples=False, description=_MEANINGS[status])
        for status in sorted({*statuses, 400, 401, 403, 429, 503})
    }


def of_ours(request: Request[Any, Any, Any], error: QoError) -> Response[Problem]:
    note_failure(request, error)
    answer = next((answer for answer in _ANSWERS if isinstance(error, answer.kind)), None)
    if answer is None:
        return of_bugs(request, error)
    # The message of a storage error may contain the address of the store, so it is only logged.
    if is_size_refusal(error):  # also if a part is stored: repeating the request would not help
        log.warning("%s", error)
        return _response(_TOO_LARGE.status, Problem(error=TOO_LARGE, code=_TOO_LARGE.code), {})
    if answer.status == _UNAVAILABLE:
        log.warning("the store is unreachable: %s", error)
        return _response(answer.status, Problem(error=STORE_AWAY, code=answer.code), dict(RETRY_AFTER))
    problem = Problem(error=str(error), code=answer.code, field=getattr(error, "field", UNSET))
    return _response(answer.status, problem, {})


def of_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """Errors of Litestar: unknown paths, invalid parameters, bodies that are too large."""
    if error.status_code >= _SERVER_ERROR and error.status_code != _UNAVAILABLE:
        return of_bugs(request, error)
    message: str = error.detail or "refused"
    field: str | UnsetType = UNSET
    if missing := _MISSING.match(message):
        message, field = f"{missing[1]}: is missing", missing[1]
    if isinstance(error.extra, list) and error.extra and isinstance(error.extra[0], dict):
        first = error.extra[0]
        field = str(first.get("key", "body")).removeprefix("data.").replace("data", "body")
        message = "is missing" if first.get("message") == f"'{first.get('key')}'" else str(first.get("message"))
        message = f"{field}: {_with_words(request, field, message)}"
    headers = {name: value for name, value in (error.headers or {}).items() if name.lower() != "content-type"}
    code = _CODES.get(error.status_code, "refused")
    return _response(error.status_code, Problem(error=message, code=code, field=field), headers)


def _with_words(request: Request[Any, Any, Any], parameter: str, message: str) -> str:
    """The problem of a query parameter, with the words that it accepts if it is a wrong word."""
    declared = request.route_handler.parsed_fn_signature.parameters.get(parameter)
    return message if declared is None else name_words(message, declared.annotation, "")


def of_bugs(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Unexpected errors: logged, not shown to the caller."""
    log.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=error)
    return _response(500, Problem(error="internal error; see the log of the server", code="internal"), {})


def _response(status: int, problem: Problem, headers: dict[str, str]) -> Response[Problem]:
    return Response(problem, status_code=status, headers=headers, media_type="application/json")


def name_words(problem: str, kind: Any, place: str) -> str:
    """The problem, with all accepted words if it is a wrong word at `place` of `kind`, such as `tasks[0].priority`."""
    found = _WRONG_WORD.fullmatch(problem)
    words = _words(kind, place) if found else ()
    return f"{found['value']} is not one of: {', '.join(words)}" if found and words else problem


@lru_cache(maxsize=256)
def _words(kind: Any, place: str) -> tuple[str, ...]:
    types = _options_of(msgspec.inspect.type_info(kind))
    for step in _STEP.findall(place):
        types = [option for each in types for inner in _inside(each, step) for option in _options_of(inner)]
    return tuple(dict.fromkeys(str(word) for each in types for word in _own_words(each)))


def _options_of(kind: Type) -> list[Type]:
    if isinstance(kind, Metadata):
        return _options_of(kind.type)
    if isinstance(kind, UnionType):
        return [option for each in kind.types for option in _options_of(each)]
    return [kind]


def _inside(kind: Type, step: str) -> list[Type]:
    """The types of what is below one step of a place."""
    if isinstance(kind, StructType):
        return [field.type for field in kind.fields if field.encode_name == step]
    if isinstance(kind, CollectionType) and step.startswith("["):
        return [kind.item_type]
    return [kind.value_type] if isinstance(kind, DictType) and step.startswith("[") else []


def _own_words(kind: Type) -> list[Any]:
    if isinstance(kind, LiteralType):
        return list(kind.values)
    if isinstance(kind, EnumType):
        return [member.value for member in kind.cls]
    if isinstance(kind, CollectionType):  # an element of a query parameter has the place of its list
        return [word for each in _options_of(kind.item_type) for word in _own_words(each)] or ["a list"]
    return []
