"""Reports of long operations. The command line draws them as a bar; servers and workers show nothing."""

from collections.abc import Callable
from contextvars import ContextVar

# Called with the name of the operation, the bytes done and the bytes in total.
SHOW: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("SHOW", default=None)


def show(operation: str, done: int, total: int) -> None:
    """Report how far an operation is. Call it at the end too, with `done` equal to `total`."""
    shown = SHOW.get()
    if shown is not None:
        shown(operation, done, total)
