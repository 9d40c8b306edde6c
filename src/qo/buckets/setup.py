"""Prepares an S3 bucket: versioning, a lifecycle rule for old versions, and CORS for the dashboard."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from qo.buckets.address import BucketAddress
from qo.buckets.boto_client import open_client
from qo.errors import StorageError

_NO_RULES = {"NoSuchLifecycleConfiguration", "NoSuchCORSConfiguration"}


class SetupStep(Struct, frozen=True):
    name: str
    is_done: bool  # whether the bucket was already set up so
    detail: str


def set_up(address: BucketAddress, *, origins: Sequence[str], noncurrent_days: int, dry_run: bool) -> list[SetupStep]:
    """Return the steps taken, or with `dry_run` the steps needed. Rules of other applications are preserved."""
    from botocore.exceptions import (  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import, rarely needed
        BotoCoreError,
        ClientError,
    )

    client = open_client(address)
    try:
        steps = [_versioning(client, address, dry_run=dry_run)]
        steps.append(_lifecycle(client, address, noncurrent_days, dry_run=dry_run))
        if origins:
            steps.append(_cors(client, address, origins, dry_run=dry_run))
    except ClientError as error:
        raise StorageError(_advice(address, error.response["Error"].get("Code", ""), str(error))) from error
    except BotoCoreError as error:
        raise StorageError(f"{address} cannot be set up: {error}") from error
    return steps


def _versioning(client: Any, address: BucketAddress, *, dry_run: bool) -> SetupStep:
    is_on = client.get_bucket_versioning(Bucket=address.bucket).get("Status") == "Enabled"
    if not is_on and not dry_run:
        client.put_bucket_versioning(Bucket=address.bucket, VersioningConfiguration={"Status": "Enabled"})
    return SetupStep("versioning", is_on, "every version of a task is kept as its history")


def _lifecycle(client: Any, address: BucketAddress, days: int, *, dry_run: bool) -> SetupStep:
    """Deleted index entries leave a version and a delete marker, which would be stored forever without this rule."""
    rule = lifecycle_rule(address.prefix, days)
    rules = _rules(lambda: client.get_bucket_lifecycle_configuration(Bucket=address.bucket))
    is_done = any(_same(old, rule) for old in rules)
    if not is_done and not dry_run:
        others = [old for old in rules if old.get("ID") != rule["ID"]]
        client.put_bucket_lifecycle_configuration(
            Bucket=address.bucket, LifecycleConfiguration={"Rules": [*others, rule]}
        )
    return SetupStep("lifecycle", is_done, f"noncurrent versions are removed after {days} days")


def _cors(client: Any, address: BucketAddress, origins: Sequence[str], *, dry_run: bool) -> SetupStep:
    rule = cors_rule(origins)
    rules = _rules(lambda: client.get_bucket_cors(Bucket=address.bucket), name="CORSRules")
    is_done = any(_same(old, rule) for old in rules)
    if not is_done and not dry_run:
        others = [old for old in rules if old.get("ID") != rule["ID"]]
        client.put_bucket_cors(Bucket=address.bucket, CORSConfiguration={"CORSRules": [*others, rule]})
    return SetupStep("cors", is_done, f"a dashboard served from {', '.join(origins)} may read and write here")


def lifecycle_rule(prefix: str, days: int) -> dict[str, Any]:
    return {
        "ID": f"qo-{prefix.replace('/', '-')}" if prefix else "qo",
        "Status": "Enabled",
        "Filter": {"Prefix": f"{prefix}/" if prefix else ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": days},
        "Expiration": {"ExpiredObjectDeleteMarker": True},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }


def cors_rule(origins: Sequence[str]) -> dict[str, Any]:
    return {
        "ID": "qo-dashboard",
        "AllowedOrigins": list(origins),
        "AllowedMethods": ["GET", "PUT", "HEAD", "DELETE"],  # DELETE: for index entries of tasks that have changed
        "AllowedHeaders": ["*"],
        "ExposeHeaders": ["ETag", "Date", "x-amz-version-id"],
        "MaxAgeSeconds": 3600,
    }


def _rules(read: Callable[[], Any], name: str = "Rules") -> list[dict[str, Any]]:
    from botocore.exceptions import ClientError  # noqa: PLC0415 - as above

    try:
        return list(read().get(name, []))
    except ClientError as error:
        if error.response["Error"].get("Code") in _NO_RULES:
            return []
        raise


def _same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the old rule contains the new one. Stores add default fields."""
    return all(old.get(name) == value for name, value in new.items())


def _advice(address: BucketAddress, code: str, text: str) -> str:
    if code in ("NoSuchBucket", "404"):
        return f"there is no bucket {address.bucket!r}; create it first, in the region you want it in"
    if code in ("AccessDenied", "403"):
        return f"these credentials may not change the settings of {address.bucket}; use those of an administrator"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return f"{address} does not accept the credentials ({code}); check AWS_ACCESS_KEY_ID and its secret"
    if code in ("NotImplemented", "MethodNotAllowed"):
        return f"{address} does not support this setting ({text}); configure it with the store's own tools"
    return f"{address} cannot be set up: {text}"
