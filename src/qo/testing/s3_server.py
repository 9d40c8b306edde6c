"""A small S3 server on loopback, in this process, with latency and faults. For tests and benchmarks, not for data."""

import asyncio
import contextlib
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

from qo.clock import Clock, system_clock
from qo.testing.faults import Fault, Faults
from qo.testing.s3_objects import Request, S3Answer, S3Objects

_NO_FAULTS = Faults(0)
_LATE = 5  # a late request arrives after at most this many others
_MANY = 2048  # connections that may wait to be accepted: a benchmark opens hundreds at once


class Latency(NamedTuple):
    """Seconds until the response, by kind of request."""

    put: float = 0.0
    get: float = 0.0
    list: float = 0.0
    delete: float = 0.0

    def of(self, request: Request) -> float:
        if request.method == "PUT":
            return self.put
        if request.method in ("DELETE", "POST"):  # POST deletes several objects
            return self.delete
        return self.list if "list-type=" in request.target else self.get


class S3Server:
    """`async with S3Server() as server: open_bucket(server.url)`. It requires no credentials."""

    def __init__(
        self,
        bucket: str = "bucket",
        *,
        latency: Latency = Latency(),  # noqa: B008 - immutable
        faults: Faults = _NO_FAULTS,
        clock: Clock = system_clock,
        objects: S3Objects | None = None,
    ) -> None:
        self.bucket = bucket
        self.latency = latency
        self.faults = faults
        self.requests = 0
        self.clock = clock
        self._objects = objects or S3Objects(bucket, clock=clock)
        self._late: list[tuple[int, Request]] = []
        self._talks: set[_Talk] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        if self._server is None:
            raise RuntimeError("the server has not been started")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/?endpoint={self.endpoint}&anonymous=true"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Talk(self), "127.0.0.1", 0, backlog=_MANY)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for talk in list(self._talks):
                talk.hang_up()
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def receive(self, talk: "_Talk", request: Request) -> None:
        if request.method == "HEAD" and request.target == "/":  # a client reads the time from the header `Date`
            talk.send(request, S3Answer(405, {}))
            return
        self.requests += 1
        self._let_late_ones_in()
        wait = self.latency.of(request)
        if wait:
            asyncio.get_running_loop().call_later(wait, self._serve, talk, request)
        else:
            self._serve(talk, request)

    def _serve(self, talk: "_Talk", request: Request) -> None:
        fault = self.faults.draw()
        if fault is None:
            talk.send(request, self._objects.answer(request))
        elif fault is Fault.REFUSED:
            statuses = (503, 429, 409) if request.method == "PUT" else (503, 429)
            talk.send(request, self._objects.refusal(self.faults.dice.choice(statuses)))
        elif fault is Fault.SLOW:
            delay = self.faults.dice.random() / 10
            asyncio.get_running_loop().call_later(delay, lambda: talk.send(request, self._objects.answer(request)))
        else:
            if fault is Fault.LOST_RESPONSE:
                self._objects.answer(request)
            elif fault is Fault.LATE:
                self._late.append((self.requests + self.faults.dice.randint(1, _LATE), request))
            talk.hang_up()

    def _let_late_ones_in(self) -> None:
        due = [request for when, request in self._late if when <= self.requests]
        if due:
            self._late = [(when, request) for when, request in self._late if when > self.requests]
            for request in due:
                self._objects.answer(request)


class _Talk(asyncio.Protocol):
    """One connection. It parses requests, passes them to the server and writes the responses, one at a time."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._bytes = bytearray()
        self._transport: asyncio.Transport | None = None
        self._told_to_go_on = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        self._server._talks.add(self)  # noqa: SLF001 - a connection belongs to its server

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server._talks.discard(self)  # noqa: SLF001 - a connection belongs to its server
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            return
        method, target, headers = _head(bytes(self._bytes[:end]))
        whole = end + 4 + int(headers.get("content-length", "0"))
        if len(self._bytes) < whole:
            if headers.get("expect") and not self._told_to_go_on and self._transport:
                self._told_to_go_on = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self._bytes[end + 4 : whole])
        del self._bytes[:whole]
        self._told_to_go_on = False
        self._server.receive(self, Request(method, target, headers, body))

    def send(self, request: Request, answer: S3Answer) -> None:
        if self._transport is None:
            return  # the client has disconnected
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        lines += [f"Date: {formatdate(self._server.clock(), usegmt=True)}", f"Content-Length: {len(answer.body)}"]
        head = "\r\n".join([*lines, "", ""]).encode()
        self._transport.write(head if request.method == "HEAD" else head + answer.body)

    def hang_up(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.abort()


def _head(data: bytes) -> tuple[str, str, dict[str, str]]:
    first, *rest = data.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.split(":", 1) for line in rest)
    return method, target, {name.lower(): value.strip() for name, value in pairs}
