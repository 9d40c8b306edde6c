"""A bucket in S3 or an S3-compatible store, Google Cloud Storage, or Azure.

The driver's retries are off: a retry of a conditional write whose first response was lost would look like a conflict.
The store's clock is read from the Date header of its responses, and extrapolated with a monotonic clock.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from qo.backoff import Backoff
from qo.bucket import ANY, NEW, Blob, can_begin_key, check_key
from qo.buckets.address import BucketAddress
from qo.buckets.boto_client import open_client, version_ids
from qo.buckets.bulk_delete import BulkDelete
from qo.buckets.driver_errors import Busy, is_missing_key, to_qo_error
from qo.buckets.thread_pool import ThreadPool
from qo.clock import Clock, system_clock
from qo.errors import Conflict, InvalidSetting, Refused, StorageError

if TYPE_CHECKING:
    from obstore import GetResult, PutMode
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        RetryConfig,
        S3Config,
        S3CredentialProvider,
    )
import http.client
import urllib.error
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime

from qo.clock import ClockDistance

Store = S3Store | GCSStore | AzureStore
_CONNECT_TIMEOUT = timedelta(seconds=5)
_ANONYMOUS = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
_MAX_READING_AGE = 60.0
_REQUEST_TIMEOUT = 5.0
_DATE_RESOLUTION = 1.0  # a Date header has no fractions


class StoreClock:
    def __init__(self, address: BucketAddress, clock: Clock, elapsed: Clock | None = None) -> None:
        self._url = _root_url(address)
        self._clock, self._distance = clock, ClockDistance(clock, elapsed)
        self._began: float | None = None  # the store's time when the monotonic clock was at 0
        self._seen_at: float | None = None  # by the monotonic clock

    def now(self) -> float:
        return self._clock() if self._began is None else self._distance.elapsed() + self._began

    @property
    def is_stale(self) -> bool:
        return self._seen_at is None or self._distance.elapsed() - self._seen_at >= _MAX_READING_AGE

    def was_set(self) -> bool:
        """Whether the local clock was set, or this machine was suspended, since the last call."""
        return self._distance.has_changed()

    def refresh(self) -> None:
        """Read the store's time with an unsigned HEAD request, which every store answers, even if with an error."""
        sent_at = self._clock()
        date = _date(self._url)
        received_at, self._seen_at = self._clock(), self._distance.elapsed()
        if date is not None:  # after a failure, too, the next attempt waits for the full interval
            self._began = received_at + least_offset(sent_at, date, received_at) - self._seen_at


def least_offset(sent_at: float, date: float, received_at: float) -> float:
    """The smallest offset that explains a Date, so that a clock within the Date's second needs no correction.

    The store's clock was in [date, date + 1) at some moment between sending and receiving.
    """
    earliest, latest = date - received_at, date + _DATE_RESOLUTION - sent_at
    return min(max(0.0, earliest), latest)


def _root_url(address: BucketAddress) -> str:
    if address.endpoint:
        return f"{address.endpoint}/"
    if address.scheme == "s3":
        return f"https://s3.{address.region}.amazonaws.com/"
    return f"https://{address.account}.blob.core.windows.net/" if address.account else "https://storage.googleapis.com/"


def _date(url: str) -> float | None:
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - http(s), checked with the address
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT) as answer:  # noqa: S310 - as above
            return _read(answer.headers)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return _read(refusal.headers)
    except (OSError, ValueError, http.client.HTTPException):
        return None  # the next request reports the problem


def _read(headers: Message) -> float | None:
    try:
        return parsedate_to_datetime(headers["Date"] or "").timestamp()
    except ValueError:
        return None


def open_store(address: BucketAddress, *, bulk_delete: bool = False) -> Store:
    """Open a store. With `bulk_delete` S3 uses bulk requests for single keys too, which are slower."""
    try:
        if address.scheme == "s3":
            return _s3(address, bulk_delete=bulk_delete)
        return _gs(address) if address.scheme == "gs" else _az(address)
    except obstore.exceptions.BaseError as error:  # the driver reads credentials and settings from the environment
        if "Account must be specified" in str(error):
            problem = "needs the name of a storage account: add ?account=NAME or set AZURE_STORAGE_ACCOUNT_NAME"
        else:
            problem = f"cannot be opened; check its credentials and settings ({str(error).splitlines()[0]})"
        raise InvalidSetting(f"{address} {problem}") from error


def _s3(address: BucketAddress, *, bulk_delete: bool) -> S3Store:
    config: S3Config = {
        "region": address.region,
        "disable_bulk_delete": not bulk_delete,
        "skip_signature": address.anonymous,
    }
    if address.endpoint:
        config["endpoint"] = address.endpoint
        # an environment variable of this name would override `endpoint`
        config["aws_endpoint_url_s3"] = address.endpoint
    provider = None if address.anonymous else _credentials(address)
    return S3Store(
        address.bucket,
        config=config,
        client_options=_client(address),
        retry_config=_retries(),
        credential_provider=provider,
    )


def _credentials(address: BucketAddress) -> "S3CredentialProvider | None":
    """None if the environment holds keys, which the driver reads; otherwise boto3's profiles, logins and roles."""
    if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        return None
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, rarely needed
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - as above

    try:
        return Boto3CredentialProvider()
    except ValueError as error:
        raise Refused(
            f"there are no credentials for {address}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in"
        ) from error
    except BotoCoreError as error:
        raise InvalidSetting(f"the credentials for {address} cannot be read; check AWS_PROFILE ({error})") from error


def _gs(address: BucketAddress) -> GCSStore:
    config: GCSConfig = {}
    if address.anonymous:  # the driver ignores `skip_signature` for deletions
        config["service_account_key"] = _ANONYMOUS
    if address.endpoint:
        config["base_url"] = address.endpoint
    return GCSStore(address.bucket, config=config, client_options=_client(address), retry_config=_retries())


def _az(address: BucketAddress) -> AzureStore:
    config: AzureConfig = {"skip_signature": address.anonymous}
    if address.account:
        config["account_name"] = address.account
    if address.endpoint:
        config["endpoint"] = address.endpoint
    return AzureStore(address.bucket, config=config, client_options=_client(address), retry_config=_retries())


def _client(address: BucketAddress) -> "ClientConfig":
    return {
        "allow_http": address.endpoint.startswith("http://"),
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": timedelta(seconds=address.timeout),
        "pool_max_idle_per_host": str(address.connections),
        "default_content_type": "application/octet-stream",
    }


def _retries() -> "RetryConfig":
    return {"max_retries": 0}


T = TypeVar("T")
_PAGE_SIZE = 1000  # keys in one LIST request
_BUSY_RETRIES, _FIRST_BUSY_DELAY, _MAX_BUSY_DELAY = 5, 0.02, 0.32


class CloudBucket:
    """Runs the driver's blocking calls in its own threads: the driver's coroutines aborted the interpreter at exit."""

    def __init__(self, address: BucketAddress, *, clock: Clock | None = None) -> None:
        self._address = address
        self._root = f"{address.prefix}/" if address.prefix else ""
        self._store: Store = open_store(address)
        self._pool = ThreadPool(address.connections)
        self._remove: Callable[[str], Awaitable[None]] = self._delete_one
        self._bulk_store: Store | None = None  # opened by the first bulk delete: it takes milliseconds
        if address.scheme == "s3":  # only S3 has bulk deletes
            self._remove = BulkDelete(self._delete_one, self._delete_many).remove
        self._clock = clock
        self._store_clock = StoreClock(address, system_clock)
        self._client: Any = None  # boto3's, for versions; created on first use
        self._clock_check: asyncio.Future[None] | None = None

    async def get(self, key: str) -> Blob | None:
        return await self._call(partial(self._get, self._path(key)), key, writing=False)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        mode = self._mode(expected, key)
        send = partial(self._put, self._path(key), data, mode)
        backoff = Backoff(_FIRST_BUSY_DELAY, _MAX_BUSY_DELAY, jitter=(0.5, 1.0))
        for _ in range(_BUSY_RETRIES):
            try:
                return await self._call(send, key, writing=True)
            except Busy:  # the store did not apply the write, so a retry is safe
                await asyncio.sleep(backoff.next())
        return await self._call(send, key, writing=True)

    async def delete(self, key: str) -> None:
        await self._remove(self._path(key))

    async def _delete_one(self, path: str) -> None:
        await self._call(partial(self._delete, path), path, writing=True)

    async def _delete_many(self, paths: list[str]) -> None:
        await self._call(partial(self._delete_in_bulk, paths), f"{paths[0]} and others", writing=True)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        """A prefix that ends with a slash is faster: the driver can list whole path segments only."""
        if not can_begin_key(prefix):
            return
        folder = prefix[: prefix.rfind("/") + 1]
        offset = f"{self._root}{after}" if after and after >= prefix else None
        pages = obstore.list(self._store, f"{self._root}{folder}" or None, offset=offset, chunk_size=_PAGE_SIZE)
        while page := await self._call(partial(next, pages, ()), prefix, writing=False):
            for entry in page:
                key = entry["path"][len(self._root) :]
                if key.startswith(prefix) and key > after:  # some stores ignore the offset
                    yield key
                elif key > prefix and not key.startswith(prefix):
                    return

    async def versions(self, key: str) -> list[Blob]:
        path = self._path(key)
        ids = await self._pool.run(self._version_ids, path) if self._address.scheme == "s3" else []
        reads = [partial(self._get, path, version_id) for version_id in ids] or [partial(self._get, path)]
        blobs = await asyncio.gather(*(self._call(read, key, writing=False) for read in reads))
        return [blob for blob in blobs if blob is not None]

    def now(self) -> float:
        return self._clock() if self._clock else self._store_clock.now()

    def _path(self, key: str) -> str:
        return self._root + check_key(key)

    def _mode(self, expected: str, key: str) -> "PutMode":
        if expected == NEW:
            return "create"
        if expected == ANY:
            return "overwrite"
        if self._address.scheme != "gs":
            return {"e_tag": expected}
        if not expected.isdecimal():  # Google answers 400 to such a version
            raise Conflict(f"{key} never had the version {expected!r:.40}")
        return {"version": expected}

    async def _call(self, function: Callable[[], T], key: str, *, writing: bool) -> T:
        await self._refresh_clock()
        try:
            return await self._pool.run(function)
        except (obstore.exceptions.BaseError, FileNotFoundError, ValueError) as error:
            raise to_qo_error(error, self._address, key, writing=writing) from error

    def _delete_in_bulk(self, paths: list[str]) -> None:
        store = self._bulk_store = self._bulk_store or open_store(self._address, bulk_delete=True)
        obstore.delete(store, paths)

    def _get(self, path: str, version_id: str | None = None) -> Blob | None:
        try:
            if version_id in (None, "null"):  # "null": written before versioning was on
                found: GetResult = obstore.get(self._store, path)
            else:
                found = obstore.get(self._store, path, options={"version": version_id})
            data = found.bytes().to_bytes()
        except FileNotFoundError as error:
            if is_missing_key(error):
                return None
            raise
        meta = found.meta
        version = meta["version"] if self._address.scheme == "gs" else meta["e_tag"]
        return Blob(data, version or "", meta["last_modified"].timestamp())

    def _put(self, path: str, data: bytes, mode: "PutMode") -> str:
        result = obstore.put(self._store, path, data, mode=mode, use_multipart=False)
        version = result["version"] if self._address.scheme == "gs" else result["e_tag"]
        if not version:
            raise StorageError(f"{self._address} returns no object versions; qo cannot use this store")
        return version

    def _delete(self, path: str) -> None:
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError as error:
            if not is_missing_key(error):
                raise

    def _version_ids(self, path: str) -> list[str]:
        if self._client is None:
            self._client = open_client(self._address)
        return version_ids(self._client, self._address, path)

    async def _refresh_clock(self) -> None:
        """Read the store's clock before the first request and after the local clock was set, else in the background."""
        if self._clock is not None:
            return
        must_wait = self._clock_check is None or self._store_clock.was_set()
        if not must_wait and not self._store_clock.is_stale:
            return
        if self._clock_check is None or self._clock_check.done():
            self._clock_check = asyncio.ensure_future(self._pool.run(self._store_clock.refresh))
        if must_wait:
            await asyncio.shield(self._clock_check)
