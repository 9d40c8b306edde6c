"""Limits for connections that uvicorn does not have.

uvicorn reads headers of any size, waits for them without a timeout, and keeps a response in memory until the client has
read it. `LimitedConnection` extends uvicorn's protocol with limits. Each server has one `Connections`, which closes
overdue connections once a second and makes room for new ones.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any, ClassVar

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from qo.web.http.edge import STREAM
from qo.web.http.problems import Problem
from qo.web.http.settings import ServerLimits

log = logging.getLogger("qo.web")

_MAX_SWEEP_INTERVAL = 1.0  # seconds between checks for overdue connections
_LINGER = 2.0  # seconds that a rejected client can continue to send, so that it reads the response and not a reset
_MAX_DISCARDED = 1024 * 1024  # bytes read from a rejected client
_ANSWER_MARGIN = 5.0  # seconds beyond `request_timeout`, because the application times out with a better response
_MAX_PIPELINED = 16  # requests that a client can send before it has read the first response
_BAD_REQUEST, _TIMEOUT, _HEADERS_TOO_LARGE, _UNAVAILABLE = 400, 408, 431, 503
_CODES = {_BAD_REQUEST: "invalid", _TIMEOUT: "timeout", _HEADERS_TOO_LARGE: "too_large", _UNAVAILABLE: "unavailable"}


class Connections:
    """All connections of a server, in the order in which they are closed to make room.

    `new` has not sent a complete request yet. `idle` has, and the server waits for its next one. A connection whose
    request is in progress is in neither, and is never closed to make room.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.new: OrderedDict[LimitedConnection, None] = OrderedDict()
        self.idle: OrderedDict[LimitedConnection, None] = OrderedDict()
        self.unsent: OrderedDict[LimitedConnection, None] = OrderedDict()  # connections with unread responses
        self._open: set[LimitedConnection] = set()
        self._sweep_interval = min(_MAX_SWEEP_INTERVAL, limits.shortest_timeout / 4)
        self._sweep_timer: asyncio.TimerHandle | None = None

    def add(self, connection: "LimitedConnection") -> bool:
        """Returns False if the limit is reached and all connections are busy."""
        self._open.add(connection)
        if self._sweep_timer is None:
            self._sweep_timer = connection.loop.call_later(self._sweep_interval, self._sweep)
        if len(self._open) > self.limits.max_connections and not self._close_one():
            return False
        self.new[connection] = None
        return True

    def remove(self, connection: "LimitedConnection") -> None:
        self._open.discard(connection)
        self.new.pop(connection, None)
        self.idle.pop(connection, None)
        self.unsent.pop(connection, None)

    def _close_one(self) -> bool:
        for group in (self.new, self.idle):
            if group:
                oldest = next(iter(group))
                self.remove(oldest)
                oldest.abort()
                return True
        return False

    def fit_unsent(self, newest: "LimitedConnection") -> None:
        """Close the connections that have been unread longest, until the unread responses fit into the limit."""
        self.unsent[newest] = None
        total = sum(each.transport.get_write_buffer_size() for each in self.unsent)
        while total > self.limits.max_unsent_memory and len(self.unsent) > 1:
            oldest = next(iter(self.unsent))
            total -= oldest.transport.get_write_buffer_size()
            self.remove(oldest)
            oldest.abort()

    def _sweep(self) -> None:
        self._sweep_timer = None
        for connection in list(self._open):
            connection.close_if_overdue()
        if self._open:
            loop = next(iter(self._open)).loop
            self._sweep_timer = loop.call_later(self._sweep_interval, self._sweep)


class LimitedConnection(HttpToolsProtocol):
    shared: ClassVar[Connections]  # of the server; see `server_config`

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits = self.shared.limits
        self._since = self.loop.time()  # start of the current wait
        self._in_head = False  # between the first byte of a request and the end of its headers
        self._is_between = True  # the next byte starts a new request
        self._is_new = True  # no request has started
        self._heads_begun = 0
        self._head_size = 0  # bytes of unfinished headers
        self._head_bound = 0  # upper bound for headers that end in the current data
        self._max_headers = self._limits.max_header_count
        self._paused_at = 0.0  # when the client last stopped reading; valid while `flow.write_paused`
        self._answering: RequestResponseCycle | None = None  # the request of the current or last handler
        self._is_answer_unread = False  # the next request waits until the client has read the response
        self._refusal: tuple[int, str] | None = None
        self._discarded = 0  # bytes received after the rejection

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.shared.add(self):
            self._refuse(_UNAVAILABLE, f"all {self._limits.max_connections} connections are busy; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.remove(self)
        self._notify_handler()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close immediately and drop unsent data."""
        self._notify_handler()
        self.transport.abort()

    def _notify_handler(self) -> None:
        """uvicorn notifies the latest request that the client disconnected. The current one may be an earlier one."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            self.flow.resume_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_at = self.loop.time()
        self.shared.fit_unsent(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.shared.unsent.pop(self, None)
        if self._is_answer_unread:
            self._is_answer_unread = False
            self._take_next_request()

    # --- requests

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            self._discarded += len(data)
            if self._discarded > _MAX_DISCARDED:
                self.flow.pause_reading()
            return
        was_in_head, was_between, begun = self._in_head, self._is_between, self._heads_begun
        self._head_bound = (self._head_bound if was_in_head else 0) + len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the upgrade is ignored
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                *(cause.refusal if isinstance(cause, _Refused) else (_BAD_REQUEST, "the request is not valid HTTP/1.1"))
            )
            return
        if self._in_head and self._heads_begun == begun + was_between and (was_in_head or was_between):
            self._head_size += len(data)  # all of the data belongs to these headers
            if self._head_size > self._limits.max_header_size:
                self._refuse(*_too_large(self._limits))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heads_begun += 1
        self._in_head, self._is_between, self._is_new, self._head_size = True, False, False, 0
        if not self._is_busy():
            self._since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Like uvicorn, with a limit on the number of headers."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > self._max_headers:
            raise _Refused(_HEADERS_TOO_LARGE, f"the request has more than {self._max_headers} headers")

    def on_headers_complete(self) -> None:
        limit = self._limits.max_header_size
        if self._head_bound > limit and sum([len(n) + len(v) for n, v in self.headers], len(self.url)) > limit:
            raise _Refused(*_too_large(self._limits))
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _Refused(_BAD_REQUEST, f"more than {_MAX_PIPELINED} requests were sent before a response was read")
        self._in_head = False
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_message_complete(self) -> None:
        self._is_between = True
        super().on_message_complete()
        if not self.cycle.response_complete:
            self.shared.new.pop(self, None)
            self.shared.idle.pop(self, None)

    # --- responses

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        if self.flow.write_paused and not self.transport.is_closing():
            # The next request waits until the client has read most of this response, to bound memory.
            self._is_answer_unread = True
            self.flow.pause_reading()
            if not self.pipeline:
                self._wait()
        else:
            self._take_next_request()

    def _take_next_request(self) -> None:
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
            super().on_response_complete()
        else:  # like uvicorn, but without a timer for each request: `_sweep` closes idle connections
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            self._wait()

    def _wait(self) -> None:
        if not self.transport.is_closing():
            self.shared.new.pop(self, None)
            self.shared.idle[self] = None

    def _is_busy(self) -> bool:
        """Whether a request is in progress."""
        # None before the first request, despite uvicorn's annotation
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def close_if_overdue(self) -> None:
        waited = self.loop.time() - self._since
        if self._refusal is not None:
            if waited > _LINGER:
                self.abort()
        elif self._is_busy():
            self._close_if_request_overdue(waited)
        elif self.transport.get_write_buffer_size():
            if waited > self._limits.request_timeout:
                self.abort()
        elif self._in_head:
            if waited > self._limits.header_timeout:
                self._refuse(_TIMEOUT, f"the headers took longer than {self._limits.header_timeout:g} s")
        elif waited > (self._limits.header_timeout if self._is_new else self._limits.idle_timeout):
            self.transport.close()

    def _close_if_request_overdue(self, waited: float) -> None:
        if self.cycle.scope.get(STREAM):
            # No client reads a stream that could not be written for this long.
            stalled = self.loop.time() - self._paused_at
            if self.flow.write_paused and stalled > self._limits.request_timeout:
                self.abort()
        elif waited > self._limits.request_timeout + (0.0 if self.flow.write_paused else _ANSWER_MARGIN):
            self.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Send an error response, and close once the client could have read it."""
        is_answering = self._is_busy()
        self._refusal, self._since = (status, why), self.loop.time()
        log.info("%s: %d %s", self.client[0] if self.client else "a client", status, why, extra={"http_status": status})
        if is_answering or self.transport.is_closing():  # an error cannot be sent in the middle of another response
            self.abort()
            return
        body = msgspec.json.encode(Problem(error=why, code=_CODES[status]))
        headers = [
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"x-content-type-options: nosniff",
            b"connection: close",
            *([b"retry-after: 1"] if status == _UNAVAILABLE else []),
        ]
        self.transport.write(b"%b%b\r\n\r\n%b" % (STATUS_LINE[status], b"\r\n".join(headers), body))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        self.refusal = (status, why)


def _too_large(limits: ServerLimits) -> tuple[int, str]:
    return _HEADERS_TOO_LARGE, f"the request line and headers are larger than {limits.max_header_size} bytes"


def server_config(app: Any, limits: ServerLimits, **options: Any) -> uvicorn.Config:
    """A uvicorn configuration that applies the limits."""

    class Connection(LimitedConnection):
        shared = Connections(limits)

    return uvicorn.Config(app, http=Connection, ws="none", **options)
