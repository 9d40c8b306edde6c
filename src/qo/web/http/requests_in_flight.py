"""Limits for requests in progress: a time limit for each, and a memory limit for the bodies of all.

One background task ends overdue requests, so that a request only costs an entry in a dictionary.
"""

import asyncio
from collections import OrderedDict, deque

from litestar.exceptions import HTTPException

from qo.clock import boot_clock
from qo.web.http.settings import ServerLimits

_MAX_CHECK_INTERVAL = 1.0  # seconds between checks for overdue requests
_LARGE_BODY = 64 * 1024  # bytes; larger bodies are processed within _MAX_LARGE_BODIES
_MAX_LARGE_BODIES = 4 * 1024 * 1024  # bytes processed concurrently; decoded they take up to 25 times as much memory
_REQUEST_TIMEOUT, _UNAVAILABLE = 408, 503


class InFlight:
    """One request. `refusal` is the status and reason if the server ends it early."""

    __slots__ = ("began_at", "handled_size", "is_answered", "is_uploading", "refusal", "size", "task")

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.began_at = boot_clock()
        self.size = 0  # bytes of the body in memory
        self.handled_size = 0  # the same while the body is being processed
        self.is_uploading = False
        self.is_answered = False
        self.refusal: tuple[int, str] | None = None

    def cut(self, status: int, why: str) -> None:
        if self.task is not None and not self.is_answered and self.refusal is None:
            self.refusal = (status, why)
            self.task.cancel()


class RequestsInFlight:
    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._all: OrderedDict[InFlight, None] = OrderedDict()  # oldest first
        self._size = 0  # bytes of bodies in memory
        self._handled_size = 0
        self._queue: deque[tuple[InFlight, asyncio.Future[None]]] = deque()  # large bodies that wait to be processed

    def begin(self) -> InFlight:
        request = InFlight()
        self._all[request] = None
        return request

    def end(self, request: InFlight) -> None:
        self._all.pop(request, None)
        if request.size:
            self._size -= request.size
            self._handled_size -= request.handled_size
            self._grant_turns()

    def hold(self, request: InFlight, size: int) -> None:
        """Account for a received part of a body. Raises a 503 if it does not fit."""
        request.size += size
        self._size += size
        if self._size > self._limits.max_upload_memory:
            self._make_room(request)

    async def wait_for_turn(self, request: InFlight) -> None:
        """Wait until the complete body can be processed."""
        if request.size > _LARGE_BODY:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((request, turn))
            self._grant_turns()
            await turn

    def _make_room(self, newest: InFlight) -> None:
        """End the oldest unfinished uploads: a normal upload takes moments."""
        excess = self._size - self._limits.max_upload_memory
        for request in self._all:
            if excess <= 0:
                return
            if request is not newest and request.is_uploading and request.size and request.refusal is None:
                request.cut(_REQUEST_TIMEOUT, "the upload was too slow while the server was short of memory")
                excess -= request.size
                self._size -= request.size
                request.size = 0
        if excess > 0:
            headers = {"Retry-After": "1"}
            raise HTTPException(
                "too many uploads are in progress; try again later", status_code=_UNAVAILABLE, headers=headers
            )

    def _grant_turns(self) -> None:
        while self._queue:
            request, turn = self._queue[0]
            if not turn.done():
                if self._handled_size and self._handled_size + request.size > _MAX_LARGE_BODIES:
                    return
                request.handled_size = request.size
                self._handled_size += request.size
                turn.set_result(None)
            self._queue.popleft()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(_MAX_CHECK_INTERVAL, self._limits.request_timeout / 4))
            self._cut_overdue()

    def _cut_overdue(self) -> None:
        limit = self._limits.request_timeout
        for request in list(self._all):
            if boot_clock() - request.began_at < limit:
                return
            if request.is_uploading:
                request.cut(_REQUEST_TIMEOUT, f"the body took longer than {limit:g} s")
            else:
                request.cut(_UNAVAILABLE, f"the request took longer than {limit:g} s; its changes may have been made")
