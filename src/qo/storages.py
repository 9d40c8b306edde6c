"""Storages that hold a whole queue in one object: the protocol, and four implementations.

async with qo.connect(S3Storage("my-bucket", "queues/jobs.json", session=boto3.Session())) as queue: ...
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from os import PathLike
from pathlib import Path
from time import sleep
from typing import Any, Protocol, runtime_checkable

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.errors import Conflict, InvalidSetting, Refused, StorageError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_FILE_MODE = 0o600  # of a new file: a queue can hold secrets
_LOCK_TIMEOUT = 10.0  # seconds; a holder needs milliseconds, unless its process is stopped
_MAX_READ_ATTEMPTS = 20  # of an object that other processes keep replacing
_MISSING = 404
_CONFLICT_STATUSES = {_MISSING, 409, 412}  # answers to a conditional request whose condition did not hold


@runtime_checkable
class ObjectStorage(Protocol):
    """One object with compare-and-set writes. A write is durable before it returns."""

    async def read(self) -> tuple[bytes, str | None]:
        """Return the content and its version, or (b"", None) if the object does not exist."""

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Replace the version `if_match`, or any if None, and return the new one. Raises Conflict on a mismatch."""


@runtime_checkable
class CreatingStorage(Protocol):
    """A storage that can also create conditionally, so that two processes can start at the same time."""

    async def create(self, content: bytes) -> str:
        """Write the first version. Raises Conflict if the object exists already."""


class InMemoryStorage:
    """A storage for tests and single processes. `initial_content` is content that another storage's `read` returned."""

    def __init__(self, initial_content: bytes = b"") -> None:
        self._content, self._version = initial_content, int(bool(initial_content))

    async def read(self) -> tuple[bytes, str | None]:
        return self._content, str(self._version) if self._version else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        if if_match is not None and if_match != str(self._version):
            raise Conflict("the content was written by another process")
        self._content, self._version = content, self._version + 1
        return str(self._version)

    async def create(self, content: bytes) -> str:
        if self._version:
            raise Conflict("there is content already")
        return await self.write(content)


class LocalFileSystemStorage:
    """One file, for any number of processes on one machine (POSIX). Directories above it are created.

    A write holds a lock on `PATH.lock`, compares, and replaces the file by a synced one, so that a reader never sees a
    part of a write. The version is a hash of the content: the times of a file are too coarse to tell two writes apart.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        if fcntl is None:
            raise InvalidSetting("LocalFileSystemStorage needs a POSIX system; use sqlite:///qo.db")
        self._path = Path(path).expanduser().resolve()  # the working directory may change, and a link stays a link
        if self._path.is_dir():
            raise InvalidSetting(f"{self._path} is a directory; pass the path of a file, or use file://{self._path}")
        if self._path.exists() and not self._path.is_file():  # a device may have no end
            raise InvalidSetting(f"{self._path} is not a regular file; pass the path of one")

    async def read(self) -> tuple[bytes, str | None]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[bytes, str | None]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return b"", None
        return content, sha256(content).hexdigest()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await asyncio.to_thread(self._write, content, if_match, is_new=False)

    async def create(self, content: bytes) -> str:
        return await asyncio.to_thread(self._write, content, None, is_new=True)

    def _write(self, content: bytes, if_match: str | None, *, is_new: bool) -> str:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            _, version = self._read()
            if (is_new and version is not None) or (if_match is not None and if_match != version):
                raise Conflict(f"{self._path} was written by another process")
            self._replace(content, _FILE_MODE if version is None else self._path.stat().st_mode & 0o777)
        return sha256(content).hexdigest()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock. The file is opened every time, so that the lock also excludes threads of this process."""
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            deadline, backoff = boot_clock() + _LOCK_TIMEOUT, Backoff(0.0005, 0.01, factor=1.5)
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if boot_clock() > deadline:
                        raise StorageError(
                            f"{self._path}.lock has been locked for {_LOCK_TIMEOUT:g} s; is a process stopped?"
                        ) from None
                    sleep(backoff.next())
            yield
        finally:
            os.close(descriptor)  # and with it the lock

    def _replace(self, content: bytes, mode: int) -> None:
        draft = self._path.with_name(f".{self._path.name}.new")  # one: only the holder of the lock writes it
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class S3Storage:
    """One object in S3 or an S3-compatible store, through the caller's boto3 session.

    The storage creates its client from the session's credentials and region, and turns the client's retries off: a
    retry of a conditional write whose first response was lost would look like a conflict.
    """

    def __init__(
        self,
        bucket: str,
        key: str,
        *,
        session: Any = None,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._bucket, self._key = bucket, key
        try:
            import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional extra, slow to import
            from botocore.config import Config  # type: ignore[import-untyped]  # noqa: PLC0415
        except ImportError as error:
            raise InvalidSetting("S3Storage needs boto3: pip install 'qo-queue[s3]'") from error
        used_session = session or boto3.Session()
        config = Config(
            connect_timeout=5,
            read_timeout=timeout,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",  # the default is a chunked encoding that some stores reject
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint_url else "auto"},
        )
        self._client = used_session.client("s3", endpoint_url=endpoint_url, region_name=region_name, config=config)
        if not hasattr(self._client, "put_object"):
            raise InvalidSetting(f"session={used_session!r:.80} is not a boto3.Session: its clients have no put_object")

    async def read(self) -> tuple[bytes, str | None]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[bytes, str | None]:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key)
            return answer["Body"].read(), answer["ETag"]
        except self._client.exceptions.NoSuchKey:
            return b"", None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await asyncio.to_thread(self._put, content, {} if if_match is None else {"IfMatch": if_match})

    async def create(self, content: bytes) -> str:
        return await asyncio.to_thread(self._put, content, {"IfNoneMatch": "*"})

    def _put(self, content: bytes, condition: dict[str, str]) -> str:
        try:
            version: str = self._client.put_object(
                Bucket=self._bucket, Key=self._key, Body=content, ContentType="application/json", **condition
            )["ETag"]
        except self._client.exceptions.ClientError as error:
            if condition and error.response["Error"].get("Code") != "NoSuchBucket":
                _raise_conflict(error, error.response["ResponseMetadata"]["HTTPStatusCode"], self._key)
            raise
        return version


class GCSStorage:
    """One object in Google Cloud Storage, through the caller's `google.cloud.storage.Client`."""

    def __init__(self, bucket_name: str, blob_name: str, *, client: Any = None) -> None:
        self._bucket_name, self._name = bucket_name, blob_name
        if client is None:
            try:
                from google.cloud.storage import (  # type: ignore[import-not-found]  # noqa: PLC0415 - not a dependency
                    Client,
                )
            except ImportError as error:
                raise InvalidSetting("GCSStorage needs its client: pip install google-cloud-storage") from error
            client = Client()
        self._bucket = client.bucket(bucket_name)

    async def read(self) -> tuple[bytes, str | None]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[bytes, str | None]:
        for _ in range(_MAX_READ_ATTEMPTS):
            blob = self._bucket.get_blob(self._name)
            if blob is None:
                return b"", None
            with suppress(Conflict):  # the object was replaced between the two requests
                return self._send(
                    lambda found: found.download_as_bytes(if_generation_match=found.generation), blob
                ), str(blob.generation)
        raise StorageError(f"other processes replace {self._name} too often to read it; try again")

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await asyncio.to_thread(self._put, content, None if if_match is None else int(if_match))

    async def create(self, content: bytes) -> str:
        return await asyncio.to_thread(self._put, content, 0)  # generation 0 means that the object must not exist

    def _put(self, content: bytes, generation: int | None) -> str:
        blob = self._bucket.blob(self._name)
        condition = {} if generation is None else {"if_generation_match": generation}
        try:
            self._send(
                lambda made: made.upload_from_string(content, content_type="application/json", retry=None, **condition),
                blob,
            )
        except Conflict as error:
            # 404 means the bucket: for a missing object the store answers 412
            if getattr(error.cause, "code", None) == _MISSING:
                raise Refused(f"the bucket {self._bucket_name} does not exist; create it") from error.cause
            raise
        return str(blob.generation)

    def _send(self, request: Callable[[Any], Any], blob: Any) -> Any:
        try:
            return request(blob)
        except Exception as error:
            _raise_conflict(error, getattr(error, "code", None), self._name)
            raise


def _raise_conflict(error: Exception, status: object, name: str) -> None:
    if status in _CONFLICT_STATUSES:
        raise Conflict(f"{name} was written by another process") from error
