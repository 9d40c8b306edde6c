"""Implementations of the bucket port. None imports another, and drivers are imported on first use."""

from urllib.parse import urlsplit

from qo.bucket import Bucket
from qo.clock import Clock
from qo.errors import InvalidSetting
from qo.safe_text import hide_password

__all__ = ["open_bucket"]


def open_bucket(url: str, *, clock: Clock | None = None) -> Bucket:
    """Open the bucket that a URL names. A clock is for tests: by default a bucket uses its store's clock."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        from qo.buckets.memory import MemoryBucket  # noqa: PLC0415

        return MemoryBucket(clock) if clock else MemoryBucket()
    if scheme == "file":
        from qo.buckets.folder.bucket import FolderBucket  # noqa: PLC0415

        return FolderBucket.from_url(url, clock=clock)
    if scheme not in ("s3", "gs", "az"):
        raise InvalidSetting(
            f"{hide_password(url)!r:.200} is not a bucket; a URL begins with s3://, gs://, az://, file:// or memory://"
        )
    try:
        from qo.buckets.address import parse_address  # noqa: PLC0415
        from qo.buckets.cloud import CloudBucket  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSetting(f"{scheme}:// needs its driver: pip install 'qo-queue[s3]'") from error
    return CloudBucket(parse_address(url), clock=clock)
