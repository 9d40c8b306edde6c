"""The boto3 client, for requests that obstore does not offer: object versions and bucket settings."""

from typing import Any

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting, StorageError


def open_client(address: BucketAddress) -> Any:
    try:
        import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import, rarely needed
        from botocore import UNSIGNED  # type: ignore[import-untyped]  # noqa: PLC0415
        from botocore.config import Config  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSetting("this operation needs boto3: pip install 'qo-queue[s3]'") from error
    config = Config(
        connect_timeout=5,
        read_timeout=address.timeout,
        retries={"total_max_attempts": 3, "mode": "standard"},
        s3={"addressing_style": "path" if address.endpoint else "auto"},
        **({"signature_version": UNSIGNED} if address.anonymous else {}),
    )
    return boto3.client("s3", region_name=address.region, endpoint_url=address.endpoint or None, config=config)


def version_ids(client: Any, address: BucketAddress, path: str) -> list[str]:
    from botocore.exceptions import (  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import, rarely needed
        BotoCoreError,
        ClientError,
    )

    try:
        return _version_ids(client, address.bucket, path)
    except (BotoCoreError, ClientError) as error:
        raise StorageError(f"the versions of {path} in {address} cannot be listed: {error}") from error


def _version_ids(client: Any, bucket: str, path: str) -> list[str]:
    """The versions of the current object, oldest first. Versions from before a deletion belong to an earlier object."""
    found: list[str] = []
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=path):
        versions = [entry for entry in page.get("Versions", ()) if entry["Key"] == path]
        deletions = [entry for entry in page.get("DeleteMarkers", ()) if entry["Key"] == path]
        if any(entry["IsLatest"] for entry in deletions):
            return []
        last = max((entry["LastModified"] for entry in deletions), default=None)
        # Dates are whole seconds, so a version from the same second as a deletion may be newer. It is included.
        found += [entry["VersionId"] for entry in versions if last is None or entry["LastModified"] >= last]
        if last is not None:
            break
    return found[::-1]
