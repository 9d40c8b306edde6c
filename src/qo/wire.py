"""The engine port over HTTP: each call is one POST, with msgpack in both directions.

Shared by both ends, `engines.http` and `web.remote`, neither of which imports the other.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from qo import errors
from qo.errors import InvalidTask, QoError
from qo.model import Added, Change, ClaimRequest, CountKey, Counts, Event, Filter, NewTask, Note, Status, Task

PROTOCOL: Final = 2
PATH: Final = "/internal/engine"
MEDIA_TYPE: Final = "application/msgpack"
MAX_PAYLOAD_LIMIT: Final = 16 * 1024 * 1024  # bytes of one value that a server accepts, if its store does
BODY_LIMIT: Final = MAX_PAYLOAD_LIMIT + 1024 * 1024  # bytes of a request
BATCH_BYTES: Final = 4 * 1024 * 1024  # bytes in one batch of a client, unless a single item is larger
BATCH_ITEMS: Final = 5000
LONGEST_WAIT: Final = 25.0  # seconds for which a server holds a request; proxies close idle connections soon after

REQUEST: Final = "Qo-Request"  # the id of a write, by which a repeat is recognised
AGAIN: Final = "Qo-Again"  # the request is a repeat, because the first response may be lost
CUT: Final = "Qo-Cut"  # the response is incomplete, because it would be too large: request the rest
PAYLOAD_LIMIT: Final = "Qo-Payload-Limit"  # bytes of one value that the server and its store accept
REMEMBERED: Final = "Qo-Remembered"  # the response repeats the one to the first request


class Find(Struct, frozen=True, kw_only=True):
    where: Filter
    limit: int
    after: str = ""
    created_before: float | None = None


class Wait(Struct, frozen=True, kw_only=True):
    request: ClaimRequest
    timeout: float


class WriteNote(Struct, frozen=True, kw_only=True):
    name: str
    data: bytes
    expected: str


class Hello(Struct, frozen=True, kw_only=True):
    """The description of a server, for `qo doctor`."""

    protocol: int = PROTOCOL
    version: str = ""
    now: float | None = None  # by its store's clock


class Trouble(Struct, frozen=True, kw_only=True):
    """An error, which the client raises again."""

    kind: str
    message: str
    field: str = ""


class AddedRecord(Struct, frozen=True, kw_only=True):
    """`Added`, with field names: msgpack would encode a tuple without them."""

    id: str
    new: bool


class NoteRecord(Struct, frozen=True, kw_only=True):
    """`Note`, with field names."""

    name: str
    data: bytes
    version: str


class CountRecord(Struct, frozen=True, kw_only=True):
    """One entry of `Counts`."""

    queue: str
    type: str
    status: Status
    priority: int
    tasks: int


# The types of requests and responses, by the names of the port's methods.
REQUESTS: Final[dict[str, Any]] = {
    "hello": None,
    "add": list[NewTask],
    "claim": ClaimRequest,
    "apply": list[Change],
    "delete": list[str],
    "get": list[str],
    "find": Find,
    "count": str | None,  # a batch; None: all tasks
    "history": str,
    "wait": Wait,
    "read_note": str,
    "write_note": WriteNote,
    "notes": str,
    "drop_note": str,
}
ANSWERS: Final[dict[str, Any]] = {
    "hello": Hello,
    "add": list[AddedRecord],
    "claim": list[Task],
    "apply": list[bool],
    "delete": list[bool],
    "get": list[Task | None],
    "find": list[Task],
    "count": list[CountRecord],
    "history": list[Event],
    "wait": None,
    "read_note": NoteRecord | None,
    "write_note": str,
    "notes": list[NoteRecord],
    "drop_note": None,
}
WRITES: Final = frozenset({"add", "claim", "apply", "delete", "write_note"})  # calls whose responses a server caches

# The errors that keep their class over HTTP. All others become a QoError.
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


def encode_answer(call: str, answer: Any) -> bytes:
    """The result of a call as bytes."""
    to_records = _TO_RECORDS.get(call)
    return encode(answer if to_records is None else to_records(answer))


def decode_request(call: str, body: bytes) -> Any:
    return _requests[call].decode(body)


def decode_answer(call: str, body: bytes) -> Any:
    """The result of a call from bytes. Raises ValueError if they are not valid."""
    answer = _answers[call].decode(body)
    from_records = _FROM_RECORDS.get(call)
    return answer if from_records is None else from_records(answer)


def _note_record(note: Note | None) -> NoteRecord | None:
    return None if note is None else NoteRecord(name=note.name, data=note.data, version=note.version)


def _note(record: NoteRecord | None) -> Note | None:
    return None if record is None else Note(name=record.name, data=record.data, version=record.version)


def _counts(records: list[CountRecord]) -> Counts:
    return {CountKey(each.queue, each.type, each.status, each.priority): each.tasks for each in records}


def _count_records(counts: Counts) -> list[CountRecord]:
    return [
        CountRecord(queue=key.queue, type=key.type, status=key.status, priority=key.priority, tasks=number)
        for key, number in counts.items()
    ]


_TO_RECORDS: Final[dict[str, Callable[[Any], Any]]] = {
    "add": lambda answer: [AddedRecord(id=added.id, new=added.new) for added in answer],
    "count": _count_records,
    "read_note": _note_record,
    "notes": lambda answer: [_note_record(note) for note in answer],
}
_FROM_RECORDS: Final[dict[str, Callable[[Any], Any]]] = {
    "add": lambda answer: [Added(id=added.id, new=added.new) for added in answer],
    "count": _counts,
    "read_note": _note,
    "notes": lambda answer: [_note(note) for note in answer],
}


def trouble_of(error: QoError) -> Trouble:
    kind = next(name for name in (each.__name__ for each in type(error).__mro__) if name in KINDS or name == "QoError")
    return Trouble(kind=kind, message=str(error), field=error.field if isinstance(error, InvalidTask) else "")


def error_of(body: bytes) -> QoError | None:
    """The error in a response of a server; None if something else, such as a proxy, responded."""
    try:
        trouble = _trouble.decode(body)
    except msgspec.DecodeError:
        return None
    if trouble.kind == InvalidTask.__name__:
        return InvalidTask(trouble.field, trouble.message.removeprefix(f"{trouble.field}: "))
    return KINDS.get(trouble.kind, QoError)(trouble.message)
