"""What operations report to the command line: the progress of long ones, and the findings of `qo doctor`.

The command line draws progress as a bar; servers and workers show nothing.
"""

from collections.abc import Callable
from contextvars import ContextVar

from msgspec import Struct

# Called with the name of the operation, the bytes done and the bytes in total.
SHOW: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("SHOW", default=None)


def show(operation: str, done: int, total: int) -> None:
    """Report how far an operation is. Call it at the end too, with `done` equal to `total`."""
    shown = SHOW.get()
    if shown is not None:
        shown(operation, done, total)


class Finding(Struct, frozen=True):
    name: str
    ok: bool | None  # None: it works, with a remark
    detail: str  # one sentence: what was found, and what to do about a problem
