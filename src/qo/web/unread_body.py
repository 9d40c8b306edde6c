"""The body of a request: counted while it is read, and read to its end if the request is refused.

Many clients send the whole body before they read. If the server answered and closed the connection meanwhile, they
would see a reset connection instead of the answer.
"""

import asyncio
from contextlib import suppress
from typing import cast

from litestar.exceptions import ClientException
from litestar.types import HTTPReceiveMessage, HTTPScope, Receive

from qo.web.in_flight import InFlight, RequestsInFlight

_MAX_DRAINED = 64 * 1024 * 1024  # bytes; a client that sends more than this is cut off
_MAX_DRAIN_TIME = 10.0  # seconds


class UploadAborted(ClientException):
    """The client left before it had sent the whole body. Nobody reads the answer; the log has one line."""


class RequestBody:
    def __init__(self, scope: HTTPScope, receive: Receive, in_flight: RequestsInFlight, request: InFlight) -> None:
        self._receive, self._in_flight, self._request = receive, in_flight, request
        headers = dict(scope["headers"])
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        # A client that asks first sends nothing before it hears `100 Continue`, and reading would say just that.
        request.is_uploading = has_body
        self.is_aborted = False
        self._is_unread = has_body and headers.get(b"expect", b"").lower() != b"100-continue"

    async def receive(self) -> HTTPReceiveMessage:
        """The next part, which the application keeps in memory."""
        message = await self._next()
        if message["type"] == "http.request":
            self._in_flight.hold(self._request, len(message["body"]))
            if not message["more_body"]:
                await self._in_flight.wait_for_turn(self._request)
        return message

    async def drain(self) -> None:
        """Read what has not been read, within limits."""
        drained = 0
        with suppress(TimeoutError, UploadAborted):
            async with asyncio.timeout(_MAX_DRAIN_TIME):
                while self._is_unread and drained < _MAX_DRAINED:
                    message = await self._next()
                    drained += len(message["body"]) if message["type"] == "http.request" else 0

    def abandon(self) -> None:
        """Read no more of it."""
        self._is_unread = False

    async def _next(self) -> HTTPReceiveMessage:
        was_uploading = self._request.is_uploading
        message = cast("HTTPReceiveMessage", await self._receive())
        self._request.is_uploading = message["type"] == "http.request" and bool(message["more_body"])
        self._is_unread = self._request.is_uploading and self._is_unread
        if was_uploading and message["type"] == "http.disconnect":
            self.is_aborted = True
            raise UploadAborted("the client left before it had sent the whole body")
        return message
