"""A small S3 server on loopback, in this process, with latency and faults. For tests and benchmarks, not for data."""

import asyncio
import contextlib
import hashlib
import re
import socket
import struct
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from qo.clock import Clock, iso, system_clock
from qo.testing.faults import Fault, Faults

_PAGE = 1000
_KEY = re.compile("<Key>([^<]*)</Key>")
_XML = "<?xml version='1.0' encoding='UTF-8'?>"


class Request(NamedTuple):
    method: str
    target: str  # path and query, as sent
    headers: dict[str, str]  # names in lower case
    body: bytes


class S3Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes = b""


class _Object(NamedTuple):
    data: bytes
    etag: str
    written_at: float


@dataclass
class _Contents:
    objects: dict[str, _Object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # sorted, so that the cost of a listing depends only on its page


class S3Objects:
    """The responses of an S3 server, without a network. Conditions are evaluated as Amazon does.

    Each request is evaluated in one step, so exactly one of several concurrent writes wins.
    """

    def __init__(self, *buckets: str, clock: Clock = system_clock) -> None:
        self._buckets = {name: _Contents() for name in buckets}
        self._clock = clock

    def answer(self, request: Request) -> S3Answer:
        parts = urlsplit(request.target)
        name, _, key = unquote(parts.path).lstrip("/").partition("/")
        contents = self._buckets.get(name)
        if contents is None:
            return self._error(404, "NoSuchBucket")
        query = parse_qs(parts.query, keep_blank_values=True)
        if not key:
            return self._delete_all(contents, request) if "delete" in query else self._list(contents, query, request)
        if request.method in ("GET", "HEAD"):
            return self._get(contents, key, request)
        if request.method == "PUT":
            return self._put(contents, key, request)
        if request.method == "DELETE":
            return self._delete(contents, key)
        return self._error(405, "MethodNotAllowed")

    def _get(self, contents: _Contents, key: str, request: Request) -> S3Answer:
        stored = contents.objects.get(key)
        if stored is None:
            return self._error(404, "NoSuchKey")
        headers = {"ETag": stored.etag, "Last-Modified": formatdate(stored.written_at, usegmt=True)}
        wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
        if wanted not in (None, "*", stored.etag):
            return self._error(412, "PreconditionFailed")
        if unwanted == stored.etag:
            return S3Answer(304, headers)
        return S3Answer(200, headers, stored.data)

    def _put(self, contents: _Contents, key: str, request: Request) -> S3Answer:
        stored = contents.objects.get(key)
        wanted = request.headers.get("if-match")
        if request.headers.get("if-none-match") == "*" and stored is not None:
            return self._error(412, "PreconditionFailed")
        if wanted is not None and stored is None:
            return self._error(404, "NoSuchKey")
        if wanted is not None and stored is not None and wanted not in ("*", stored.etag):
            return self._error(412, "PreconditionFailed")
        etag = f'"{hashlib.md5(request.body, usedforsecurity=False).hexdigest()}"'
        if stored is None:
            insort(contents.keys, key)
        contents.objects[key] = _Object(request.body, etag, self._clock())
        return S3Answer(200, {"ETag": etag})

    def _delete(self, contents: _Contents, key: str) -> S3Answer:
        if contents.objects.pop(key, None) is not None:
            del contents.keys[bisect_left(contents.keys, key)]
        return S3Answer(204, {})

    def _delete_all(self, contents: _Contents, request: Request) -> S3Answer:
        keys = [unescape(key) for key in _KEY.findall(request.body.decode())]
        for key in keys:
            self._delete(contents, key)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        body = f"{_XML}<DeleteResult>{deleted}</DeleteResult>"
        return S3Answer(200, {"Content-Type": "application/xml"}, body.encode())

    def _list(self, contents: _Contents, query: dict[str, list[str]], request: Request) -> S3Answer:
        if request.method == "HEAD":
            return S3Answer(200, {})
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        most = min(int(query.get("max-keys", [str(_PAGE)])[0]), _PAGE)
        start = max(bisect_left(contents.keys, prefix), bisect_right(contents.keys, after))
        keys = contents.keys[start : start + most + 1]
        keys = keys[: bisect_left(keys, True, key=lambda name: not name.startswith(prefix))]
        entries = "".join(self._entry(key, contents.objects[key]) for key in keys[:most])
        more = len(keys) > most
        token = f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>" if more else ""
        body = (
            f"{_XML}<ListBucketResult><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(keys[:most])}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        )
        return S3Answer(200, {"Content-Type": "application/xml"}, body.encode())

    @staticmethod
    def _entry(key: str, stored: _Object) -> str:
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{iso(stored.written_at)}</LastModified>"
            f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size></Contents>"
        )

    @staticmethod
    def _error(status: int, code: str) -> S3Answer:
        body = f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        return S3Answer(status, {"Content-Type": "application/xml"}, body)

    def refusal(self, status: int) -> S3Answer:
        return self._error(status, {409: "ConditionalRequestConflict", 429: "TooManyRequests"}.get(status, "SlowDown"))


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
        """Close the connection, or reset it: clients see two different errors."""
        if self._transport is None:
            return
        with contextlib.suppress(OSError):
            if self._server.faults.dice.random() < 0.5:
                connection = self._transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


def _head(data: bytes) -> tuple[str, str, dict[str, str]]:
    first, *rest = data.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.split(":", 1) for line in rest)
    return method, target, {name.lower(): value.strip() for name, value in pairs}
