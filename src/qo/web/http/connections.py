"""Limits on what a client may do with a connection: what uvicorn has no limits for.

uvicorn reads headers without end, waits for them for ever, and keeps an answer in memory until the client has read it.
A `LimitedConnection` is uvicorn's own, with limits. One `Connections` belongs to each server and sees all of them: it
closes those that are overdue once a second, and makes room for a newcomer.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any, ClassVar

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from qo.web.http.in_flight import STREAM
from qo.web.http.problems import Problem
from qo.web.http.settings import ServerLimits

log = logging.getLogger("qo.web")

_MAX_SWEEP_INTERVAL = 1.0  # seconds between two looks for connections that are overdue
_LINGER = 2.0  # seconds a refused client may go on sending, so that it reads the answer and not a reset connection
_MAX_DISCARDED = 1024 * 1024  # bytes read from a refused client; it may send more, and nobody reads it
_ANSWER_MARGIN = 5.0  # seconds beyond `request_timeout`: the application gives up by itself, and with a better answer
_MAX_PIPELINED = 16  # requests a client may send before it has read the first answer
_BAD_REQUEST, _TIMEOUT, _HEADERS_TOO_LARGE, _UNAVAILABLE = 400, 408, 431, 503
_CODES = {_BAD_REQUEST: "invalid", _TIMEOUT: "timeout", _HEADERS_TOO_LARGE: "too_large", _UNAVAILABLE: "unavailable"}


class Connections:
    """All connections of a server, in the order in which they are closed to make room.

    `newcomers` never sent a whole request. `waiting` did, and the server waits for their next one. A connection whose
    request is being answered is in neither: it is never closed for others.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.newcomers: OrderedDict[LimitedConnection, None] = OrderedDict()
        self.waiting: OrderedDict[LimitedConnection, None] = OrderedDict()
        self.unsent: OrderedDict[LimitedConnection, None] = OrderedDict()  # clients that read more slowly than we write
        self._open: set[LimitedConnection] = set()
        self._sweep_interval = min(_MAX_SWEEP_INTERVAL, limits.shortest_timeout / 4)
        self._sweep_timer: asyncio.TimerHandle | None = None

    def add(self, connection: "LimitedConnection") -> bool:
        """False: all are busy, and there is no room for one more."""
        self._open.add(connection)
        if self._sweep_timer is None:
            self._sweep_timer = connection.loop.call_later(self._sweep_interval, self._sweep)
        if len(self._open) > self.limits.max_connections and not self._close_one():
            return False
        self.newcomers[connection] = None
        return True

    def remove(self, connection: "LimitedConnection") -> None:
        self._open.discard(connection)
        self.newcomers.pop(connection, None)
        self.waiting.pop(connection, None)
        self.unsent.pop(connection, None)

    def _close_one(self) -> bool:
        for group in (self.newcomers, self.waiting):
            if group:
                oldest = next(iter(group))
                self.remove(oldest)
                oldest.abort()
                return True
        return False

    def fit_unsent(self, newest: "LimitedConnection") -> None:
        """Close those that have not read their answers for longest, until what is left fits."""
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
    shared: ClassVar[Connections]  # of the server; see `limited_connection`

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits = self.shared.limits
        self._since = self.loop.time()  # when what the server waits for now began
        self._in_head = False  # the request line and headers of a request have begun, and not ended
        self._is_between = True  # the next byte belongs to a new request
        self._is_new = True  # no request has begun
        self._heads_begun = 0
        self._head_size = 0  # bytes of an unfinished head
        self._head_bound = 0  # no head that ends in the data at hand is larger
        self._max_headers = self._limits.max_header_count
        self._paused_at = 0.0  # when the client last stopped reading, as long as `flow.write_paused`
        self._answering: RequestResponseCycle | None = None  # the request whose handler runs, or ran last
        self._is_answer_unread = False  # the client must read before its next request is looked at
        self._refusal: tuple[int, str] | None = None
        self._discarded = 0  # bytes received after the refusal

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.shared.add(self):
            self._refuse(_UNAVAILABLE, f"{self._limits.max_connections} requests are being answered; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.remove(self)
        self._tell_handler()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close at once, with whatever is still to be sent."""
        self._tell_handler()
        self.transport.abort()

    def _tell_handler(self) -> None:
        """uvicorn tells the latest request that its client is gone. The one being answered may be an earlier one."""
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

    # --- what the client sends

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
            pass  # the request is answered as if it had not asked for another protocol
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(*(cause.refusal if isinstance(cause, _Refused) else (_BAD_REQUEST, "this is not HTTP/1.1")))
            return
        if self._in_head and self._heads_begun == begun + was_between and (was_in_head or was_between):
            self._head_size += len(data)  # all of the data belongs to this head
            if self._head_size > self._limits.max_header_size:
                self._refuse(*_too_large(self._limits))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heads_begun += 1
        self._in_head, self._is_between, self._is_new, self._head_size = True, False, False, 0
        if not self._is_busy():
            self._since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn does it, and counted."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > self._max_headers:
            raise _Refused(_HEADERS_TOO_LARGE, f"there are more than {self._max_headers} headers")

    def on_headers_complete(self) -> None:
        limit = self._limits.max_header_size
        if self._head_bound > limit and sum([len(n) + len(v) for n, v in self.headers], len(self.url)) > limit:
            raise _Refused(*_too_large(self._limits))
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _Refused(_BAD_REQUEST, f"more than {_MAX_PIPELINED} requests were sent before an answer was read")
        self._in_head = False
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_message_complete(self) -> None:
        self._is_between = True
        super().on_message_complete()
        if not self.cycle.response_complete:
            self.shared.newcomers.pop(self, None)
            self.shared.waiting.pop(self, None)

    # --- what the server answers

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        if self.flow.write_paused and not self.transport.is_closing():
            # The next request waits until the client has read most of this answer: else answers gather in memory.
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
        else:  # as uvicorn does it, without a timer for each request: the sweep closes idle connections
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            self._wait()

    def _wait(self) -> None:
        if not self.transport.is_closing():
            self.shared.newcomers.pop(self, None)
            self.shared.waiting[self] = None

    def _is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        # None before the first request, whatever uvicorn's annotation says
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
            # A stream that cannot be written for so long has no reader.
            stalled = self.loop.time() - self._paused_at
            if self.flow.write_paused and stalled > self._limits.request_timeout:
                self.abort()
        elif waited > self._limits.request_timeout + (0.0 if self.flow.write_paused else _ANSWER_MARGIN):
            self.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Answer, stop reading as soon as the client could have read it, and close."""
        is_answering = self._is_busy()
        self._refusal, self._since = (status, why), self.loop.time()
        log.info("%s: %d %s", self.client[0] if self.client else "a client", status, why, extra={"http_status": status})
        if is_answering or self.transport.is_closing():  # between the parts of another answer it would mean nothing
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
    """How uvicorn serves an application within limits."""

    class Connection(LimitedConnection):
        shared = Connections(limits)

    return uvicorn.Config(app, http=Connection, ws="none", **options)
