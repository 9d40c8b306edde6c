"""`os._exit` in a handler would end the worker and every task beside it. While a worker runs, it ends the attempt only.

Outside handlers, in a forked child and in a worker's own child processes it does what it always did.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NoReturn

from qo.tasks import running

end_process = os._exit


class Exited(BaseException):
    """What a handler's `os._exit(code)` became; no `except Exception` of its own should catch it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _confined_exit(status: int) -> NoReturn:
    if running.get(None) is not None and os.getpid() == _workers.pid:
        raise Exited(status)
    end_process(status)


class _GuardedWorkers:
    """How many run in this process."""

    def __init__(self) -> None:
        self.number, self.pid, self.lock = 0, 0, Lock()


_workers = _GuardedWorkers()


@contextmanager
def confined() -> Iterator[None]:
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
