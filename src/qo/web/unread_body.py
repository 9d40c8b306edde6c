"""The rest of a request that is refused: read and thrown away before the answer is sent.

Many clients send the whole body before they read. If the server answered and closed the connection meanwhile, they
would see a reset connection instead of the answer.
"""

import asyncio
from contextlib import suppress
from typing import cast

from litestar.types import HTTPReceiveMessage, HTTPScope, Receive

_MAX_DRAINED = 64 * 1024 * 1024  # bytes; a client that sends more than this is cut off
_MAX_DRAIN_TIME = 10.0  # seconds


class RequestBody:
    def __init__(self, scope: HTTPScope, receive: Receive) -> None:
        self._receive = receive
        headers = dict(scope["headers"])
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        # A client that asks first sends nothing before it hears `100 Continue`, and reading would say just that.
        self._is_unread = has_body and headers.get(b"expect", b"").lower() != b"100-continue"

    async def receive(self) -> HTTPReceiveMessage:
        message = cast("HTTPReceiveMessage", await self._receive())
        self._is_unread = message["type"] == "http.request" and bool(message["more_body"]) and self._is_unread
        return message

    async def drain(self) -> None:
        """Read what has not been read, within limits."""
        drained = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_MAX_DRAIN_TIME):
                while self._is_unread and drained < _MAX_DRAINED:
                    message = await self.receive()
                    drained += len(message["body"]) if message["type"] == "http.request" else 0
