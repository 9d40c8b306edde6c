"""References: what a task stores instead of a large payload or result.

A reference begins with MARK, and no JSON text and no raw value of the codec does. A caller of the port may send any
bytes, so a value that begins with MARK is stored behind a second mark. This way no caller can forge a reference.

Other programs may write task objects too. So a reference is valid only if it names a value of its own task:
`data/{first digit of its id}/{its id}/…`, or a payload that was submitted for it as the successor of another task. Any
other reference is treated as damaged: its object is neither read nor removed.
"""

import re
from typing import Literal

from qo.checksum import checksum_of
from qo.model import ID_PATTERN

Kind = Literal["payload", "result"]

MARK = b"\x01qo\x01"
DATA = "data/"
_REFERENCE, _LITERAL = MARK + b"@", MARK + b"="
_FOLLOWER_NAME_LENGTH = 64  # digits: an id and 128 random bits
_KEY = re.compile(
    rf"{DATA}([0-9a-f])/({ID_PATTERN})/(payload_(?:[0-9a-f]{{32}}){{1,2}}|result_[0-9a-f]{{32}})", re.ASCII
)


def data_key(task_id: str, kind: Kind, name: str) -> str:
    return f"{DATA}{task_id[0]}/{task_id}/{kind}_{name}"


def follower_name(next_id: str, token: str) -> str:
    """The name of a payload that may belong to a successor, under an idempotency key, of the task in its key."""
    return next_id.replace("-", "") + token


def follower_in(key: str) -> str | None:
    """The id of the successor that may hold this payload instead of the task in its key."""
    name = key.rpartition("_")[2]
    if len(name) != _FOLLOWER_NAME_LENGTH:
        return None
    return "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:32]))


def task_id_in(key: str) -> str | None:
    """The id in the key of a blob. None: the object is foreign."""
    found = _KEY.fullmatch(key)
    return found[2] if found and found[1] == found[2][0] else None


def reference(key: str, value: bytes) -> bytes:
    """A reference to the value under this key, with its checksum."""
    return _REFERENCE + f"{key}#{checksum_of(value)}".encode()


def referred(stored: bytes) -> str | None:
    """The key in a reference, valid or not. None: this is a value."""
    if not stored.startswith(_REFERENCE):
        return None
    return stored[len(_REFERENCE) :].decode("ascii", "replace").partition("#")[0]


def own_key(stored: bytes, task_id: str, kind: Kind) -> str | None:
    """The key in a valid reference of this task. None: this is a value, or the reference is not valid."""
    key = referred(stored)
    if key is None or not key.rpartition("/")[2].startswith(f"{kind}_"):
        return None
    owner = task_id_in(key)
    return key if owner is not None and task_id in (owner, follower_in(key)) else None


def is_intact(stored: bytes, value: bytes) -> bool:
    """Whether the value has the checksum of its reference. References of the first versions have no checksum."""
    checksum = stored.partition(b"#")[2].decode("ascii", "replace")
    return not checksum or checksum == checksum_of(value)


def literal(value: bytes) -> bytes:
    return _LITERAL + value if value.startswith(MARK) else value


def value_of(stored: bytes) -> bytes:
    return stored.removeprefix(_LITERAL)
