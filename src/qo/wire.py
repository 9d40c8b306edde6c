"""How the engine port travels over HTTP: one call, one POST, msgpack in both directions.

A room of its own because both ends read it: `engines.http` asks, `web.remote` answers, neither imports the other.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from qo import errors
from qo.errors import InvalidTask, QoError
from qo.model import Added, Change, ClaimRequest, CountKey, Counts, Event, Filter, NewTask, Note, Status, Task

PROTOCOL: Final = 1
PATH: Final = "/internal/engine"
MEDIA_TYPE: Final = "application/msgpack"
BODY_LIMIT: Final = 8 * 1024 * 1024  # bytes a server reads
BATCH_BYTES: Final = BODY_LIMIT // 2  # bytes a client puts into one batch, give or take its last task
BATCH_ITEMS: Final = 5000
LONGEST_WAIT: Final = 25.0  # seconds a server keeps a caller waiting; proxies cut the line not much later

REQUEST: Final = "Qo-Request"  # names a write, so that its repeat is recognised
AGAIN: Final = "Qo-Again"  # the request is a repeat: an earlier answer may have been lost
CUT: Final = "Qo-Cut"  # the answer ends early, because it would be too large: ask for the rest
REMEMBERED: Final = "Qo-Remembered"  # the answer is the one that was given, or would have been, the first time


class Find(Struct, frozen=True, kw_only=True):
    where: Filter
    limit: int
    after: str = ""
    created_before: float | None = None


class Wait(Struct, frozen=True, kw_only=True):
    want: ClaimRequest
    timeout: float


class WriteNote(Struct, frozen=True, kw_only=True):
    name: str
    data: bytes
    expected: str


class Hello(Struct, frozen=True, kw_only=True):
    """What a server says of itself, for `qo doctor`."""

    protocol: int = PROTOCOL
    version: str = ""
    now: float | None = None  # by its store's clock


class Trouble(Struct, frozen=True, kw_only=True):
    """An error, so that the other end can raise the same."""

    kind: str
    message: str
    field: str = ""


CountRows = list[tuple[str, str, Status, int, int]]  # the last is how many

# What is asked and what is answered. Order matters to nobody; the names are the port's.
REQUESTS: Final[dict[str, Any]] = {
    "hello": None,
    "add": list[NewTask],
    "claim": ClaimRequest,
    "apply": list[Change],
    "delete": list[str],
    "get": list[str],
    "find": Find,
    "count": None,
    "history": str,
    "wait": Wait,
    "read_note": str,
    "write_note": WriteNote,
    "notes": str,
    "drop_note": str,
}
ANSWERS: Final[dict[str, Any]] = {
    "hello": Hello,
    "add": list[Added],
    "claim": list[Task],
    "apply": list[bool],
    "delete": list[bool],
    "get": list[Task | None],
    "find": list[Task],
    "count": CountRows,
    "history": list[Event],
    "wait": None,
    "read_note": Note | None,
    "write_note": str,
    "notes": list[Note],
    "drop_note": None,
}
WRITES: Final = frozenset({"add", "claim", "apply", "delete", "write_note"})  # whose answers a server remembers

# What crosses the line as itself; anything else is the server's own trouble.
KINDS: Final[dict[str, type[QoError]]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidTask,
        errors.InvalidSetting,
        errors.BadBatch,
        errors.Conflict,
        errors.StorageError,
        errors.OutcomeUnknown,
    )
}

encode = msgspec.msgpack.encode
_requests = {name: msgspec.msgpack.Decoder(kind) for name, kind in REQUESTS.items()}
_answers = {name: msgspec.msgpack.Decoder(kind) for name, kind in ANSWERS.items()}
_trouble = msgspec.msgpack.Decoder(Trouble)


def decode_request(call: str, body: bytes) -> Any:
    return _requests[call].decode(body)


def decode_answer(call: str, body: bytes) -> Any:
    return _answers[call].decode(body)


def rows_of(counts: Counts) -> CountRows:
    return [(*lane, number) for lane, number in counts.items()]


def counts_of(rows: CountRows) -> Counts:
    return {CountKey(queue, type, status, priority): number for queue, type, status, priority, number in rows}


def trouble_of(error: QoError) -> Trouble:
    kind = next(name for name in (each.__name__ for each in type(error).__mro__) if name in KINDS or name == "QoError")
    return Trouble(kind=kind, message=str(error), field=error.field if isinstance(error, InvalidTask) else "")


def error_of(body: bytes) -> QoError | None:
    """The error a server describes; None if it describes none, because something else stands between us and it."""
    try:
        trouble = _trouble.decode(body)
    except msgspec.DecodeError:
        return None
    if trouble.kind == InvalidTask.__name__:
        return InvalidTask(trouble.field, trouble.message.removeprefix(f"{trouble.field}: "))
    return KINDS.get(trouble.kind, QoError)(trouble.message)
