"""Ownership of the object by a store in mode `local`.

A local store answers before the bucket has its changes, and loses them if another process writes the object first. So
each flush reserves the object for a term, and every other process refuses to write until the term ends.
"""

import os
import socket
from pathlib import Path

import msgspec
from msgspec import Struct

from qo.clock import iso
from qo.engines.commit_loop import PendingCall
from qo.engines.sqlite_object.image import Image
from qo.errors import Refused
from qo.ids import new_token
from qo.model import ANY, UNREADABLE

NOTE = "local-store"
_MIN_TERM = 30.0  # seconds after a flush
_TERM_INTERVALS = 3.0  # a term lasts three flush intervals, if that is longer


class Owner(Struct, frozen=True, kw_only=True):
    id: str = ""
    host: str = ""
    pid: int = 0
    pid_namespace: str = ""  # process ids are unique only within a namespace
    until: float = 0.0  # by the store's clock


def new_owner() -> Owner:
    return Owner(id=new_token(), host=socket.gethostname(), pid=os.getpid(), pid_namespace=_pid_namespace())


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return ""


def term_of(interval: float) -> float:
    """How many seconds after a flush the object stays owned."""
    return max(_MIN_TERM, _TERM_INTERVALS * interval) if interval < float("inf") else _MIN_TERM


def own(image: Image, owner: Owner) -> None:
    """Record the owner in the next upload."""
    data = msgspec.json.encode(owner)
    image.do([PendingCall(lambda table: table.write_note(NOTE, data, ANY))])


def disown(image: Image) -> None:
    image.do([PendingCall(lambda table: table.drop_note(NOTE))])


def check_owner(image: Image, key: str, now: float, own_id: str = "") -> None:
    """Raise Refused while another store, whose process may be alive, owns the object."""
    note = image.reader.read_note(NOTE)
    if note is None:
        return
    try:
        owner = msgspec.json.decode(note.data, type=Owner)
    except UNREADABLE:  # a damaged note does not block writers
        return
    if owner.id == own_id or owner.until <= now or _has_ended(owner):
        return
    raise Refused(
        f"{key} belongs to a store in mode `local` (process {owner.pid} on {owner.host}) until {iso(owner.until)}: "
        "another writer would discard changes that it has not flushed yet; close it, or open it in mode `durable`"
    )


def _has_ended(owner: Owner) -> bool:
    """Whether the owner's process ran on this machine and has ended."""
    if (owner.host, owner.pid_namespace) != (socket.gethostname(), _pid_namespace()):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
