"""Requests in progress: a time limit for each, and a memory limit for the bodies of all.

One background task ends overdue requests, so that a request only costs an entry in a dictionary.
"""

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import cast

from litestar.exceptions import ClientException, HTTPException
from litestar.types import HTTPReceiveMessage, HTTPScope, Receive

from qo.clock import boot_clock
from qo.web.http.settings import ServerLimits

STREAM = "qo_stream"  # set in the scope of a request whose response has no end
_MAX_CHECK_INTERVAL = 1.0  # seconds between checks for overdue requests
_LARGE_BODY = 64 * 1024  # bytes; larger bodies are processed within _MAX_LARGE_BODIES
_MAX_LARGE_BODIES = 4 * 1024 * 1024  # bytes processed at once; decoded they take up to 25 times as much memory
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
                request.cut(
                    _UNAVAILABLE, f"the request took longer than {limit:g} s; its changes may or may not have been made"
                )


_MAX_DRAINED = 64 * 1024 * 1024  # bytes read from a rejected upload before the connection is closed
_MAX_DRAIN_TIME = 10.0  # seconds


class UploadAborted(ClientException):
    """The client disconnected before it had sent the whole body. It is logged with one line."""


class RequestBody:
    """Counts the body while it is read, and reads it to its end if the request is rejected.

    Many clients send the whole body before they read the response. If the server responded and closed the connection
    before that, they would see a reset connection instead of the response.
    """

    def __init__(self, scope: HTTPScope, receive: Receive, in_flight: RequestsInFlight, request: InFlight) -> None:
        self._receive, self._in_flight, self._request = receive, in_flight, request
        headers = dict(scope["headers"])
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        # A client with `Expect: 100-continue` sends nothing before `100 Continue`, and reading would send that.
        request.is_uploading = has_body
        self.is_aborted = False
        self._is_unread = has_body and headers.get(b"expect", b"").lower() != b"100-continue"

    async def receive(self) -> HTTPReceiveMessage:
        """The next part of the body."""
        message = await self._next()
        if message["type"] == "http.request":
            self._in_flight.hold(self._request, len(message["body"]))
            if not message["more_body"]:
                await self._in_flight.wait_for_turn(self._request)
        return message

    async def drain(self) -> None:
        """Read the rest of the body, up to a size and a time."""
        drained = 0
        with suppress(TimeoutError, UploadAborted):
            async with asyncio.timeout(_MAX_DRAIN_TIME):
                while self._is_unread and drained < _MAX_DRAINED:
                    message = await self._next()
                    drained += len(message["body"]) if message["type"] == "http.request" else 0

    def abandon(self) -> None:
        """Stop reading the body."""
        self._is_unread = False

    async def _next(self) -> HTTPReceiveMessage:
        was_uploading = self._request.is_uploading
        message = cast("HTTPReceiveMessage", await self._receive())
        self._request.is_uploading = message["type"] == "http.request" and bool(message["more_body"])
        self._is_unread = self._request.is_uploading and self._is_unread
        if was_uploading and message["type"] == "http.disconnect":
            self.is_aborted = True
            raise UploadAborted("the client disconnected before it had sent the whole body")
        return message
