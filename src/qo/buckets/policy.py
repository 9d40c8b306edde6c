"""IAM policies with the least privileges that each role needs."""

import re
from typing import Any, Literal, get_args

from qo.buckets.address import BucketAddress
from qo.errors import InvalidSetting
from qo.model import ADMIN_NOTES, AUDIT_NOTES

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
