"""Storages that hold a whole queue in one object: the protocol, and three implementations.

async with qo.connect(S3Storage("my-bucket", "queues/jobs.json", session=boto3.Session())) as queue: ...
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from qo.errors import Conflict, InvalidSetting, Refused, StorageError

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
