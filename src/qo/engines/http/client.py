"""The address of a server, and one call to it, with retries. All attempts of a call carry the same request name.

The answer to a retry is reliable if the server has cached the response. If it does not (it was restarted, or another
server answered), "applied" is reliable, and "not applied" may refer to the effect of an earlier attempt.
"""

import asyncio
import os
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import aiohttp

from qo import wire
from qo.backoff import Backoff
from qo.errors import Conflict, InvalidSetting, ObjectTooLarge, OutcomeUnknown, QoError, StorageError
from qo.ids import new_token

_MAX_RETRIES, _FIRST_RETRY_DELAY, _MAX_RETRY_DELAY = 4, 0.05, 1.0  # delays are random, and this at most
_MAX_RETRY_AFTER = 5.0  # if the server requests more, the caller decides how long to wait
_CONNECT_TIMEOUT, _RESPONSE_TIMEOUT = 5.0, 30.0
_KEEPALIVE_TIMEOUT = 4.0  # shorter than the servers', so that they rarely close a connection under a request
_MAX_CONNECTIONS, _MAX_BATCH_COUNTS = 64, 32  # a list counts a hundred batches, and claims need connections too
_STREAMED_SIZE = 1 << 20  # bytes; aiohttp warns about larger bodies that are not streamed
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_REFUSED = {401, 403}
_BUSY = {429, 503}
_TOO_LARGE = 413
TOKEN = "QO_TOKEN"  # noqa: S105 - the variable's name


class HttpAddress(NamedTuple):
    url: str  # without the token, so that logs may contain it
    token: str

    def __repr__(self) -> str:
        return f"<Address {self.url}>"


def address_of(url: str) -> HttpAddress:
    """Parse a URL. A token in the URL takes precedence over QO_TOKEN."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # the original error is dropped: the text may be the beginning of a token
        raise InvalidSetting(
            "the port in the queue's URL is not a number from 0 to 65535; encode a / in the token as %2F"
        ) from None
    if not host:
        raise InvalidSetting("the queue's URL names no server; write http://127.0.0.1:8000")
    if parts.username and not parts.password:  # a user name would appear in logs and listings
        raise InvalidSetting(f"write the token as a password: {parts.scheme}://worker:TOKEN@{host}, or set {TOKEN}")
    if parts.query or parts.fragment:
        raise InvalidSetting(f"{parts.scheme}://{host} has no options; remove what follows the path")
    place = f"[{host}]" if ":" in host else host
    place += "" if port is None else f":{port}"
    token = unquote(parts.password) if parts.password else os.environ.get(TOKEN, "").strip()
    return HttpAddress(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", token)


class Reply(NamedTuple):
    data: Any
    is_doubtful: bool  # "not applied" may be wrong: an earlier attempt may have applied the call
    is_cut: bool = False  # there are more items, which would have made the response too large


class _FailedAttempt(NamedTuple):
    problem: str
    was_sent: bool
    retry_after: float | None = None  # seconds, as the server asks
    cause: BaseException | None = None


class HttpClient:
    def __init__(self, address: HttpAddress) -> None:
        self._address = address
        self._pid = os.getpid()
        self.batch_counts = asyncio.Semaphore(_MAX_BATCH_COUNTS)
        self.payload_limit: int | None = None  # bytes, from the server's last response
        headers = {"Content-Type": wire.MEDIA_TYPE, "Accept": wire.MEDIA_TYPE}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE_TIMEOUT),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._pid == os.getpid():
            await self._session.close()

    async def request(
        self,
        call: str,
        body: bytes,
        *,
        repeat: bytes | None = None,
        timeout: float = _RESPONSE_TIMEOUT,
        name: str | None = None,
    ) -> Reply:
        """Make a call. `repeat` replaces `body` once a response may have been lost; `name` identifies the request.

        Raises OutcomeUnknown if a write may have been applied, InvalidSetting if the server rejects the token.
        """
        if self._pid != os.getpid():
            raise StorageError(f"{self._address.url} was opened before a fork; open another engine in this process")
        name = name or new_token()
        may_be_applied = False
        backoff = Backoff(_FIRST_RETRY_DELAY, _MAX_RETRY_DELAY, factor=3.0, jitter=(0.0, 1.0))
        retries = 0
        while True:
            content = repeat if may_be_applied and repeat is not None else body
            result = await self._attempt(call, content, name, timeout=timeout, is_repeat=may_be_applied)
            if isinstance(result, Reply):
                return result
            may_be_applied = may_be_applied or result.was_sent
            retry_after = result.retry_after or 0.0
            if retries == _MAX_RETRIES or retry_after > _MAX_RETRY_AFTER:
                raise _final_error(call, result, may_be_applied=may_be_applied)
            retries += 1
            await asyncio.sleep(max(retry_after, backoff.next()))

    async def _attempt(
        self, call: str, body: bytes, name: str, *, timeout: float, is_repeat: bool
    ) -> Reply | _FailedAttempt:
        headers = {wire.REQUEST: name} | ({wire.AGAIN: "1"} if is_repeat else {})
        url = self._address.url
        try:
            async with self._session.post(
                f"{url}{wire.PATH}/{call}",
                data=body if len(body) < _STREAMED_SIZE else BytesIO(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_TIMEOUT),
                allow_redirects=False,  # the token must not be sent to another server
            ) as response:
                return self._interpret(call, response, await response.read(), is_repeat=is_repeat)
        except _UNSENT as error:
            # Other text of the error repeats the address.
            reason = getattr(error, "os_error", None) or error
            advice = f"{url} cannot be reached; check the address, and that `qo serve` runs there ({reason})"
            return _FailedAttempt(advice, was_sent=False, cause=error)
        except TimeoutError as error:
            return _FailedAttempt(f"{url} did not answer within {timeout:g} s", was_sent=True, cause=error)
        except aiohttp.InvalidURL as error:
            raise InvalidSetting(f"{url} is not an address") from error
        except aiohttp.ClientError as error:
            return _FailedAttempt(
                f"{url} closed the connection: {str(error) or type(error).__name__}", was_sent=True, cause=error
            )

    def _interpret(
        self, call: str, response: aiohttp.ClientResponse, data: bytes, *, is_repeat: bool
    ) -> Reply | _FailedAttempt:
        url, status = self._address.url, response.status
        is_doubtful = is_repeat and wire.REMEMBERED not in response.headers
        if status == 200:  # noqa: PLR2004 - OK
            limit = response.headers.get(wire.PAYLOAD_LIMIT, "")
            self.payload_limit = int(limit) if limit.isdecimal() else None
            try:
                return Reply(wire.decode_answer(call, data), is_doubtful, wire.CUT in response.headers)
            except ValueError as error:  # truncated, or from another version
                return _FailedAttempt(
                    f"{url} answered {call} with an unreadable response: {error}", was_sent=True, cause=error
                )
        if status in _REFUSED:
            raise InvalidSetting(f"{url} rejected the token: put one with the scope `engine` into the URL or QO_TOKEN")
        refusal = wire.error_of(data) if response.content_type == wire.MEDIA_TYPE else None
        if status in _BUSY:
            problem, was_sent = str(refusal or f"{url} is too busy"), isinstance(refusal, OutcomeUnknown)
            return _FailedAttempt(problem, was_sent, _retry_after(response), refusal)
        if status >= 500:  # noqa: PLR2004 - from a proxy, or a server error
            return _FailedAttempt(f"{url} answered {call} with status {status}", was_sent=True)
        if status == _TOO_LARGE:  # for the store, the server, or a proxy in front of it
            cause = ObjectTooLarge(
                str(refusal or f"{url} refuses {call} because of its size; submit fewer tasks in one call")
            )
            if isinstance(refusal, OutcomeUnknown):  # a part of the call is stored
                raise refusal from cause
            refusal = cause
        final = refusal or StorageError(f"{url} is not a qo server: it answered {call} with {status}")
        raise _refusal(final, is_doubtful=is_doubtful)


def _final_error(call: str, last: _FailedAttempt, *, may_be_applied: bool) -> StorageError:
    is_unknown = may_be_applied and call in wire.WRITES
    error = OutcomeUnknown(f"{last.problem}; it may have been applied") if is_unknown else StorageError(last.problem)
    error.__cause__ = last.cause
    return error


def _refusal(error: QoError, *, is_doubtful: bool) -> QoError:
    if is_doubtful and isinstance(error, Conflict):
        unknown = OutcomeUnknown(f"{error}, or by an earlier attempt of this call")
        unknown.__cause__ = error
        return unknown
    return error


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return float(response.headers.get("Retry-After", ""))
    except ValueError:  # a date, which is rare, and would need synchronized clocks
        return None
