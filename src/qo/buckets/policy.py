"""What each role may do in a bucket, as an IAM policy: as little as it can do its work with."""

from typing import Any, Literal, get_args

from qo.buckets.address import Address

Role = Literal["producer", "worker", "monitor", "dashboard", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

_HISTORY = ["s3:GetObject", "s3:GetObjectVersion"]
_WRITE = ["s3:GetObject", "s3:PutObject"]
_ALL = ["s3:GetObject", "s3:GetObjectVersion", "s3:PutObject", "s3:DeleteObject"]
_EVERYTHING = [""]
# A producer writes a task, its index entry and its large inputs, and reads back what became of them.
_SUBMITTING = ["tasks/", "ready/", "data/", "format.json"]
# A dashboard that acts writes tasks, their index and the switches. Not ui/: what it could put there runs in browsers.
_OPERATING = ["tasks/", "ready/", "leases/", "notes/", "workers/", "stats/", "data/", "format.json"]
_ONE_OBJECT = ["queue.json", "data/"]

_OBJECTS: dict[Role, tuple[list[str], list[str]]] = {
    "producer": (_WRITE, _SUBMITTING),
    "worker": (_ALL, _EVERYTHING),
    "monitor": (_ALL, _EVERYTHING),
    "dashboard": (_HISTORY, _EVERYTHING),
    "operator": (_ALL, _OPERATING),
}
_LISTING: dict[Role, list[str]] = {
    "producer": ["s3:ListBucket"],  # without it a missing object answers 403 in place of 404
    "worker": ["s3:ListBucket", "s3:ListBucketVersions"],
    "monitor": ["s3:ListBucket", "s3:ListBucketVersions"],
    "dashboard": ["s3:ListBucket", "s3:ListBucketVersions"],
    "operator": ["s3:ListBucket", "s3:ListBucketVersions"],
}


def policy(address: Address, role: Role, *, layout: str = "tasks") -> dict[str, Any]:
    """Nothing in it lets anyone delete a version, change the bucket's settings or see what lies beside the queue.

    Only the layout `tasks` keeps producers out of what workers write: in the others all share one object.
    """
    bucket, root = f"arn:aws:s3:::{address.bucket}", f"{address.prefix}/" if address.prefix else ""
    actions, folders = _OBJECTS[role]
    if layout != "tasks":
        folders = _ONE_OBJECT if role == "operator" and layout == "one" else _EVERYTHING
    listing: dict[str, Any] = {"Sid": "List", "Effect": "Allow", "Action": _LISTING[role], "Resource": bucket}
    if root:
        listing["Condition"] = {"StringLike": {"s3:prefix": [f"{root}*"]}}
    objects = {
        "Sid": "Objects",
        "Effect": "Allow",
        "Action": actions,
        "Resource": [f"{bucket}/{root}{folder}*" for folder in folders],
    }
    return {"Version": "2012-10-17", "Statement": [listing, objects]}
