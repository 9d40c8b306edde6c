"""Public read access to the page. It contains no secrets, and a browser has no credentials before it has loaded it."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from qo.buckets.address import BucketAddress
from qo.web.static_site.files import INDEX
from qo.web.static_site.location import FOLDER, root

_TIMEOUT = 5.0  # seconds


def public_statement(address: BucketAddress) -> dict[str, Any]:
    """Allows everyone to read the files of the page, and nothing else."""
    return {
        "Sid": "QoDashboardPage",
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{address.bucket}/{root(address)}{FOLDER}/*"],
    }


def allow_public_read(client: Any, address: BucketAddress) -> None:
    """Add the statement to the policy of the bucket. Other statements, and those of other queues, are kept."""
    ours = public_statement(address)
    policy = _policy(client, address)
    statements = list(policy.get("Statement", []))
    mine = next((each for each in statements if each.get("Sid") == ours["Sid"]), None)
    resources = [] if mine is None else _listed(mine.get("Resource", []))
    if ours["Resource"][0] in resources:
        return
    others = [each for each in statements if each.get("Sid") != ours["Sid"]]
    wider = {**ours, "Resource": [*resources, *ours["Resource"]]}
    policy = {"Version": "2012-10-17", **policy, "Statement": [*others, wider]}
    client.put_bucket_policy(Bucket=address.bucket, Policy=json.dumps(policy))


def _policy(client: Any, address: BucketAddress) -> dict[str, Any]:
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, rarely needed

    try:
        policy: dict[str, Any] = json.loads(client.get_bucket_policy(Bucket=address.bucket)["Policy"])
    except ClientError as error:
        if error.response["Error"].get("Code") == "NoSuchBucketPolicy":
            return {}
        raise
    return policy


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def is_readable(page: str) -> bool | None:
    """Whether the page can be read without credentials; None if there was no response."""
    request = urllib.request.Request(f"{page}{INDEX}", method="HEAD")  # noqa: S310 - http(s), checked before
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT):  # noqa: S310 - as above
            return True
    except urllib.error.HTTPError as refusal:
        with refusal:
            return False
    except (OSError, ValueError, http.client.HTTPException):
        return None
