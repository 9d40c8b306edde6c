"""What each role may do in a bucket, as an IAM policy: as little as it can do its work with."""

from typing import Any, Literal, get_args

from qo.buckets.address import BucketAddress
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
_PAGE = "ui/"  # scripts that run in browsers with the rights of whoever opens them
_EVERYTHING = [""]

# How keys begin, by layout. A producer writes a task, its index entry and its large inputs, and reads what became of
# them. All others also need leases, registrations, controls and counts.
_SUBMITTED = {
    "tasks": ["tasks/", "ready/", "data/", "format.json"],
    "one": ["queue.json", "data/"],
    "sqlite": ["queue.sqlite", "data/"],
}
_WORKED_ON = {
    "tasks": ["tasks/", "ready/", "leases/", "notes/", "workers/", "stats/", "data/", "format.json"],
    "one": ["queue.json", "data/"],
    "sqlite": ["queue.sqlite", "data/"],
}


def policy(address: BucketAddress, role: Role, *, layout: str = "tasks") -> dict[str, Any]:
    """Nothing in it lets anyone delete a version, change the bucket's settings or see what lies beside the queue.

    Only an admin reaches tokens and the audit trail, and writes the page. All others are refused explicitly, so another
    policy of the same user does not give it to them. In the layouts `one` and `sqlite` all share one object, and a
    producer can do to tasks what a worker can.
    """
    bucket, root = f"arn:aws:s3:::{address.bucket}", f"{address.prefix}/" if address.prefix else ""
    starts = [f"{root}{folder}*" for folder in _folders(role, layout)]
    listing: dict[str, Any] = {
        "Sid": "List",  # without it a missing object answers 403 in place of 404
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
    if role not in ("admin", "dashboard"):
        # New records have names that nobody can guess, so without listing and reading nobody can replace one either.
        statements.append({"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": f"{here}{AUDIT_NOTES}*"})
    if role != "admin":
        page = {"Effect": "Deny", "Action": ["s3:PutObject", "s3:DeleteObject"], "Resource": f"{here}{_PAGE}*"}
        statements += [{"Effect": "Deny", "Action": "s3:*", "Resource": f"{here}{ADMIN_NOTES}*"}, page]
    return {"Version": "2012-10-17", "Statement": statements}


def _folders(role: Role, layout: str) -> list[str]:
    if role == "admin":
        return _EVERYTHING
    if role == "producer":
        return _SUBMITTED[layout]
    return [*_WORKED_ON[layout], *([_PAGE] if role == "dashboard" else [])]
