"""One call to the server, made until it is answered or patience ends. What is repeated carries its first name.

An answer to a repeat is the truth if the server remembers the request. If it does not (it was restarted, or another
server answered), an answer of "landed" stands, and an answer of "not landed" may be about our own first try.
"""

import asyncio
import os
from io import BytesIO
from typing import Any, NamedTuple

import aiohttp

from qo import wire
from qo.engines.http.address import HttpAddress
from qo.errors import Conflict, InvalidSetting, OutcomeUnknown, QoError, StorageError
from qo.ids import luck, new_token

_PAUSES = (0.05, 0.2, 0.5, 1.0)  # seconds between tries, times chance
_LONGEST_RETRY_AFTER = 5.0  # seconds; a server that wants more is away, and the caller decides how long to wait
_CONNECT, _ANSWER = 5.0, 30.0  # seconds
_IDLE = 4.0  # seconds a connection is kept: less than servers do, so that it is seldom closed under a request
_LARGE = 1 << 20  # bytes
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_REFUSED = {401, 403}
_BUSY = {429, 503}


class Reply(NamedTuple):
    data: Any
    doubtful: bool  # "not landed" in it may be wrong
    is_cut: bool = False  # there is more, and it would have been too large


class _Try(NamedTuple):
    """What came of one try that did not end the call."""

    trouble: str
    sent: bool
    pause: float | None = None
    cause: BaseException | None = None


class HttpClient:
    def __init__(self, address: HttpAddress) -> None:
        self._address = address
        self._pid = os.getpid()
        self.payload_limit: int | None = None  # bytes, as the server's last answer said
        headers = {"Content-Type": wire.MEDIA_TYPE, "Accept": wire.MEDIA_TYPE}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=_IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._pid == os.getpid():
            await self._session.close()

    async def ask(
        self, call: str, body: bytes, *, repeat: bytes | None = None, timeout: float = _ANSWER, name: str | None = None
    ) -> Reply:
        """`repeat` is sent instead of `body` once an answer may have been lost; `name` names the request."""
        if self._pid != os.getpid():
            raise StorageError(f"{self._address.url} was opened before a fork; open an engine of its own here")
        name = name or new_token()
        doubtful = False
        pauses = iter(_PAUSES)
        while True:
            sent = repeat if doubtful and repeat is not None else body
            tried = await self._try(call, sent, name, timeout=timeout, again=doubtful)
            if isinstance(tried, Reply):
                return tried
            doubtful = doubtful or tried.sent
            pause, told = next(pauses, None), tried.pause or 0.0
            if pause is None or told > _LONGEST_RETRY_AFTER:
                raise _given_up(call, tried, doubtful=doubtful)
            await asyncio.sleep(max(told, pause * luck()))

    async def _try(self, call: str, body: bytes, name: str, *, timeout: float, again: bool) -> Reply | _Try:
        headers = {wire.REQUEST: name} | ({wire.AGAIN: "1"} if again else {})
        url = self._address.url
        try:
            async with self._session.post(
                f"{url}{wire.PATH}/{call}",
                data=body if len(body) < _LARGE else BytesIO(body),  # aiohttp wants to send a large one bit by bit
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT),
                allow_redirects=False,  # a token goes where its owner sent it
            ) as response:
                return self._heard(call, response, await response.read(), again=again)
        except _UNSENT as error:
            return _Try(f"{url} cannot be reached: {error}", sent=False, cause=error)
        except TimeoutError as error:
            return _Try(f"{url} did not answer within {timeout:g} s", sent=True, cause=error)
        except aiohttp.InvalidURL as error:
            raise InvalidSetting(f"{url} is not an address") from error
        except aiohttp.ClientError as error:
            return _Try(f"{url} hung up: {str(error) or type(error).__name__}", sent=True, cause=error)

    def _heard(self, call: str, response: aiohttp.ClientResponse, data: bytes, *, again: bool) -> Reply | _Try:
        url, status = self._address.url, response.status
        doubtful = again and wire.REMEMBERED not in response.headers
        if status == 200:  # noqa: PLR2004 - OK
            limit = response.headers.get(wire.PAYLOAD_LIMIT, "")
            self.payload_limit = int(limit) if limit.isdecimal() else None
            try:
                return Reply(wire.decode_answer(call, data), doubtful, wire.CUT in response.headers)
            except ValueError as error:  # cut short, or another version's
                return _Try(f"{url} answered {call} with something unknown: {error}", sent=True, cause=error)
        if status in _REFUSED:
            raise InvalidSetting(f"{url} refused the token: give one with the scope `engine` in the URL or in QO_TOKEN")
        told = wire.error_of(data) if response.content_type == wire.MEDIA_TYPE else None
        if status in _BUSY:
            sent = isinstance(told, OutcomeUnknown)
            return _Try(str(told or f"{url} is too busy"), sent=sent, pause=_retry_after(response), cause=told)
        if status >= 500:  # noqa: PLR2004 - a proxy, or a server that broke
            return _Try(f"{url} answered {call} with status {status}", sent=True)
        raise _decided(told or StorageError(f"{url} is no qo server: it answered {call} with {status}"), doubtful)


def _given_up(call: str, last: _Try, *, doubtful: bool) -> StorageError:
    unknown = doubtful and call in wire.WRITES
    error = OutcomeUnknown(f"{last.trouble}; it may have landed") if unknown else StorageError(last.trouble)
    error.__cause__ = last.cause
    return error


def _decided(error: QoError, doubtful: bool) -> QoError:  # noqa: FBT001 - says what it is
    if doubtful and isinstance(error, Conflict):
        unknown = OutcomeUnknown(f"{error}, or by our own first try")
        unknown.__cause__ = error
        return unknown
    return error


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return float(response.headers.get("Retry-After", ""))
    except ValueError:  # a date: rare, and no clock is compared here
        return None
