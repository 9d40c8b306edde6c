"""Prepares an S3 bucket: versioning, expiry of old versions, CORS for the dashboard, and the IAM policies of roles."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct

from qo.buckets.address import BucketAddress
from qo.buckets.boto_client import open_client
from qo.errors import InvalidSetting, StorageError
from qo.model import ADMIN_NOTES, AUDIT_NOTES

_NO_RULES = {"NoSuchLifecycleConfiguration", "NoSuchCORSConfiguration"}
Role = Literal["producer", "worker", "monitor", "dashboard", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
_READ = ["s3:GetObject", "s3:GetObjectVersion"]
_SUBMIT = ["s3:GetObject", "s3:PutObject"]
_CHANGE = ["s3:GetObject", "s3:GetObjectVersion", "s3:PutObject", "s3:DeleteObject"]
_ACTIONS: dict[Role, list[str]] = {
    "producer": _SUBMIT,
    "worker": _CHANGE,
    "monitor": _CHANGE,
    "dashboard": _READ,
    "operator": _CHANGE,
    "admin": _CHANGE,
}
_PAGE = "ui/"  # scripts that run in browsers, with the rights of the user who opens them
_ALL_PREFIXES = [""]
_PATTERN = re.compile(r"[*?$]")
# Key prefixes by layout. A producer writes a task, its index entry and its large inputs, and reads their state. All
# other roles also need leases, registrations, controls and counts.
_PRODUCER_PREFIXES = {
    "tasks": ["tasks/", "ready/", "data/", "format.json"],
    "one": ["queue.json", "data/"],
    "sqlite": ["queue.sqlite", "data/"],
    "log": ["log/*/submissions/"],
}
_PRODUCER_READS = {"log": "log/meta.json"}  # names the folder of the submissions; its writer controls all tasks
_PRODUCER_CREATES = {"log": "data/"}  # large inputs, under random names
_WORKER_PREFIXES = {
    "tasks": ["tasks/", "ready/", "leases/", "notes/", "workers/", "stats/", "data/", "format.json"],
    "one": ["queue.json", "data/"],
    "sqlite": ["queue.sqlite", "data/"],
    "log": ["log/", "notes/", "workers/", "data/"],
}


class SetupStep(Struct, frozen=True):
    name: str
    is_done: bool  # whether the bucket already had this setting
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
        return f"there is no bucket {address.bucket!r}; create it first, in the region you want"
    if code in ("AccessDenied", "403"):
        return f"these credentials may not change the settings of {address.bucket}; use those of an administrator"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return f"{address} does not accept the credentials ({code}); check AWS_ACCESS_KEY_ID and its secret"
    if code in ("NotImplemented", "MethodNotAllowed"):
        return f"{address} does not support this setting ({text}); configure it with the store's own tools"
    return f"{address} cannot be set up: {text}"


def policy(address: BucketAddress, role: Role, *, layout: str = "tasks") -> dict[str, Any]:
    """The IAM policy of a role.

    No policy allows deleting versions, changing the bucket's settings or reading objects outside the queue. Only an
    admin can access tokens and the audit trail, and write the page. All other roles are denied explicitly, so that
    another policy of the same user cannot grant it. In the layouts `one` and `sqlite` all roles share one object, so a
    producer can change tasks like a worker. In the layout `log` it can submit, and neither read nor change tasks.

    Raises InvalidSetting for a prefix with a wildcard or variable of policies: it would name other queues too.
    """
    if found := _PATTERN.search(f"{address.bucket}/{address.prefix}"):
        raise InvalidSetting(
            f"{address} contains {found[0]!r}, which policies treat as a pattern; choose another prefix"
        )
    bucket, root = f"arn:aws:s3:::{address.bucket}", f"{address.prefix}/" if address.prefix else ""
    starts = [f"{root}{folder}*" for folder in _prefixes(role, layout)]
    listing: dict[str, Any] = {
        "Sid": "List",  # without this permission S3 answers 403 instead of 404 for a missing object
        "Effect": "Allow",
        "Action": ["s3:ListBucket"] if role == "producer" else ["s3:ListBucket", "s3:ListBucketVersions"],
        "Resource": bucket,
    }
    if starts != ["*"]:
        listing["Condition"] = {"StringLike": {"s3:prefix": starts}}
    objects = {
        "Sid": "Objects",
        "Effect": "Allow",
        "Action": _ACTIONS[role],
        "Resource": [f"{bucket}/{start}" for start in starts],
    }
    statements = [listing, objects]
    here = f"{bucket}/{root}"
    if role == "producer" and layout in _PRODUCER_READS:
        read, created = _PRODUCER_READS[layout], _PRODUCER_CREATES[layout]
        # It cannot list submissions or large values, so it finds none of other producers: their names are random.
        listing["Condition"] = {"StringLike": {"s3:prefix": [f"{root}{read}"]}}
        statements.append({"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{here}{read}"})
        statements.append({"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": f"{here}{created}*"})
    if role not in ("admin", "dashboard"):
        # New records have random names. Without listing or reading, these roles cannot replace an existing one.
        statements.append({"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": f"{here}{AUDIT_NOTES}*"})
    if role != "admin":
        page = {"Effect": "Deny", "Action": ["s3:PutObject", "s3:DeleteObject"], "Resource": f"{here}{_PAGE}*"}
        statements += [{"Effect": "Deny", "Action": "s3:*", "Resource": f"{here}{ADMIN_NOTES}*"}, page]
    return {"Version": "2012-10-17", "Statement": statements}


def _prefixes(role: Role, layout: str) -> list[str]:
    if role == "admin":
        return _ALL_PREFIXES
    if role == "producer":
        return _PRODUCER_PREFIXES[layout]
    return [*_WORKER_PREFIXES[layout], *([_PAGE] if role == "dashboard" else [])]
