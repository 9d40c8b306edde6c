"""`os._exit` in handlers and hooks. It would end the worker and all its tasks.

While a worker runs, it only ends the attempt or the hook. Elsewhere, in a forked child and in a worker's child
processes it ends the process as usual.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NoReturn

from qo.hooks import working
from qo.running_task import running

end_process = os._exit


class Exited(BaseException):
    """Raised by `os._exit(code)` in a handler. A BaseException, so that `except Exception` does not catch it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _confined_exit(status: int) -> NoReturn:
    in_hook = working.get(None) is not None
    if (in_hook or running.get(None) is not None) and os.getpid() == _workers.pid:
        raise Exited(status)
    end_process(status)


class _GuardedWorkers:
    """The number of workers that run in this process."""

    def __init__(self) -> None:
        self.number, self.pid, self.lock = 0, 0, Lock()


_workers = _GuardedWorkers()


@contextmanager
def confined() -> Iterator[None]:
    """Confine `os._exit` in handlers to their attempts."""
    with _workers.lock:
        _workers.number, _workers.pid = _workers.number + 1, os.getpid()
        os._exit = _confined_exit
    try:
        yield
    finally:
        with _workers.lock:
            _workers.number -= 1
            if not _workers.number:
                os._exit = end_process
