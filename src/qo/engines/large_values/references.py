"""What a task holds in place of a payload or result that lies elsewhere, told apart from every value a caller can send.

No JSON text and no raw value of the codec begins with MARK. A caller of the port may send any bytes, though: those that
begin so are kept behind a second mark, so that nobody can make up a reference.

A task object may also be written past qo. So a reference counts only if it names a value of the task that holds it:
`data/{first digit of its id}/{its id}/…`, or a payload that was submitted for it as the follower of another task. What
refers to anything else is damaged: it is neither read nor removed.
"""

import re
from typing import Literal

from qo.checksum import checksum_of
from qo.model import ID_PATTERN

Kind = Literal["payload", "result"]

MARK = b"\x01qo\x01"
DATA = "data/"
_REFERENCE, _LITERAL = MARK + b"@", MARK + b"="
_FOLLOWER_NAME = 64  # digits: an id and 128 random bits
_KEY = re.compile(
    rf"{DATA}([0-9a-f])/({ID_PATTERN})/(payload_(?:[0-9a-f]{{32}}){{1,2}}|result_[0-9a-f]{{32}})", re.ASCII
)


def data_key(task_id: str, kind: Kind, name: str) -> str:
    return f"{DATA}{task_id[0]}/{task_id}/{kind}_{name}"


def follower_name(next_id: str, token: str) -> str:
    """The name of a payload whose task may follow the one that the key names, under an idempotency key."""
    return next_id.replace("-", "") + token


def follower_in(key: str) -> str | None:
    """The id of the task that may hold this payload instead of the one that the key names."""
    name = key.rpartition("_")[2]
    if len(name) != _FOLLOWER_NAME:
        return None
    return "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:32]))


def task_id_in(key: str) -> str | None:
    """None: not one of ours."""
    found = _KEY.fullmatch(key)
    return found[2] if found and found[1] == found[2][0] else None


def reference(key: str, value: bytes) -> bytes:
    """Stands for the value that lies under this key, and carries its checksum."""
    return _REFERENCE + f"{key}#{checksum_of(value)}".encode()


def referred(stored: bytes) -> str | None:
    """The key a stored value names, whatever that is; None if it is a value itself."""
    if not stored.startswith(_REFERENCE):
        return None
    return stored[len(_REFERENCE) :].decode("ascii", "replace").partition("#")[0]


def own_key(stored: bytes, task_id: str, kind: Kind) -> str | None:
    """The key a stored value of this task refers to; None if it is a value itself, or names what is not the task's."""
    key = referred(stored)
    if key is None or not key.rpartition("/")[2].startswith(f"{kind}_"):
        return None
    owner = task_id_in(key)
    return key if owner is not None and task_id in (owner, follower_in(key)) else None


def is_intact(stored: bytes, value: bytes) -> bool:
    """Whether this is the value that was put aside. References without a checksum were written at first."""
    checksum = stored.partition(b"#")[2].decode("ascii", "replace")
    return not checksum or checksum == checksum_of(value)


def literal(value: bytes) -> bytes:
    return _LITERAL + value if value.startswith(MARK) else value


def value_of(stored: bytes) -> bytes:
    return stored.removeprefix(_LITERAL)
