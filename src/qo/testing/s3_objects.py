"""The responses of an S3 server, without a network: buckets in a dict, and conditions evaluated as Amazon does."""

import hashlib
import re
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from qo.clock import Clock, iso, system_clock

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
    """Each request is evaluated in one step, so exactly one of several concurrent writes wins."""

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
